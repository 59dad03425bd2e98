# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.record import (
    Evidence,
    conclude,
    environment,
    from_results,
    measured_status,
    took_s,
)

DEAD = [{"rank": 1, "pod": "x-1-0", "restarts": 1, "trouble": ""}]
ILLEGAL = {"x-1-0": ["INFO", "torch.AcceleratorError: CUDA error: an illegal instruction was encountered", "bye"]}


def measured(*states: str) -> Evidence:
    return Evidence(server={}, measurements=[{"status": s} for s in states])


def concluded(evidence: Evidence, ranks: list[dict[str, Any]], logs: dict[str, list[str]]) -> dict[str, Any]:
    return conclude(replace(evidence, ranks=ranks, logs=logs), {})


def test_the_worst_measurement_decides() -> None:
    assert measured_status(measured("ok", "ok").measurements) == "ok"
    assert measured_status(measured("ok", "infrastructure", "garbage").measurements) == "garbage"
    assert measured_status([]) == "failed"


def test_a_server_that_died_while_it_was_measured_is_no_infrastructure_failure() -> None:
    record = concluded(measured("ok", "infrastructure"), DEAD, ILLEGAL)
    assert record["status"] == "illegal_instruction"
    assert "illegal instruction" in record["failure"]["line"]
    assert concluded(measured("infrastructure"), [], {})["status"] == "infrastructure"


def test_a_crash_that_no_signature_knows_is_quoted() -> None:
    record = concluded(measured("infrastructure"), DEAD, {"x-1-0": ["Segmentation fault (core dumped)", ""]})
    assert (record["status"], record["failure"]["line"]) == ("crash", "Segmentation fault (core dumped)")
    silent = concluded(measured("infrastructure"), DEAD, {})
    assert silent["failure"]["line"] == "rank 1 was restarted"


@pytest.mark.parametrize(
    ("own", "quoted"),
    [
        (["torch.AcceleratorError: CUDA error: an illegal memory access was encountered", "bye"], 0),
        (["Fatal Python error: Segmentation fault"], 0),
        (["Traceback (most recent call last):", "KeyError: 'draft'", "RuntimeError: Rank 0 scheduler died"], 1),
        (["INFO loading", "INFO half way"], 1),
        (['x:1:1 [0] NCCL WARN Missing "iommu=pt"', "INFO", "[rank0]: KeyError: 'x'"], 2),
        (["recv: Connection reset by peer", "KeyError: 'x'"], 1),
    ],
)
@pytest.mark.parametrize("sibling", ["Connection refused", "Watchdog caught collective operation timeout"])
def test_messages_of_other_ranks_do_not_hide_an_unknown_crash(own: list[str], quoted: int, sibling: str) -> None:
    ranks = [{"rank": 0, "pod": "x-0-0", "restarts": 1, "trouble": ""}, *DEAD]
    record = concluded(measured("infrastructure"), ranks, {"x-1-0": [sibling], "x-0-0": own})
    assert (record["status"], record["failure"]["line"]) == ("crash", own[quoted])


@pytest.mark.parametrize(
    ("own", "status"),
    [
        (
            ["x:1:1 [0] NCCL WARN Call to ibv_modify_qp failed with 110", "RuntimeError: Rank 0 scheduler is dead"],
            "nccl",
        ),
        (["ConnectionRefusedError: [Errno 111] Connection refused"], "infrastructure"),
        ([], "infrastructure"),
    ],
)
def test_a_rank_that_names_the_network_itself_died_of_it(own: list[str], status: str) -> None:
    ranks = [{"rank": 0, "pod": "x-0-0", "restarts": 1, "trouble": ""}]
    logs = {"x-0-0": own, "x-1-0": ["Connection refused"]}
    assert concluded(measured("infrastructure"), ranks, logs)["status"] == status


