# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""One rank with its own files and sysfs, and an API that records what its sidecar writes."""

import io
import json
import re
import shutil
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pod import gate as generations
from ansible_collections.gb10.cluster.plugins.module_utils._pod import sidecar
from ansible_collections.gb10.cluster.plugins.module_utils._pod.evidence import NcclFiles
from ansible_collections.gb10.cluster.plugins.module_utils._pod.gate import Condition

LINES = (
    "NCCL version 2.28.9+cuda13.0",
    "ncclCommInitRankConfig comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId f01000 commId 0x7 - Init START",
    "comm 0x1 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0",
    "ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId f01000 commId 0x7 - Init COMPLETE",
    "Channel 00/0 : 1[0] -> 0[0] [receive] via NET/{net}/0",
    "Connected all rings, use ring PXN 0 GDR 0",
)
GATE = {
    "instance": "g",
    "rank": 0,
    "pods": ["g-0-0", "g-1-0"],
    "rails": [{"device": "mlx0", "interface": "lo", "address": "10.100.0.1", "mtu": 1500}],
    "expect": {"networks": ["IB"], "ranks": 1, "nodes": 2, "min_devices": 1, "complete": True, "gdr": None},
    "rdma": True,
    "port": 9,
    "metrics_port": 0,
}
SIDECAR = {"name": "transport", "ready": True, "state": {"running": {"startedAt": "2026-11-22T12:00:00Z"}}}
STARTED, LATER = "2026-11-22T12:00:00Z", "2026-11-22T12:00:30Z"


class FakeApi:
    """The other rank's pod, and everything that was written."""

    def __init__(self, kind: str = "") -> None:
        self.kind, self.away = kind, False
        self.conditions: list[Condition] = []
        self.times: list[str] = []
        self.events: list[str] = []
        self._lines: list[str] = []
        self.proven = "True"
        self.started = {"g-1-0": STARTED}

    def pod(self, name: str) -> dict[str, Any]:
        said = {"type": "gb10.cluster/transport", "status": self.proven, "lastTransitionTime": LATER, "message": "TCP"}
        state = {"running": {"startedAt": self.started[name]}} if name in self.started else {}
        server = {"name": "sglang", "state": state}
        return {"metadata": {}, "status": {"containerStatuses": [server, SIDECAR], "conditions": [said]}}

    def set_condition(self, condition: Condition, since: str, kind: str = "") -> None:
        assert kind == self.kind
        if self.away:
            raise OSError("no route to host")
        self.conditions.append(condition)
        self.times.append(since)
        mark = "+" if condition.proven else "-"
        self._lines.append(f"{mark}{condition.reason} since {since}: {condition.message}")

    def add_event(self, condition: Condition, prefix: str = "") -> None:
        self.events.append(f"{prefix}{condition.reason}")
        self._lines.append(f"event {self.events[-1]}")

    def taken(self, shown: Callable[[str], str]) -> list[str]:
        """Return what was written since the last call."""
        lines, self._lines = self._lines, []
        return [f"{head}{colon}{shown(text)}" for head, colon, text in (line.partition(": ") for line in lines)]


class Server:
    """The API server as a client in a pod reaches it: notes the requests, and answers what ``answer`` returns."""

    def __init__(self) -> None:
        self.requests: list[urllib.request.Request] = []
        self.asked: list[str] = []
        self.trusted: dict[str, str] = {}
        self.timeouts: list[float] = []
        self.answer: Callable[[str], bytes] = lambda _path: b"{}"

    def open(self, request: urllib.request.Request, timeout: float) -> Any:
        self.requests.append(request)
        self.timeouts.append(timeout)
        path, kind = request.full_url.partition("/namespaces/s/")[2], str(request.get_header("Content-type"))
        body = re.sub(r'"\d{4}-[-T:\d]*Z"', '"now"', (request.data or b"").decode())  # type: ignore[union-attr]
        words = (request.get_method(), path, kind.removeprefix("application/json"), body)
        self.asked.append(" ".join(filter(None, words)))
        answer = io.BytesIO(self.answer(path))
        answer.headers = {"Date": "Sun, 22 Nov 2026 12:00:00 GMT"}  # type: ignore[attr-defined]
        return answer


def page_of(monkeypatch: pytest.MonkeyPatch, gate: sidecar.Gate, *parts: Any, **more: Any) -> Callable[[str], Any]:
    """Return the function that answers for the sidecar's pages, without a server."""
    pages: dict[int, Callable[[str], Any]] = {}
    monkeypatch.setattr(sidecar.api, "serve_pages", pages.__setitem__)
    sidecar.serve_metrics(gate, *parts, **more)
    return pages[gate.metrics_port]


class Rank:
    """One rank with its files, and the number of generations that its sidecar asked for."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.logs, self.sysfs, self.asked = path / "logs", path / "sys", 0
        self.logs.mkdir()
        gate = sidecar.Gate.parse(json.dumps(GATE | {"sysfs_root": str(self.sysfs)}))
        self.api = FakeApi()
        self.watch = sidecar.Watch(gate, NcclFiles(self.logs), self.api)  # type: ignore[arg-type]
        self.port = self.sysfs / "class/infiniband/mlx0/ports/1"
        self.write("gids/3", "0000:0000:0000:0000:0000:ffff:0a64:0001")
        self.write("gid_attrs/types/3", "RoCE v2")
        self.write("counters/port_xmit_data", "25")
        monkeypatch.setattr(generations.Prober, "run", self._ask)
        # The sidecar waits after a slow judgement. On a busy machine it would not judge the next step.
        monkeypatch.setattr(sidecar.time, "monotonic", lambda: 0.0)
        self.now = 0.0

    def _ask(self, _now: float) -> None:
        self.asked += 1

    def write(self, name: str, text: str) -> None:
        (self.port / name).parent.mkdir(parents=True, exist_ok=True)
        (self.port / name).write_text(f"{text}\n")

    def start(self, name: str) -> None:
        """Start the server again as start_rank.py does: the files of the start before are deleted first."""
        for old in self.logs.iterdir():
            if old.is_file():
                old.unlink()
            elif old.name != name:
                shutil.rmtree(old)
        (self.logs / name).mkdir(exist_ok=True)

    def nccl(self, start: str, net: str = "IB", lines: int | str = len(LINES)) -> None:
        self.start(start)
        said = "".join(f"g-0-0:40:40 [0] NCCL INFO {line.format(net=net)}\n" for line in LINES[: int(lines)])
        (self.logs / start / "g-0-0.40").write_text(said)

    def turn(self, seconds: float = 3) -> None:
        """Ask, judge and publish once, as the sidecar's threads do; raise what the API raised after that."""
        self.now += seconds
        failed: Exception | None = None
        try:
            self.watch.ask(self.now)
        except (OSError, HTTPException, ValueError) as error:
            failed = error
        self.watch.step(self.now)
        self.watch.publish(self.now)
        if failed:
            raise failed

    def step(self, seconds: float = 3) -> str:
        self.turn(seconds)
        return self.api.conditions[-1].reason
