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
import sys
import threading
import time
import traceback
import urllib.error
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, NoReturn

from .._common import plain
from .._host.memory_guard import Limits
from .._nccl.causes import blinder
from .._nccl.verdict import expectation, nothing_read
from . import api, evidence, gate
from .api import timestamp
from .evidence import PAGE, Evidence, Judgement, NcclFiles, Signature
from .gate import UNANSWERED, Condition, History, Rail, Seen, decide, render, server_started, unproven
from .watch import Answers, Health, Load, NodeMemory, PodApi

# Run the work of a container in a child process, and start it again when it ends or hangs.
#
# The kubelet starts a container again that ended, or that does not answer its liveness probe, after 10 seconds, and
# after up to five minutes if that happened before. Until then a group that serves would be kept from its clients.

# Seconds between the end of a child and the start of the next one. A readiness probe fails after 15.
_PAUSE = 5.0
# Seconds between two questions, and seconds without an answer after which a child hangs. The liveness probe takes 60.
_ASK, _HANGS = 5.0, 20.0


def lives(port: int) -> bool:
    """Return whether the program at this port of the pod answers ``/live``."""
    try:
        with api.HTTP.open(f"http://127.0.0.1:{port}/live", timeout=3) as answer:
            return bool(answer.status == 200)
    except (OSError, HTTPException):
        return False


def keep(work: Callable[[], None], answers: Callable[[], bool], pause: float = _PAUSE) -> NoReturn:
    """Run ``work`` again and again, each time in a child process, until SIGTERM. ``answers`` tells that it lives."""
    # Never a number that means other processes: 0 is the own group, and 1 the init process.
    child: int | None = None

    def stop(*_signal: object) -> None:
        if child:
            # It may have ended a moment ago.
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)
        raise SystemExit(0)

    # Process 1 of a container ignores SIGTERM unless it has a handler.
    signal.signal(signal.SIGTERM, stop)
    while True:
        # An exception in the middle of a fork is ignored (seen on 2026-11-30 in a hook of module logging), and before
        # ``child`` has its number the child would go on. So a signal waits.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        child = _start(work)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        how = _wait(child, answers, pause)
        child = None
        api.say(f"gb10.cluster transport: the program {how}; it is started again")
        time.sleep(pause)


def _start(work: Callable[[], None]) -> int:
    """Return the process number of a new child; the child itself does not return."""
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _wait(child: int, answers: Callable[[], bool], pause: float) -> str:
    """Return how a child ended; kill one that answered once and does not any more."""
    answered: float | None = None
    asked = time.monotonic()
    while True:
        # Also the children of an earlier child, which process 1 inherits.
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == child:
            return f"ended with status {os.waitstatus_to_exitcode(status)}"
        now = time.monotonic()
        if now - asked >= min(_ASK, pause):
            asked = now
            if answers():
                answered = now
            elif answered is not None and now - answered >= min(_HANGS, 4 * pause):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return "hung and was killed"
        if not ended:
            time.sleep(min(0.5, pause / 5))


_ACCOUNT = Path("/var/run/secrets/gb10")
# Seconds between two readings of GIDs and tokens.
_RAILS_EVERY = 15
# Seconds for the GIDs of new addresses; after them, the gate says that they are missing.
_GIDS = 20
# Pods that rank 0 asks for at the same time. One that gets no answer takes a place for the timeout of a request.
_ASKED_AT_ONCE = 8
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
    limits of the node's memory; without them it is not watched. ``answers`` tells whether the server is asked
    questions: off, report, or enforce.
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
    answers: str = "off"

    @classmethod
    def parse(cls, text: str) -> Gate:
        """Return the settings from JSON."""
        return plain.load(cls, json.loads(text))

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
    api.say(f"gb10.cluster transport: {text}")