@pytest.mark.parametrize("state", ["failed", "infrastructure"])
@pytest.mark.parametrize(
    "said",
    [
        ["INFO decode batch"],
        ["Connection refused"],
        ["RuntimeError: [gloo] Connection closed by peer"],
        ["x:1:1 [0] NCCL WARN Call to ibv_modify_qp failed with 110"],
        ["Watchdog caught collective operation timeout"],
        [],
    ],
)
def test_a_rank_that_was_lost_with_its_node_is_no_failure_of_the_setting(state: str, said: list[str]) -> None:
    ranks = [*DEAD, {"rank": 2, "pod": "x-2-0", "node": "spark3", "restarts": 0, "trouble": "", "lost": True}]
    ended = concluded(measured(state), ranks, {"x-1-0": said})
    assert (ended["status"], ended["failure"]["line"]) == ("infrastructure", "rank 2 was lost with its node spark3")
    assert concluded(measured(state), ranks, ILLEGAL)["status"] == "illegal_instruction"


def test_a_rank_that_the_kernel_killed_ran_out_of_memory() -> None:
    ranks = [{"rank": 0, "pod": "x-0-0", "restarts": 1, "trouble": "", "last_exit": "OOMKilled"}]
    ended = concluded(
        measured("infrastructure"), ranks, {"x-0-0": ["INFO load weights"], "x-1-0": ["Connection refused"]}
    )
    assert ended["status"] == "out_of_memory"
    assert "rank 0" in ended["failure"]["line"]


def test_a_cell_that_never_was_measured_is_classified_by_what_failed() -> None:
    late = concluded(Evidence(failed=True, task="Wait", reason="Group x is not ready after 300 s."), [], {})
    assert (late["status"], late["stage"], late["task"]) == ("timeout", "serve", "Wait")
    assert concluded(Evidence(failed=True, reason="no port is left"), [], {})["status"] == "failed"


@pytest.mark.parametrize(
    ("reason", "ranks", "status"),
    [
        ("rank 1 on spark2: NET/Socket, IB was expected", [], "transport"),
        ("the group did not answer: timed out", [], "transport"),
        ("dial tcp 10.0.0.1:6443: Connection refused", [], "infrastructure"),
        ("the group did not answer", DEAD, "illegal_instruction"),
    ],
)
def test_a_transport_that_is_not_proved_is_a_class_of_its_own(
    reason: str, ranks: list[dict[str, Any]], status: str
) -> None:
    evidence = Evidence(server={}, verify=True, failed=True, reason=reason)
    ended = concluded(evidence, ranks, ILLEGAL if ranks else {})
    assert (ended["status"], ended["stage"]) == (status, "transport")
    assert ended["environment"]["transport"] == {"satisfied": False, "msg": reason}
    assert ended["failure"]["line"] in (reason, ILLEGAL["x-1-0"][1])


def test_garbage_stays_garbage_whatever_the_logs_say() -> None:
    assert concluded(measured("garbage"), DEAD, ILLEGAL)["status"] == "garbage"


def test_the_duration_of_a_cell_counts_from_its_last_start() -> None:
    records = [
        {"kind": "start", "cell": "a", "at": "2026-06-01T22:00:00+00:00"},
        {"kind": "start", "cell": "a", "at": "2026-06-01T23:00:00+00:00"},
    ]
    assert took_s("a", records, datetime(2026, 6, 1, 23, 5, tzinfo=UTC)) == 300
    assert took_s("b", records, datetime(2026, 6, 1, 23, 5, tzinfo=UTC)) is None


