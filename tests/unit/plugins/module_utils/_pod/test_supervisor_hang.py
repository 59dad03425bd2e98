# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the supervisor says about a hang, and that this delays no restart."""

import argparse
import json
import threading
import time
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import stored
from ansible_collections.gb10.cluster.plugins.module_utils._pod import supervise
from ansible_collections.gb10.cluster.plugins.module_utils._pod.hang import judge

Json = dict[str, Any]
NAME = "sglang::scheduler_TP0"
SPINS = "synchronize (torch/cuda/streams.py:231)"
WAITS = "recv_requests (sglang/srt/managers/scheduler.py:1100)"


def rail(name: str = "rdma0", moved: Sequence[int | None] = (0, 0), down: str = "", **errors: int) -> Json:
    return {"interface": name, "device": name, "address": "", "down": down, "bytes": list(moved), "errors": errors}


def scheduler(state: str = "R", at: str = SPINS) -> Json:
    return {"name": NAME, "state": state, "busy": 1.0, "threads": [["poll (zmq.py:1)"], [at]]}


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
ALIKE = counts(LATE, LATE)
CASES: dict[str, list[Any]] = {
    "one rank is stopped": [
        rank(communicators=counts(LATE, None)),
        rank() | {"witness": {"processes": [scheduler(), scheduler(state="T")]}},
    ],
    "a rail is pulled": [rank(rail(moved=(9000, 0), local_ack_timeout_err=3)), rank(rail(down="rdma0 has no carrier"))],
    "a rail loses packets": [
        rank(rail(moved=(9000, 9000), out_of_sequence=2, packet_seq_err=40)),
        rank(rail(moved=(9000, 9000)), rail("rdma1", (9000, 9000), out_of_sequence=700)),
    ],
    "numbers that no counter has": [
        rank(rail(moved=(1 << 63, -1), out_of_sequence=1 << 63, rnr_nak_retry_err=-1), communicators=ALIKE),
        rank(),
    ],
    "a few events are no loss": [rank(rail(moved=(9000, 9000), out_of_sequence=9), communicators=ALIKE)] * 2,
    "one retry too many ends a connection": [rank(rail(req_transport_retries_exceeded=1)), rank()],
    "a scheduler was killed": [rank(gone=[NAME]), rank()],
    "a GPU reported a fault": [
        rank(communicators=ALIKE),
        rank() | {"gpu": {"xid": {"79": 1, "{{ x }}": 1}, "seconds": {}}},
        rank() | {"gpu": 3},
    ],
    "NVML tells no faults": [
        rank(communicators=ALIKE),
        *[rank() | {"gpu": {"xid": {}, "tells_faults": tells}} for tells in (False, True, 0)],
    ],
    "a GPU is slow, and another one's driver hangs": [
        gpu(mhz=2400, busy_percent=100),
        gpu(mhz=507, busy_percent=100, watts=29),
        gpu(mhz=300, busy_percent=0),
        rank(communicators=ALIKE) | {"at": 1090, "gpu": {"at": 1000, "now": [3, {"mhz": "x"}]}},
    ],
    "a rank is behind": [rank(communicators=counts(LATE, LATER)), rank()],
    "one rank knows more communicators than another": [
        rank(communicators=ALIKE),
        rank(communicators=counts(LATE) + counts(LATE, LATER)),
    ],
    "a rank of an old NCCL is behind": [recorded(8), recorded(7), recorded(8), recorded(7)],
    "NCCL and PyTorch know the same": [recorded(8, communicators=counts(LATE, LATER)), recorded(7)],
    "what a CUDA graph replays is in no recorder": [
        rank() | {"witness": {"processes": [], "torch": [{"group": "2", "called": n, "last": ""}]}} for n in (6, 5)
    ],
    "PyTorch's counts are no numbers": [recorded("8"), recorded(-7)],
    "two ranks are away and one is behind": [rank(communicators=counts(LATE, LATER, None, None)), *[rank()] * 3],
    "every rank calls another collective": [
        rank(communicators=counts({"AllReduce": 9, "Broadcast": 4}, {"AllReduce": 8, "Broadcast": 5})),
        rank(at=WAITS),
    ],
    "only one rail of a rank is silent": [
        rank(rail(moved=(9000, 9000)), rail("rdma1", (9000, 0))),
        rank(rail(moved=(1, 1)), rail("rdma1", (0, 0))),
    ],
    "two ranks do not send": [rank(), rank(rail(moved=(9000, 9000))), rank()],
    "the rails of rank 0 are unknown": [
        rank(communicators=ALIKE) | {"rails": []},
        rank(rail(moved=(9000, 9000))),
        rank(),
    ],
    "a device does not count": [rank(rail(moved=(None, None)), communicators=ALIKE), rank(rail(moved=(9000, 9000)))],
    "an old NCCL": [rank()] * 2,
    "a server has ended, and its sidecar lives": [rank(), rank() | {"witness": None}],
    "no rank has a witness": [rank() | {"witness": None}] * 2,
    "half of the ranks do not answer": [rank(), None, rank(), None],
    "a rank is elsewhere": [
        rank(),
        rank() | {"witness": {"processes": [scheduler() | {"threads": []}, scheduler(at=WAITS)]}},
        rank(),
    ],
    "a template, a terminal's bytes and a huge name": [
        rank(gone=["{{ lookup('pipe', 'id') }}", "\x1b[2J%s\u202e", "n" * 999]),
        rank(),
    ],
    "no evidence of the expected form": [
        {"rails": "x", "witness": [1], "communicators": {"a": 1}},
        {"rails": [1, {"bytes": "x", "errors": [], "down": 0}], "witness": {"processes": [{}, 3], "gone": 4}},
        {"communicators": [{"ranks": [{"begun": {"AllReduce": "9", 3: -1}}, {"begun": None}, 7]}, []]},
    ],
}