@dataclass
class Watch:
    """Judges NCCL's files of one rank and publishes every change.

    ``step`` judges and calls no API, ``ask`` reads the other ranks' pods, ``publish`` writes. Each of them runs in a
    thread of its own, so that an API server that answers slowly or not at all delays no judgement.
    """

    gate: Gate
    files: NcclFiles
    api: PodApi
    history: History = field(default_factory=History)
    text: str = ""
    # When this rank was judged last.
    judged_at: float = field(default_factory=time.monotonic)
    _signature: Signature = ()
    _judge_after: float = 0.0
    _judged: dict[str, Any] = field(default_factory=lambda: nothing_read("NCCL has written nothing yet"))
    _counted: dict[str, Any] = field(default_factory=dict)
    _rails: tuple[frozenset[str], dict[str, int]] = (frozenset(), {})
    _rails_read: float = -_RAILS_EVERY
    _generated: float | None = None
    # The start and the condition that the API server should know, and those that it knows.
    _wanted: tuple[str, Condition] | None = None
    _published: tuple[str, Condition] | None = None
    _since: float = field(default_factory=time.time)
    _written: float = 0.0
    _events: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._prober = gate.Prober(self.gate.port)
        self._judgement = Judgement(self.gate.pod, self.gate.rank, expectation(self.gate.expect or {}))
        pods = self.gate.pods if self.gate.rank == 0 else ()
        self._others = {name: UNANSWERED for name in pods if name != self.gate.pod}

    @property
    def unsaid(self) -> bool:
        """Tell whether the API server does not know yet that this rank is unproven."""
        wanted = self._wanted
        return wanted is not None and not wanted[1].proven and self._published != wanted

    def ask(self, _now: float) -> None:
        """Read the other ranks' pods; raise OSError, HTTPException or ValueError after all were asked.

        A pod that could not be read keeps what is known of it.
        """
        with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
            errors = [error for error in pool.map(self._ask, list(self._others)) if error]
        if errors:
            raise errors[0]

    def _ask(self, name: str) -> Exception | None:
        try:
            self._others[name] = self._other(name)
        except (OSError, HTTPException, ValueError) as error:
            return error
        return None

    def step(self, now: float) -> None:
        """Look once and judge; raise OSError or SubprocessError."""
        seen = self._look(now)
        condition = decide(seen, self.history, self.gate.rails, self.gate.rdma, now)
        self.judged_at = now
        if condition.reason in ("NotProven", "OtherRanks", "CountersSilent") and self.gate.rank == 0:
            self._prober.run(now)
        # A sidecar that started again must not take back the condition of a group that serves, only because the API
        # server has not answered yet.
        if self._published or condition.reason != "OtherRanks" or set(seen.others.values()) - {"", UNANSWERED}:
            self._wanted = seen.start, condition
        # The node's clock may be set back.
        age = max(0.0, time.time() - self._since)
        links = {rail.interface: evidence.link(rail.interface) for rail in self.gate.rails}
        self.text = render(self.gate.labels, condition, seen, age, self.gate.rails, self._counted, links)

    def _look(self, now: float) -> Seen:
        start, changed = self.history.start, self._judgement.changed
        try:
            look = self.files.look()
            start = look.start
            if look.signature != self._signature and (now >= self._judge_after or start != self.history.start):
                begun = time.monotonic()
                self._judged, self._signature = self._judgement.judge(look), look.signature
                # Very long files must not take the server's processor time.
                self._judge_after = now + 20 * (time.monotonic() - begun)
            changed = look.changed or self._judgement.changed
        except OSError as error:
            # A start of the server deletes the files of the start before it. If this stays, the proof is lost.
            self._judged, self._signature = nothing_read(f"NCCL's files can't be read: {error}"), ()
        self._counted = evidence.counted(self.gate.sysfs_root)
        if now - self._rails_read >= _RAILS_EVERY:
            self._rails, self._rails_read = evidence.gids_and_mtus(self.gate.rails, self.gate.sysfs_root), now
            # The server collects its metrics between two tokens, so it is asked rarely.
            self._generated = gate.tokens(self.gate.port) if self.gate.rank == 0 else None
        gids, mtus = self._rails
        down = evidence.down(self.gate.rails, self.gate.sysfs_root, self.gate.rdma)
        sent = evidence.sent(self.gate.rails, self._counted["rdma"])
        blind = "" if self._judged["satisfied"] else blinder(self.files.environment())
        return Seen(start, self._judged, changed, blind, gids, mtus, down, sent, self._generated, dict(self._others))

    def _other(self, name: str) -> str:
        try:
            return unproven(self.api.pod(name))
        except urllib.error.HTTPError as error:
            if error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                # The condition of this pod may still be written, and would stand on what was known before.
                return f"the API server refuses to show its pod ({error.code} {error.reason})"
            # Without an answer of the API nothing new is known, and nothing could be written.
            if error.code != HTTPStatus.NOT_FOUND:
                raise
            return "its pod is missing"

    def publish(self, now: float) -> None:
        """Write the condition if it changed, or not for a while; raise OSError, HTTPException or ValueError."""
        if self._wanted is None:
            return
        (start, condition), before = self._wanted, self._published
        known = before == (start, condition)
        if known and now - self._written < _WRITE_EVERY:
            return
        last_start, last = before or ("", Condition(False, "", ""))
        same = before is not None and (last_start, last.proven) == (start, condition.proven)
        since = self._since if same else time.time()
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


