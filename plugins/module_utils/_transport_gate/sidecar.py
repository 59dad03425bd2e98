# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program beside the server of every rank. Runs in the pod; standard library only.

It repeats the lines that NCCL writes to files, so that ``kubectl logs POD -c transport`` shows them. With ``--gate`` it
also judges them and keeps a condition of the pod, its events and metrics up to date.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPException
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from .._common.memory import Limits
from .._in_pod import pages
from .._in_pod.api import timestamp
from .._nccl.overall import expectation, nothing_read
from .._nccl.sources import SourceError, Sources, judge_sources
from .._rdma.counters import SCRIPT, parse_counters
from .._rdma.gids import ROCE_V2, parse_state, read_devices
from .._sriov.physical_functions import read_int, read_link, read_text
from .api import PodApi
from .metrics import render
from .nccl_files import NcclFiles, Signature, open_file
from .node_memory import NodeMemory
from .state import Condition, History, Rail, Seen, decide, server_started, unproven

_ACCOUNT = Path("/var/run/secrets/gb10")
_PROBE = "/opt/gb10/generate_probe.py"
_TOKENS = 64
# Seconds between two generations while the group is not proven, and between two readings of GIDs and tokens.
_PROBE_EVERY, _RAILS_EVERY = 10, 15
# Seconds without a judgement after which the probes and the metrics fail: this program hangs.
_HUNG = 30
# The condition is also written when nothing changed, because a restored backup of etcd contains an old condition.
_WRITE_EVERY = 300
# A link that goes up and down for hours must not fill etcd with events: at most this many in so many seconds.
_EVENTS, _EVENTS_IN = 10, 600


@dataclass(frozen=True)
class Gate:
    """The settings of the gate. ``pods`` are the group's pods in the order of the ranks.

    Without ``expect`` there is no transport to prove: the group has one node, or the gate is off. ``memory`` are the
    limits of the node's memory; without them it is not watched.
    """

    instance: str
    rank: int
    pods: tuple[str, ...]
    rails: tuple[Rail, ...]
    expect: dict[str, Any] | None
    rdma: bool
    port: int
    metrics_port: int
    sysfs_root: str
    memory: Limits | None = None

    @classmethod
    def parse(cls, text: str) -> Gate:
        """Return the settings from JSON."""
        given = json.loads(text)
        memory = Limits(**given["memory"]) if given.get("memory") else None
        rails = tuple(Rail(**rail) for rail in given["rails"])
        return cls(**given | {"pods": tuple(given["pods"]), "rails": rails, "memory": memory})

    @property
    def pod(self) -> str:
        """Return the name of the own pod."""
        return self.pods[self.rank]

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels of all metrics."""
        return {"instance": self.instance, "rank": str(self.rank)}


def say(text: str) -> None:
    """Write a line that is not NCCL's."""
    pages.say(f"gb10.cluster transport: {text}")


def _has_carrier(interface: str) -> bool:
    # The kernel refuses this read while the interface is set down.
    return read_int(Path("/sys/class/net", interface, "carrier")) == 1


def _link(interface: str) -> dict[str, int | None]:
    # Some drivers, veth for one, report a speed without carrier.
    return read_link("/sys", interface) | ({} if _has_carrier(interface) else {"speed": None})


class Prober:
    """Makes the server generate a few tokens, because NCCL connects only when it is used."""

    def __init__(self, port: int) -> None:
        self._command = [sys.executable, _PROBE, "--port", str(port), "--measure", str(_TOKENS), "--timeout", "20"]
        self._running: subprocess.Popen[bytes] | None = None
        self._not_before = 0.0

    def run(self, now: float) -> None:
        """Start a generation, unless one still runs or the last one began a moment ago."""
        if now >= self._not_before and (self._running is None or self._running.poll() is not None):
            self._not_before = now + _PROBE_EVERY
            # Before the server listens, the probe fails at once.
            quiet = subprocess.DEVNULL
            # pylint: disable-next=ansible-bad-function
            self._running = subprocess.Popen(self._command, stdout=quiet, stderr=quiet)