def test_what_holds_up_a_group_is_as_stored() -> None:
    found = {name: judge(given, [f"10.42.0.{number}" for number in range(len(given))]) for name, given in CASES.items()}
    # A rank of several GPUs is named by its place, or by NCCL's number.
    counted = counts({"AllReduce": 3}, {"AllReduce": 3}, {"AllReduce": 2}, {"AllReduce": 3})
    for place, row in enumerate(counted[0]["ranks"]):
        row["host"] = f"10.100.0.{place // 2}"
    for address in ("", "10.100.0.1"):
        group = [rank(rail() | {"address": "10.100.0.0"}, communicators=counted), rank(rail() | {"address": address})]
        found[f"the second rank of two GPUs has the address {address or 'unknown'}"] = judge(group, ["", ""])
    stored.compare("hang_findings", found)


SEEN = [supervise.Seen(f"g-{n}-0", True, True, f"u{n}/0", f"10.42.0.{n}") for n in range(3)]


@pytest.mark.parametrize("fails", [False, True])
def test_a_rank_that_says_nothing_delays_nothing(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 0 says nonsense, rank 1 answers after a moment, and rank 2 says nothing until ``held`` is set."""
    held, others, told = threading.Event(), set(threading.enumerate()), []

    def opened(url: str, timeout: float) -> BytesIO:
        assert url.endswith(":30002/hang") and timeout > 0
        if "10.42.0.2" in url:
            held.wait(60)
            raise TimeoutError
        if "10.42.0.0" in url:
            return BytesIO(b"\xff{{")
        time.sleep(0.05)
        return BytesIO(json.dumps(rank(gone=[NAME])).encode())

    def tell(pod: supervise.Seen, reason: str, _message: str) -> None:
        if fails:
            raise OSError("away")
        told.append((pod.name, reason))

    monkeypatch.setattr(supervise.HTTP, "open", opened)
    options = argparse.Namespace(evidence_port=30002, evidence_seconds=1, logs=tmp_path)
    try:
        supervise.explain(SimpleNamespace(tell=tell), SEEN, options)  # type: ignore[arg-type]
    finally:
        held.set()
    said = capsys.readouterr().out
    # What the late thread writes must not appear in another test.
    for late in set(threading.enumerate()) - others:
        late.join()
    finding = f"rank 1: its process {NAME} has ended, and the others wait for it; rank 0, 2 did not answer"
    assert f"why the group hung: {finding}" in said
    assert "rank 0 says nothing about the hang: " in said
    (kept,) = tmp_path.glob("*-hang.log")
    assert kept.read_text().startswith(finding)
    assert ("could not be told" in said) is fails
    assert told == [("g-0-0", "GroupHung")] * (not fails)