def serve_metrics(
    gate: Gate,
    watch: Watch | None,
    memory: NodeMemory | None = None,
    evidence: Evidence | None = None,
    answers: Answers | None = None,
    health: Health | None = None,
    load: Load | None = None,
) -> None:
    """Answer Prometheus, the kubelet's probes and the supervisor in threads of their own."""

    def page(path: str) -> tuple[int, str]:
        if path == PAGE and evidence:
            return evidence.answer()
        watched = [part for part in (watch, memory) if part]
        lives = all(time.monotonic() - part.judged_at < _HUNG for part in watched)
        # Without the API server, only the kubelet can take the pod out of the Service.
        ready = lives and not (watch and watch.unsaid) and not (answers and answers.closes)
        states = {"/metrics": lives, "/live": lives, "/ready": ready}
        if path not in states:
            return 404, ""
        text = "".join(part.text for part in (*watched, answers, health, load) if part)
        return 200 if states[path] else 503, text if states[path] and path == "/metrics" else ""

    api.serve_pages(gate.metrics_port, page)


def repeat(files: NcclFiles) -> None:
    """Write what NCCL has written since the last call; raise OSError."""
    for block in files.new_lines():
        sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()


def forever(interval: float, step: Callable[[float], object]) -> None:
    """Do a step, wait, and repeat; a step that fails is tried again.

    Any error: a thread that ended, or a container that crashes, would keep a group that serves from its clients until
    the kubelet starts it again, up to five minutes later.
    """
    while True:
        try:
            step(time.monotonic())
        except Exception as error:
            # A start of the server deletes the files of the start before it, and the API may be away for a while.
            say(f"trying again: {error if isinstance(error, OSError) else repr(error)}")
        time.sleep(interval)


def main() -> None:
    """Repeat NCCL's lines and keep the gate until the pod ends, in a process that is started again if it ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nccl-logs", required=True, type=Path, metavar="DIRECTORY")
    parser.add_argument("--state", type=Path, metavar="DIRECTORY", help="what this container keeps while the pod lives")
    parser.add_argument("--interval", type=float, default=3)
    parser.add_argument("--gate", type=Gate.parse, metavar="JSON", help="without it, the lines are only repeated")
    options = parser.parse_args()
    gate = options.gate
    keep(lambda: work(options), lambda: gate is None or lives(gate.metrics_port))


def _completed(gate: Gate) -> tuple[Rail, ...]:
    """Return the rails of a gate; wait for the GIDs of addresses that the pod has just got."""
    until = time.monotonic() + _GIDS
    while True:
        rails = evidence.completed(gate.rails, gate.sysfs_root)
        if not gate.rdma or all(rail.device for rail in rails) or time.monotonic() >= until:
            return rails
        time.sleep(1)


def work(options: argparse.Namespace) -> None:
    """Repeat NCCL's lines and keep the gate; does not return."""
    files = NcclFiles(options.nccl_logs)
    if gate := options.gate:
        gate = replace(gate, rails=_completed(gate))
        api = PodApi(_ACCOUNT, os.environ["POD_NAMESPACE"], gate.pod, os.environ["POD_UID"])
        watch = Watch(gate, NcclFiles(options.nccl_logs), api) if gate.expect else None
        load = Load(options.nccl_logs, api, gate.labels)
        memory = NodeMemory(gate.memory, api, gate.labels, phase=lambda: load.phase) if gate.memory else None
        answers = None
        if gate.answers != "off":
            answers = Answers(options.nccl_logs, gate.port, api, gate.labels, gate.answers == "enforce")
        health = Health(gate.rails, gate.sysfs_root, api, gate.labels, options.nccl_logs, options.state)
        evidence = Evidence(options.nccl_logs, gate.rails, gate.sysfs_root)
        serve_metrics(gate, watch, memory, evidence, answers, health, load)
        steps = [part.step for part in (load, memory, answers, health) if part]
        for step in (*steps, *((watch.step, watch.ask, watch.publish) if watch else ())):
            threading.Thread(target=forever, args=(options.interval, step), daemon=True).start()
    forever(options.interval, lambda _now: repeat(files))


if __name__ == "__main__":
    main()
