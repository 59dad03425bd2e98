# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the supervisor says about a hang, and that this delays no restart."""

import argparse
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pod import supervise
from ansible_collections.gb10.cluster.plugins.module_utils._pod.hang import judge

Json = dict[str, Any]
SPINS = "synchronize (torch/cuda/streams.py:231)"
WAITS = "recv_requests (sglang/srt/managers/scheduler.py:1100)"


def rail(name: str = "rdma0", moved: Sequence[int | None] = (0, 0), down: str = "", **errors: int) -> Json:
    return {"interface": name, "device": name, "address": "", "down": down, "bytes": list(moved), "errors": errors}


def scheduler(state: str = "R", at: str = SPINS) -> Json:
    return {"name": "sglang::scheduler_TP0", "state": state, "busy": 1.0, "threads": [["poll (zmq.py:1)"], [at]]}


def counts(*begun: Json | None) -> list[Json]:
    """Return one communicator with these counts; None for a rank that does not answer NCCL."""
    own = [{"begun": each} if each else {"missing": True} for each in begun]
    return [{"hash": "0x27", "ranks": [{"rank": n, "host": f"10.42.0.{n}", **each} for n, each in enumerate(own)]}]


def rank(*rails: Json, gone: Sequence[str] = (), communicators: Any = None, **of: str) -> Json:
    witness = {"processes": [scheduler(**of)], "gone": list(gone)}
    return {"rails": list(rails or [rail()]), "witness": witness, "communicators": communicators or [], "missing": {}}


def gpu(**now: int) -> Json:
    return rank(communicators=ALIKE) | {"at": 1010, "gpu": {"at": 1000, "now": [now]}}


def recorded(called: Any, **more: Any) -> Json:
    """Return a rank that has called so many collectives in a group of PyTorch."""
    rows = [{"group": "tp:0", "called": called, "last": "nccl:all_reduce"}, {"group": "0", "called": 3}, 7]
    return rank() | {"witness": {"processes": [scheduler()], "torch": rows}} | more


