# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that every cause of the catalogue has a line that matches and a similar line that does not."""

import re
from pathlib import Path

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.causes import CATALOGUE, Cause, find_cause, literals
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import name_pins
from nccl_lines import SOUND, judge

FIXTURE = Path(__file__).parents[3] / "fixtures" / "nccl" / "causes.yml"
CAUSES = yaml.safe_load(FIXTURE.read_text(encoding="utf-8"))


def test_every_cause_with_a_pattern_has_lines() -> None:
    # test_nccl_judged has the lines of mtu_differs, which one line alone cannot show.
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