PLAN = {
    "sglang_version": "0.5.10",
    "image": "registry/sglang:0.5.10",
    "profile": "p",
    "preset": "mtp",
    "ranks": [
        {
            "node": node,
            "argv": ["sglang", "serve", f"--rank={rank}"],
            "networks": [{"name": "rail0", "rdma_device": "rocep1"}, {"name": "rail1", "rdma_device": "rocep2"}],
        }
        for rank, node in enumerate(("spark1", "spark2"))
    ],
}
PROOF = {"satisfied": True, "msg": "2 ranks on ib", "nccl_versions": ["2.28.9"]}
RESULTS = {
    "plan": PLAN,
    "mtu": 9000,
    "pods": {
        "resources": [
            {"status": {"containerStatuses": [{"name": "sglang", "imageID": "x@sha256:1"}, {"name": "gateway"}]}},
            {"status": {"containerStatuses": [{"name": "sglang", "imageID": "x@sha256:1"}]}},
            {"status": {}},
        ]
    },
    "kernels": {"results": [{"stdout_lines": ["6.17.0", "no NVIDIA driver"]}, {"failed": True, "msg": "no pod"}]},
    "server": {"server_info": {"tp_size": 2}},
    "verify": True,
    "proof": PROOF,
    "measured": {"cells": [{"status": "ok"}]},
    "failure": {},
    "group": {"ranks": [{"rank": 0}], "logs": {"x-0-0": ["INFO"]}},
}


def test_the_record_of_a_cell_says_what_was_asked_for_and_what_was_seen() -> None:
    record = conclude(from_results(RESULTS), {"commit": "abc1"})
    assert record["status"] == "ok" and "stage" not in record
    assert record["measurements"] == [{"status": "ok"}]
    assert record["environment"] == {
        "sglang": "0.5.10",
        "image": "registry/sglang:0.5.10",
        "profile": "p/mtp",
        "arguments": ["sglang", "serve", "--rank=0"],
        "nodes": ["spark1", "spark2"],
        "networks": ["rail0", "rail1"],
        "rdma_devices": ["rocep1", "rocep2"],
        "mtu": 9000,
        "commit": "abc1",
        "image_id": ["x@sha256:1"],
        "kernel_and_driver": ["6.17.0, no NVIDIA driver"],
        "server": {"tp_size": 2},
        "nccl": ["2.28.9"],
        "transport": PROOF,
    }


@pytest.mark.parametrize(
    ("lacking", "verify", "stage"),
    [
        ({"server": {"failed": True, "msg": "no answer"}}, True, "serve"),
        ({"server": {}, "pods": {}, "kernels": {}, "plan": {}, "group": {"failed": True}}, True, "serve"),
        ({"proof": {}}, True, "transport"),
        ({"proof": {}, "server": {"server_info": {}}}, True, "transport"),
        ({"proof": {}}, False, "measure"),
        ({}, True, "measure"),
    ],
)
def test_a_cell_fails_in_the_first_stage_that_left_no_evidence(
    lacking: dict[str, Any], verify: bool, stage: str
) -> None:
    failure = {"task": "Some task", "msg": "no port is left"}
    results = RESULTS | {"measured": {}, "verify": verify, "failure": failure} | lacking
    record = conclude(from_results(results), {})
    assert (record["stage"], record["task"], record["reason"]) == (stage, "Some task", "no port is left")
    assert record["status"] == ("transport" if stage == "transport" else "failed")
    if stage == "transport":
        assert record["environment"]["transport"] == {"satisfied": False, "msg": "no port is left"}


@pytest.mark.parametrize(
    ("reason", "engine", "ended"),
    [
        ("to the engine of a. [serving.verdict.known_engine]", "e", ("duplicate", "a")),
        ("to the engine of a. [serving.verdict.known_engine]", "f", ("failed", None)),
        # A cell that could not be planned has the plan of the cell before it.
        ("can't be planned", "e", ("failed", None)),
    ],
)
def test_a_cell_that_the_image_resolves_to_a_measured_engine_is_its_duplicate(
    reason: str, engine: str, ended: tuple[str, str | None]
) -> None:
    plan = {"ranks": [{"argv": [], "node": "a", "networks": []}], "image_verdict": {"engine": engine}}
    record = conclude(Evidence(plan=plan, failed=True, reason=reason), {}, {"e": "a"})
    assert (record["status"], record.get("duplicate_of")) == ended
    assert record["environment"]["engine"] == engine


def test_the_record_of_an_external_server_has_no_requested_settings() -> None:
    assert environment(Evidence(server={"tp_size": 1}), {"commit": "abc1"}) == {"server": {"tp_size": 1}}