LATE, LATER = {"AllReduce": 6650, "Broadcast": 4}, {"AllReduce": 6649, "Broadcast": 4}
NOTHING = "nothing was found: no process has ended or is stopped, every rail has its link, and NCCL "
UNHEARD = "look whether its node and its sidecar live, and whether a network policy admits the supervisor"
ALIKE = counts(LATE, LATE)
CASES: dict[str, tuple[list[Any], str]] = {
    "one rank is stopped": (
        [
            rank(communicators=counts(LATE, None)),
            rank() | {"witness": {"processes": [scheduler(), scheduler(state="T")]}},
        ],
        "rank 1: its process sglang::scheduler_TP0 is stopped (state T), by SIGSTOP or a debugger; NCCL gets no answer "
        "from rank 1: its process does not run, or its network is away",
    ),
    "a rail is pulled": (
        [rank(rail(moved=(9000, 0), local_ack_timeout_err=3)), rank(rail(down="rdma0 has no carrier"))],
        "rank 1: rdma0 has no carrier; look at the cable and the switch port; rank 1: the counters of rdma0 stand "
        "still, while other ranks send on this rail",
    ),
    "a rail loses packets": (
        [
            rank(rail(moved=(9000, 9000), out_of_sequence=2, packet_seq_err=40)),
            rank(rail(moved=(9000, 9000)), rail("rdma1", (9000, 9000), out_of_sequence=700)),
        ],
        "rank 1: rdma1 loses packets (out_of_sequence +700 in ten seconds); rank 0: rdma0 loses packets "
        "(packet_seq_err +40, out_of_sequence +2 in ten seconds)",
    ),
    "numbers that no counter has": (
        [
            rank(rail(moved=(1 << 63, -1), out_of_sequence=1 << 63, rnr_nak_retry_err=-1), communicators=ALIKE),
            rank(),
        ],
        f"{NOTHING}knows of no rank that is behind",
    ),
    "a few events are no loss": (
        [rank(rail(moved=(9000, 9000), out_of_sequence=9), communicators=ALIKE)] * 2,
        f"{NOTHING}knows of no rank that is behind",
    ),
    "one retry too many ends a connection": (
        [rank(rail(req_transport_retries_exceeded=1)), rank()],
        "rank 0: rdma0 loses packets (req_transport_retries_exceeded +1 in ten seconds)",
    ),
    "a scheduler was killed": (
        [rank(gone=["sglang::scheduler_TP0"]), rank()],
        "rank 0: its process sglang::scheduler_TP0 has ended, and the others wait for it",
    ),
    "a GPU reported a fault": (
        [
            rank(communicators=ALIKE),
            rank() | {"gpu": {"xid": {"79": 1, "{{ x }}": 1}, "seconds": {}}},
            rank() | {"gpu": 3},
        ],
        "rank 1: its GPU has reported Xid 79 since the server's start; "
        "rank 1: its GPU has reported Xid ?? x ?? since the server's start",
    ),
    "NVML tells no faults": (
        [
            rank(communicators=ALIKE),
            *[rank() | {"gpu": {"xid": {}, "tells_faults": tells}} for tells in (False, True, 0)],
        ],
        f"{NOTHING}knows of no rank that is behind; "
        "NVML tells no faults of the GPU of rank 1 (Xid): only its kernel log has them",
    ),
    "a GPU is slow, and another one's driver hangs": (
        [
            gpu(mhz=2400, busy_percent=100),
            gpu(mhz=507, busy_percent=100, watts=29),
            gpu(mhz=300, busy_percent=0),
            rank(communicators=ALIKE) | {"at": 1090, "gpu": {"at": 1000, "now": [3, {"mhz": "x"}]}},
        ],
        "rank 3: its GPU's driver (NVML) has not answered for 90 s; rank 1: its GPU works at 507 MHz and takes 29 W, "
        "another rank's at 2400 MHz",
    ),
    "a rank is behind": (
        [rank(communicators=counts(LATE, LATER)), rank()],
        "rank 1 is behind in communicator 0x27: it has begun 6649 AllReduce, others 6650",
    ),
    "one rank knows more communicators than another": (
        [rank(communicators=ALIKE), rank(communicators=counts(LATE) + counts(LATE, LATER))],
        "rank 1 is behind in communicator 0x27: it has begun 6649 AllReduce, others 6650",
    ),
    "a rank of an old NCCL is behind": (
        [recorded(8), recorded(7), recorded(8), recorded(7)],
        "rank 1, 3 is behind in PyTorch's group tp:0: it has called 7 collectives, others 8, the last one "
        "nccl:all_reduce",
    ),
    "NCCL and PyTorch know the same": (
        [recorded(8, communicators=counts(LATE, LATER)), recorded(7)],
        "rank 1 is behind in communicator 0x27: it has begun 6649 AllReduce, others 6650",
    ),
    "what a CUDA graph replays is in no recorder": (
        [rank() | {"witness": {"processes": [], "torch": [{"group": "2", "called": n, "last": ""}]}} for n in (6, 5)],
        "rank 1 is behind in PyTorch's group 2: it has called 5 collectives, others 6",
    ),
    "PyTorch's counts are no numbers": (
        [recorded("8"), recorded(-7)],
        f"{NOTHING}told nothing (RAS answers from 2.28.7 on)",
    ),
    "two ranks are away and one is behind": (
        [rank(communicators=counts(LATE, LATER, None, None)), *[rank()] * 3],
        "NCCL gets no answer from rank 2, 3: its process does not run, or its network is away; "
        "rank 1 is behind in communicator 0x27: it has begun 6649 AllReduce, others 6650",
    ),
    "every rank calls another collective": (
        [
            rank(communicators=counts({"AllReduce": 9, "Broadcast": 4}, {"AllReduce": 8, "Broadcast": 5})),
            rank(at=WAITS),
        ],
        "the ranks call different collectives in communicator 0x27, which can never end: rank 1 has begun 8 AllReduce "
        "of 9, rank 0 has begun 4 Broadcast of 5; the ranks are at different places: "
        f"rank 0 in {SPINS}, rank 1 in {WAITS}",
    ),
    "only one rail of a rank is silent": (
        [rank(rail(moved=(9000, 9000)), rail("rdma1", (9000, 0))), rank(rail(moved=(1, 1)), rail("rdma1", (0, 0)))],
        "rank 1: the counters of rdma1 stand still, while other ranks send on this rail",
    ),
    "two ranks do not send": (
        [rank(), rank(rail(moved=(9000, 9000))), rank()],
        "rank 0: the counters of rdma0 stand still, while other ranks send on this rail; "
        "rank 2: the counters of rdma0 stand still, while other ranks send on this rail",
    ),
    "the rails of rank 0 are unknown": (
        [rank(communicators=ALIKE) | {"rails": []}, rank(rail(moved=(9000, 9000))), rank()],
        "rank 2: the counters of rdma0 stand still, while other ranks send on this rail",
    ),
    "a device does not count": (
        [rank(rail(moved=(None, None)), communicators=ALIKE), rank(rail(moved=(9000, 9000)))],
        f"{NOTHING}knows of no rank that is behind",
    ),
    "an old NCCL": ([rank()] * 2, f"{NOTHING}told nothing (RAS answers from 2.28.7 on)"),
    "a server has ended, and its sidecar lives": (
        [rank(), rank() | {"witness": None}],
        "rank 1: its server, or only the witness of its processes, has ended or hangs",
    ),
    "no rank has a witness": (
        [rank() | {"witness": None}] * 2,
        "nothing was found: the witness of no rank's processes answers, every rail has its link, and NCCL told nothing "
        "(RAS answers from 2.28.7 on)",
    ),
    "half of the ranks do not answer": (
        [rank(), None, rank(), None],
        f"rank 1, 3 did not answer: {UNHEARD} (playbook kubernetes)",
    ),
    "a rank is elsewhere": (
        [rank(), rank() | {"witness": {"processes": [scheduler() | {"threads": []}, scheduler(at=WAITS)]}}, rank()],
        f"the ranks are at different places: rank 1 in {WAITS}, rank 0, 2 in {SPINS}",
    ),
    "a template, a terminal's bytes and a huge name": (
        [rank(gone=["{{ lookup('pipe', 'id') }}", "\x1b[2J%s\u202e", "n" * 999]), rank()],
        "rank 0: its process ?? lookup('pipe', 'id') ?? has ended, and the others wait for it; rank 0: its process "
        "?[2J?s? has ended, and the others wait for it; rank 0: its process "
        f"{'n' * 120} has ended, and the others wait for it",
    ),
    "no evidence of the expected form": (
        [
            {"rails": "x", "witness": [1], "communicators": {"a": 1}},
            {"rails": [1, {"bytes": "x", "errors": [], "down": 0}], "witness": {"processes": [{}, 3], "gone": 4}},
            {"communicators": [{"ranks": [{"begun": {"AllReduce": "9", 3: -1}}, {"begun": None}, 7]}, []]},
        ],
        "rank 0, 2: its server, or only the witness of its processes, has ended or hangs",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_finding_names_what_holds_up_the_group(name: str) -> None:
    given, said = CASES[name]
    assert "; ".join(judge(given, [f"10.42.0.{number}" for number in range(len(given))])) == said


def test_a_rank_of_several_gpus_is_named_by_its_place_or_by_nccl_s_number() -> None:
    told = counts({"AllReduce": 3}, {"AllReduce": 3}, {"AllReduce": 2}, {"AllReduce": 3})
    for place, row in enumerate(told[0]["ranks"]):
        row["host"] = f"10.100.0.{place // 2}"
    own = rank(rail(), communicators=told)
    own["rails"][0]["address"] = "10.100.0.0"
    other = rank(rail())
    assert judge([own, other], ["", ""])[0].startswith("NCCL's rank 2 is behind in communicator 0x27")
    other["rails"][0]["address"] = "10.100.0.1"
    assert judge([own, other], ["", ""])[0].startswith("rank 1 is behind in communicator 0x27")


SEEN = [supervise.Seen(f"g-{n}-0", True, True, f"u{n}/0", f"10.42.0.{n}") for n in range(3)]


class Api:
    """Records events, or fails as an API server that is away does."""

    def __init__(self, fails: bool = False) -> None:
        self.told: list[tuple[str, str, str]] = []
        self.fails = fails

    def tell(self, pod: supervise.Seen, reason: str, message: str) -> None:
        if self.fails:
            raise OSError("away")
        self.told.append((pod.name, reason, message))


def answers(monkeypatch: pytest.MonkeyPatch, held: threading.Event) -> None:
    """Rank 0 says nonsense, rank 1 answers after a moment, and rank 2 says nothing until ``held`` is set."""

    def opened(url: str, timeout: float) -> BytesIO:
        assert url.endswith(":30002/hang") and timeout > 0
        if "10.42.0.2" in url:
            held.wait(60)
            raise TimeoutError
        if "10.42.0.0" in url:
            return BytesIO(b"\xff{{")
        time.sleep(0.05)
        return BytesIO(json.dumps(rank(gone=["sglang::scheduler_TP0"])).encode())

    monkeypatch.setattr(supervise.HTTP, "open", opened)


@pytest.mark.parametrize("fails", [False, True])
def test_a_rank_that_says_nothing_delays_nothing(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    held, others = threading.Event(), set(threading.enumerate())
    answers(monkeypatch, held)
    api = Api(fails)
    options = argparse.Namespace(evidence_port=30002, evidence_seconds=1, logs=tmp_path)
    try:
        supervise.explain(api, SEEN, options)  # type: ignore[arg-type]
    finally:
        held.set()
    said = capsys.readouterr().out
    # What the late thread writes must not appear in another test.
    for late in set(threading.enumerate()) - others:
        late.join()
    finding = (
        "rank 1: its process sglang::scheduler_TP0 has ended, and the others wait for it; rank 0, 2 did not answer"
    )
    assert f"why the group hung: {finding}" in said
    assert "rank 0 says nothing about the hang: " in said
    (kept,) = tmp_path.glob("*-hang.log")
    assert kept.read_text().startswith(finding)
    assert ("could not be told" in said) is fails
    assert [(pod, reason) for pod, reason, _text in api.told] == ([] if fails else [("g-0-0", "GroupHung")])


@pytest.mark.parametrize(
    ("change", "part", "hangs"),
    [({}, None, True), ({}, 5.0, False), ({"running": False}, None, False), ({"memory": "3 %"}, None, False)],
)
def test_only_a_group_that_runs_as_one_is_asked_what_it_waits_for(
    change: Json, part: float | None, hangs: bool
) -> None:
    seen = [SEEN[0], replace(SEEN[1], **change)]
    assert supervise.hangs(seen, supervise.History(part_since=part)) is hangs


@pytest.mark.parametrize(
    ("port", "change", "work", "acts"),
    [
        (30002, {}, "", ["asked 2", "g-0-0", "g-1-0"]),
        (None, {}, "", ["g-0-0", "g-1-0"]),
        (30002, {"memory": "3 %"}, "", ["g-0-0", "g-1-0"]),
        (30002, {}, "sglang:token_usage 0.5", []),
    ],
    ids=["hangs", "no evidence", "no memory", "works"],
)
def test_a_group_that_hangs_is_asked_before_its_pods_are_deleted(
    port: int | None,
    change: Json,
    work: str,
    acts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    done: list[str] = []

    class Group:
        def see(self, name: str) -> supervise.Seen:
            return replace(SEEN[0], name=name, address=name, incarnation=f"{name}/0", **change)

        def log(self, name: str, previous: bool) -> str:
            assert not previous
            return name

        def delete(self, name: str) -> None:
            done.append(name)

    monkeypatch.setattr(supervise, "explain", lambda _api, seen, _options: done.append(f"asked {len(seen)}"))
    monkeypatch.setattr(supervise, "head_is_healthy", lambda address, *_words: address != "g-0-0")
    monkeypatch.setattr(supervise, "work_done", lambda *_words: work)
    history = supervise.History(stuck_since=-1e9, incarnations=("g-0-0/0", "g-1-0/0"))
    options = argparse.Namespace(evidence_port=port, port=1, logs=tmp_path, evidence_seconds=1)
    before = {"g-0-0": "g-0-0/0", "g-1-0": "g-1-0/0"}
    supervise.check(Group(), ["g-0-0", "g-1-0"], history, before, options, supervise.Limits())  # type: ignore[arg-type]
    assert done == acts
    assert ("restarting the group: " in capsys.readouterr().out) is bool(acts)
    assert sorted(path.read_text() for path in tmp_path.iterdir()) == ["g-0-0", "g-1-0"] * bool(acts)
