# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that every cause of the catalogue has a line that matches and a similar line that does not."""

import re
from pathlib import Path

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.causes import CATALOGUE, Cause, find_cause, literals
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import name_pins
from nccl_lines import SOUND, channel, init, judge, nodes, said

FIXTURE = Path(__file__).parents[3] / "fixtures" / "nccl" / "causes.yml"
CAUSES = yaml.safe_load(FIXTURE.read_text(encoding="utf-8"))


def test_every_cause_with_a_pattern_has_lines() -> None:
    # test_nccl_overall has the lines of mtu_differs, which one line alone cannot show.
    assert set(CAUSES) == {cause.id for cause in CATALOGUE} - {"mtu_differs"}
    assert all(cause.summary and cause.remedy and cause.source and 0 < cause.confidence <= 1 for cause in CATALOGUE)


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_matches_its_lines_and_not_the_similar_one(cause: str) -> None:
    assert [find_cause(line) for line in CAUSES[cause]["shows"]] == [cause] * len(CAUSES[cause]["shows"])
    assert find_cause(CAUSES[cause]["near"]) != cause


@pytest.mark.parametrize("cause", CATALOGUE, ids=lambda cause: cause.id)
def test_no_line_that_matches_is_skipped(cause: Cause) -> None:
    """``find_cause`` looks for plain text before it tries a pattern."""
    hints = literals(cause.pattern)
    for line in [line for lines in CAUSES.values() for line in [*lines["shows"], lines["near"]]]:
        if cause.pattern and re.search(cause.pattern, line):
            assert any(hint in line for hint in hints)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (r"Got completion.*(?:error 12|status=12)", ("Got completion",)),
        (r"NET/IB ?: No (?:IB )?device", ("NET/IB",)),
        (r"[Nn]o socket|a\.b", ("o socket", "a.b")),
        (r"\d+", ()),
        (r"wrong type \d+ != \d+", ("wrong type ",)),
    ],
)
def test_the_plain_text_of_a_pattern(pattern: str, found: tuple[str, ...]) -> None:
    assert literals(pattern) == found


def ids(*lines: str) -> list[str]:
    return [cause["id"] for cause in judge("".join(f"{line}\n" for line in lines)).causes]


NO_DEVICE = "NET/IB : No device found."
WATCHDOG, CRASH = CAUSES["watchdog"]["shows"][0], CAUSES["segfault"]["shows"][0]


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        # The names are right, and the devices are missing.
        ((said("NCCL_IB_HCA set to =rocep1s0f0v0"), said("NET/IB : No device found.")), ["no_rdma_device"]),
        ((said("NCCL_IB_HCA set to enp1s0f0np0"), said("NET/IB : No device found.")), ["hca_selection"]),
        ((WATCHDOG, CRASH), ["watchdog"]),
        ((said("Bootstrap : Using eth0:10.0.0.1<0>"), CRASH), ["segfault"]),
        ((CAUSES["reg_mr"]["shows"][0], CAUSES["proxy_failed"]["shows"][0]), ["reg_mr"]),
        ((said("NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS set by environment to 1."),), []),
        (
            (
                said("NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS set by environment to 1."),
                said("NCCL_IB_USE_INLINE set by environment to 1."),
            ),
            ["inline_and_prepost"],
        ),
        (("\n" * 300_000, CAUSES["rank_missing"]["shows"][0]), ["rank_missing"]),
    ],
    ids=["devices missing", "interfaces", "watchdog", "crash", "proxy", "prepost", "both", "end of a long log"],
)
def test_a_cause_that_another_one_explains_is_not_listed(lines: tuple[str, ...], found: list[str]) -> None:
    assert ids(*lines) == found


@pytest.mark.parametrize(
    ("log", "cause", "confidence"),
    [
        (said(init("START"), nodes(2), NO_DEVICE), "no_rdma_device", 0.7),
        # RDMA was found nevertheless.
        (SOUND + said(NO_DEVICE), "no_rdma_device", 0.05),
        (said("Using network IB", NO_DEVICE), "no_rdma_device", 0.05),
        (said("NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB e:1", NO_DEVICE), "no_rdma_device", 0.05),
        (SOUND + f"s1:1:1 [0] {CAUSES['ofi_no_provider']['shows'][0]}\n", "ofi_no_provider", 0.3),
        # A job inside one node needs no network.
        (said(init("START"), nodes(1), NO_DEVICE), "no_rdma_device", 0.1),
        (said(init("START"), nodes(1), channel("Socket"), NO_DEVICE), "no_rdma_device", 0.7),
        # What is used tells more than what was chosen.
        (said("Using network IB", init("START"), channel("Socket"), NO_DEVICE), "no_rdma_device", 0.7),
    ],
)
def test_the_rest_of_a_log_decides_how_much_a_line_explains(log: str, cause: str, confidence: float) -> None:
    assert [(each["id"], each["confidence"]) for each in judge(log).causes] == [(cause, confidence)]


def test_a_line_at_the_end_of_a_log_is_counted_once() -> None:
    causes = judge(SOUND + f"s1:1:1 [0] {CAUSES['verbs_provider']['shows'][1]}\n").causes
    assert [(each["id"], each["count"], each["rank"]) for each in causes] == [("verbs_provider", 1, 0)]


def test_a_remark_does_not_make_a_log_unhealthy() -> None:
    report = judge(SOUND + said("NET/IB : Using [0]rxe0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>"))
    assert (report.satisfied, report.troubles, [cause["id"] for cause in report.causes]) == (True, [], ["soft_rdma"])


@pytest.mark.parametrize(
    ("pins", "summary"),
    [
        ("kernel", "kexec handover (kho) keeps memory"),
        ("memlock", "locked memory is limited in the"),
        ("", "or locked"),
    ],
)
def test_the_facts_of_the_host_name_why_memory_cannot_be_pinned(pins: str, summary: str) -> None:
    causes = judge(SOUND + f"s1:1:1 [0] {CAUSES['reg_mr']['shows'][0]}\n").causes
    other = {"id": "watchdog", "source": "log", "summary": "", "remedy": ""}
    name_pins([*causes, other], {"log": pins, "other": "memlock"})
    assert (summary in causes[0]["summary"], other["summary"]) == (True, "")
    assert ("kho=off" in causes[0]["remedy"]) is (pins != "memlock")