@dataclass
class Watch:
    """Judges NCCL's files of one rank and publishes every change."""

    gate: Gate
    files: NcclFiles
    api: PodApi
    history: History = field(default_factory=History)
    text: str = ""
    # When this rank was judged last, and whether the API server does not know yet that it is unproven.
    judged_at: float = field(default_factory=time.monotonic)
    unsaid: bool = False
    _signature: Signature = ()
    _judge_after: float = 0.0
    _judged: dict[str, Any] = field(default_factory=lambda: nothing_read("NCCL has written nothing yet"))
    _counted: dict[str, Any] = field(default_factory=dict)
    _rails: tuple[frozenset[str], dict[str, int]] = (frozenset(), {})
    _rails_read: float = -_RAILS_EVERY
    _generated: float | None = None
    _published: tuple[str, Condition] | None = None
    _since: float = field(default_factory=time.time)
    _written: float = 0.0
    _events: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._prober = Prober(self.gate.port)
        pods = self.gate.pods if self.gate.rank == 0 else ()
        self._others = {name: "the API server has not answered yet" for name in pods if name != self.gate.pod}

    def step(self, now: float) -> None:
        """Look once, and publish what changed; raise OSError, HTTPException or ValueError."""
        failed: Exception | None = None
        try:
            self._others = {name: self._other(name) for name in self._others}
        except (OSError, HTTPException, ValueError) as error:
            # What this rank sees itself must reach the metrics also while the API is away.
            failed = error
        seen = self._look(now)
        condition = decide(seen, self.history, self.gate.rails, self.gate.rdma, now)
        self.judged_at = now
        if condition.reason in ("NotProven", "OtherRanks", "CountersSilent") and self.gate.rank == 0:
            self._prober.run(now)
        try:
            self._publish(seen.start, condition)
        finally:
            self.unsaid = not condition.proven and self._published != (seen.start, condition)
            age = time.time() - self._since
            links = {rail.interface: _link(rail.interface) for rail in self.gate.rails}
            self.text = render(self.gate.labels, condition, seen, age, self.gate.rails, self._counted, links)
        if failed:
            raise failed

    def _look(self, now: float) -> Seen:
        start = self.history.start
        try:
            signature = self.files.signature()
            start, files = self.files.current()
            if signature != self._signature and (now >= self._judge_after or start != self.history.start):
                begun = time.monotonic()
                self._judged, self._signature = self._judge(files), signature
                # Very long files must not take the server's processor time.
                self._judge_after = now + 20 * (time.monotonic() - begun)
        except OSError as error:
            # A start of the server deletes the files of the start before it. If this stays, the proof is lost.
            self._judged, self._signature = nothing_read(f"NCCL's files can't be read: {error}"), ()
        command = ["/bin/sh", "-c", SCRIPT, "sh", self.gate.sysfs_root, "/sys"]
        # pylint: disable-next=ansible-bad-function
        ran = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        self._counted = parse_counters(ran.stdout)
        if now - self._rails_read >= _RAILS_EVERY:
            self._rails, self._rails_read = self._read_rails(), now
            # The server collects its metrics between two tokens, so it is asked rarely.
            self._generated = self._tokens() if self.gate.rank == 0 else None
        gids, mtus = self._rails
        return Seen(start, self._judged, gids, mtus, self._down(), self._moved(), self._generated, self._others)

    def _judge(self, files: list[Path]) -> dict[str, Any]:
        opened: Sources = {self.gate.pod: [open_file(path) for path in files]}
        try:
            places = {self.gate.pod: self.gate.rank}
            return judge_sources(opened, expectation(self.gate.expect or {}), places, one_start=True)[0]
        except SourceError as error:
            return nothing_read(str(error))

    def _read_rails(self) -> tuple[frozenset[str], dict[str, int]]:
        """Return the planned addresses that have a RoCE v2 GID, and the MTUs of the interfaces."""
        wanted = {(rail.device, rail.address) for rail in self.gate.rails}
        found = {
            gid.ipv4
            for device in read_devices(self.gate.sysfs_root)
            for port in device.ports
            for gid in port.gids
            if gid.type == ROCE_V2 and gid.ipv4 and (device.name, gid.ipv4) in wanted
        }
        mtus = {rail.interface: read_int(Path("/sys/class/net", rail.interface, "mtu")) for rail in self.gate.rails}
        return frozenset(found), {name: mtu for name, mtu in mtus.items() if mtu is not None}

    def _down(self) -> tuple[str, ...]:
        """Return what is wrong with each rail that has no link."""
        found = []
        for rail in self.gate.rails:
            # An RDMA device of a VF has one port.
            port = Path(self.gate.sysfs_root, "class/infiniband", rail.device, "ports/1")
            state = parse_state(read_text(port / "state"))
            if not _has_carrier(rail.interface):
                found.append(f"{rail.interface} has no carrier")
            elif self.gate.rdma and state not in (None, "ACTIVE"):
                found.append(f"{rail.device} has port state {state}")
        return tuple(found)

    def _moved(self) -> int | None:
        devices = [self._counted["rdma"].get(rail.device, {}) for rail in self.gate.rails]
        sent = [counters["xmit_bytes"] for counters in devices if "xmit_bytes" in counters]
        return sum(sent) if sent else None

    def _tokens(self) -> float | None:
        """Return the number of tokens that the server has generated; None without --enable-metrics."""
        try:
            with urllib.request.build_opener().open(f"http://127.0.0.1:{self.gate.port}/metrics", timeout=5) as answer:
                lines = answer.read().decode(errors="replace").splitlines()
            values = [line.rpartition(" ")[2] for line in lines if line.startswith("sglang:generation_tokens_total")]
            return sum(map(float, values)) if values else None
        except (OSError, HTTPException, ValueError):
            return None

    def _other(self, name: str) -> str:
        try:
            return unproven(self.api.pod(name))
        except urllib.error.HTTPError as error:
            # Without an answer of the API nothing new is known, and nothing could be written.
            if error.code != HTTPStatus.NOT_FOUND:
                raise
            return "its pod is missing"

    def _publish(self, start: str, condition: Condition) -> None:
        before, now = self._published, time.time()
        known = before == (start, condition)
        if known and now - self._written < _WRITE_EVERY:
            return
        last_start, last = before or ("", Condition(False, "", ""))
        same = before is not None and (last_start, last.proven) == (start, condition.proven)
        since = self._since if same else now
        stamp = timestamp(since)
        if condition.proven:
            # If the node's clock was set back after the server's start, the proof would seem older than that start.
            stamp = max(stamp, server_started(self.api.pod(self.gate.pod)))
        self.api.set_condition(condition, stamp)
        # A start that has not connected yet is no event; a proof that is lost without a start is one.
        lost = last.proven and last_start == start
        if condition.reason != last.reason and (lost or condition.reason not in ("NotStarted", "NotProven")):
            self._events = [when for when in self._events if now - when < _EVENTS_IN]
            if len(self._events) < _EVENTS:
                self._events.append(now)
                self.api.add_event(condition)
        # Only now: if one of the requests failed, both are sent again.
        self._since, self._published, self._written = since, (start, condition), now
        if not known:
            say(f"{condition.reason}: {condition.message}")


def serve_metrics(gate: Gate, watch: Watch | None, memory: NodeMemory | None = None) -> ThreadingHTTPServer:
    """Answer Prometheus and the kubelet's probes in a thread of its own."""

    def page(path: str) -> tuple[int, str]:
        watched = [part for part in (watch, memory) if part]
        lives = time.monotonic() - watched[0].judged_at < _HUNG
        # Without the API server, only the kubelet can take the pod out of the Service.
        answers = {"/metrics": lives, "/live": lives, "/ready": lives and not (watch and watch.unsaid)}
        if path not in answers:
            return 404, ""
        text = "".join(part.text for part in watched)
        return 200 if answers[path] else 503, text if answers[path] and path == "/metrics" else ""

    return pages.serve_pages(gate.metrics_port, page)


def _stop(*_signal: object) -> None:
    raise SystemExit(0)


def repeat(files: NcclFiles) -> None:
    """Write what NCCL has written since the last call; raise OSError."""
    for block in files.new_lines():
        sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()


def attempt(step: Callable[..., object], *arguments: object) -> None:
    """Do one step, and say why it failed: a step that fails must not keep the others from their work."""
    try:
        step(*arguments)
    except (OSError, HTTPException, ValueError, subprocess.SubprocessError) as error:
        # A start of the server deletes the files of the start before it, and the API may be away for a while.
        say(f"trying again: {error}")


def main() -> None:
    """Repeat NCCL's lines and keep the gate until the pod ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nccl-logs", required=True, type=Path, metavar="DIRECTORY")
    parser.add_argument("--interval", type=float, default=3)
    parser.add_argument("--gate", type=Gate.parse, metavar="JSON", help="without it, the lines are only repeated")
    options = parser.parse_args()
    # Process 1 of a container ignores SIGTERM unless it has a handler.
    signal.signal(signal.SIGTERM, _stop)
    files = NcclFiles(options.nccl_logs)
    watch = memory = None
    if gate := options.gate:
        api = PodApi(_ACCOUNT, os.environ["POD_NAMESPACE"], gate.pod, os.environ["POD_UID"])
        watch = Watch(gate, NcclFiles(options.nccl_logs), api) if gate.expect else None
        memory = NodeMemory(gate.memory, api, gate.labels) if gate.memory else None
        serve_metrics(gate, watch, memory)
    while True:
        if memory:
            # First, because the other steps wait for processes and for other pods.
            attempt(memory.step, time.monotonic())
        attempt(repeat, files)
        if watch:
            attempt(watch.step, time.monotonic())
        time.sleep(options.interval)


if __name__ == "__main__":
    main()
