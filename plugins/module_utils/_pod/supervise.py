# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Restart all ranks of a serving group together when the head is stuck or a rank was lost.

Runs in its own pod, whose RBAC permits only reading and deleting the group's pods and writing events; standard library
only. If the process of a rank ends, the kubelet restarts it and the other ranks end by themselves within seconds. Six
cases need this program: a frozen rank (the head answers 503 forever and never exits), a start that makes no progress, a
rank that restarted without the others noticing, a rank that crashes again and again in its pod or can't be started
there again, a node that runs out of memory, and a server whose answers are noise.
"""

from __future__ import annotations

import argparse
import http.client
import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .._kube.labels import ANSWERS, ANSWERS_OUT, HUNG, MEMORY, MEMORY_OUT, SIDECAR, SUPERVISOR, progress
from .api import HTTP, InPodApi, Pulse, say, serve_pages
from .hang import judge

# A head is warm once it generated this many tokens in each of so many checks (five minutes). Health requests generate
# one token each, so they do not count as work.
BUSY_TOKENS = 50
WARM_CHECKS = 60
GENERATED = "sglang:generation_tokens_total"
# Metrics that change while the head's scheduler works, and do not change because a client sends a request. A long
# prefill changes no counter of finished requests, but realtime_tokens_total or, in releases without it, the tokens in
# use.
WORK = (
    GENERATED,
    "sglang:realtime_tokens_total",
    "sglang:cuda_graph_passes_total",
    "sglang:num_used_tokens",
    "sglang:token_usage",
)


@dataclass(frozen=True)
class Seen:
    """The state of one pod; ``incarnation`` changes whenever its process restarts.

    ``down`` tells that its process ended and the kubelet has not started the next one yet, or can't. ``memory`` says
    why the group has to stop before the pod's node freezes, ``garbage`` that the head answers with noise and gets no
    requests.
    """

    name: str
    started: bool = False
    running: bool = False
    incarnation: str = ""
    address: str = ""
    memory: str = ""
    down: bool = False
    garbage: str = ""


@dataclass(frozen=True)
class Limits:
    """How long a head may be stuck or a group partly new, and how long to wait between two restarts, in seconds.

    A head is stuck while it answers 503 and its counters do not change, so ``stuck_after`` has to be longer than the
    slowest single step of a warm head. Until a head is warm its steps may compile kernels (six minutes for one step
    were seen), and ``first_step`` applies. A start is stuck if no rank has written a log line for ``start`` seconds.

    After ``crashes`` crashes of one rank the group gets new pods: the kubelet starts a process again and again in the
    pod that it has, and only a new pod gets its VFs and their addresses anew. So it does after ``down`` seconds without
    a process; the kubelet waits 300 between two starts at most.
    """

    stuck_after: float = 120
    first_step: float = 1800
    start: float = 3600
    part_after: float = 30
    backoff_first: float = 30
    backoff_most: float = 600
    calm_after: float = 600
    crashes: int = 6
    down: float = 360


@dataclass
class History:
    """What the supervisor remembers between two checks."""

    incarnations: tuple[str, ...] = ()
    work: str = ""
    tokens: float = 0.0
    warm: int = 0
    stuck_since: float | None = None
    said: list[str] | None = None
    silent_since: float | None = None
    part_since: float | None = None
    down_since: dict[str, float] = field(default_factory=dict)
    # The restarts of each pod's process when it was first seen or last healthy, by the pod's uid.
    restarts_before: dict[str, int] = field(default_factory=dict)
    healthy_since: float | None = None
    # The group was restarted because of its answers. If that does not help, another restart will not.
    garbled: bool = False
    restarts: int = 0
    not_before: float = 0.0


def is_starting(seen: list[Seen]) -> bool:
    """Return whether all ranks run, and some are still loading."""
    return all(pod.running for pod in seen) and not all(pod.started for pod in seen)


def decide(
    seen: list[Seen],
    healthy: bool | None,
    history: History,
    limits: Limits,
    now: float,
    work: str = "",
    said: list[str] | None = None,
) -> str:
    """Return why the whole group must restart now, or an empty string; update ``history``.

    ``healthy`` is the head's answer, None if it was not asked because some rank has not started yet; ``work`` are its
    metrics, empty if they are unknown. ``said`` is the last line that each loading rank's start wrote, or None if a log
    can't be read: then the start may go on.
    """
    incarnations = tuple(pod.incarnation for pod in seen)
    history.restarts_before = dict(map(_counted, seen)) | history.restarts_before
    if work:
        tokens = generated(work)
        history.warm = history.warm + (tokens - history.tokens >= BUSY_TOKENS) if tokens >= history.tokens else 0
        history.tokens = tokens
    if not is_starting(seen):
        history.silent_since = None
    elif history.silent_since is None or said is None or said != history.said:
        history.silent_since = now
    history.said = said
    for pod in seen:
        if pod.memory and now >= history.not_before:
            return f"{pod.name}: {pod.memory}"
        if pod.garbage and now >= history.not_before and not history.garbled:
            history.garbled = True
            return f"{pod.name}: {pod.garbage}"
    if all(pod.started for pod in seen) and healthy:
        history.incarnations = incarnations
        history.stuck_since = history.part_since = None
        history.restarts_before = dict(map(_counted, seen))
        history.healthy_since = history.healthy_since or now
        if now - history.healthy_since >= limits.calm_after:
            history.restarts = 0
            history.garbled = any(pod.garbage for pod in seen)
        return ""
    history.healthy_since = None
    running = all(pod.running for pod in seen)
    # A rank that crashed is part of a group also while the kubelet waits before its next start.
    present = all(pod.running or pod.down for pod in seen)
    stuck = all(pod.started for pod in seen)
    working = bool(work) and work != history.work
    history.work = work or history.work
    history.stuck_since = (now if working else history.stuck_since or now) if stuck else None
    changed = [now_is != was for now_is, was in zip(incarnations, history.incarnations, strict=False)]
    part = present and any(changed) and not all(changed)
    if running and not part:
        # Running ranks that all restarted, or none of which did, are one group, even while they are still loading.
        history.incarnations = incarnations
    history.part_since = (history.part_since or now) if part else None
    history.down_since = {pod.name: history.down_since.get(pod.name, now) for pod in seen if pod.down}
    if now < history.not_before:
        return ""
    old = [pod.name for pod, new in zip(seen, changed, strict=False) if not new]
    return _overdue(history, limits, now, old) or _crashes(seen, history, limits)


def hangs(seen: list[Seen], history: History) -> bool:
    """Tell whether a group that has to restart runs as one, so that what its ranks wait for is a question."""
    one_group = history.part_since is None and all(pod.running for pod in seen)
    return one_group and not any(pod.memory or pod.garbage for pod in seen)


def _counted(pod: Seen) -> tuple[str, int]:
    """Return the uid of a pod and how often its process was restarted."""
    uid, _slash, restarts = pod.incarnation.partition("/")
    return uid, int(restarts or 0)


def _crashes(seen: list[Seen], history: History, limits: Limits) -> str:
    """Return which rank crashed too often in its pod since the group was healthy, or an empty string."""
    for pod in seen:
        uid, restarts = _counted(pod)
        crashes = restarts - history.restarts_before[uid]
        if crashes >= limits.crashes:
            return f"{pod.name} crashed {crashes} times in the same pod; a new pod gets its VFs and addresses anew"
    return ""


def _overdue(history: History, limits: Limits, now: float, old: list[str]) -> str:
    """Return which limit is over, or an empty string; ``old`` are the ranks that did not restart."""
    patience = limits.stuck_after if history.warm >= WARM_CHECKS else max(limits.first_step, limits.stuck_after)
    if history.stuck_since is not None and now - history.stuck_since >= patience:
        return f"the head has been stuck for {now - history.stuck_since:.0f} s"
    if history.silent_since is not None and now - history.silent_since >= limits.start:
        return f"the start makes no progress: no rank has written a log line for {now - history.silent_since:.0f} s"
    if history.part_since is not None and now - history.part_since >= limits.part_after:
        return f"some ranks are new while {', '.join(old)} still belong to the old group"
    for name, since in history.down_since.items():
        if now - since >= limits.down:
            return f"{name} has had no process for {now - since:.0f} s; a new pod gets its VFs and devices anew"
    return ""


def generated(work: str) -> float:
    """Return the number of generated tokens in the head's metrics."""
    return sum(float(line.rpartition(" ")[2]) for line in work.splitlines() if line.startswith(GENERATED))


def acted(history: History, limits: Limits, now: float) -> float:
    """Record a restart; return the least number of seconds until the next one."""
    pause: float = min(limits.backoff_first * 2**history.restarts, limits.backoff_most)
    history.restarts += 1
    history.not_before = now + pause
    history.incarnations = ()
    history.stuck_since = history.silent_since = history.part_since = history.healthy_since = None
    history.down_since = {}
    history.warm, history.tokens = 0, 0.0
    return pause


def crashed(seen: list[Seen], before: dict[str, str]) -> list[str]:
    """Return the pods whose process the kubelet restarted since the last check; update ``before``."""
    found = []
    for pod in seen:
        if not pod.incarnation:
            continue
        uid = pod.incarnation.partition("/")[0]
        was = before.get(pod.name, "")
        was = was if was.startswith(f"{uid}/") else f"{uid}/0"
        if was != pod.incarnation:
            found.append(pod.name)
        before[pod.name] = pod.incarnation
    return found


# Reasons of the kubelet for a process that it starts later, or can't start, such as one whose device is gone.
NOT_STARTED = ("CrashLoopBackOff", "CreateContainerError", "RunContainerError")


def read_pod(name: str, pod: dict[str, Any]) -> Seen:
    """Return the state of a pod; a pod that is being deleted counts as gone."""
    if pod["metadata"].get("deletionTimestamp"):
        return Seen(name)
    status = pod.get("status", {})
    container: dict[str, Any] = next((c for c in status.get("containerStatuses") or [] if c["name"] == "sglang"), {})
    now: dict[str, Any] = container.get("state", {})
    running = "running" in now
    waits = now.get("waiting", {}).get("reason") in NOT_STARTED
    conditions = {one["type"]: one for one in status.get("conditions") or [] if one.get("status") == "False"}
    memory, answers = conditions.get(MEMORY, {}), conditions.get(ANSWERS, {})
    return Seen(
        name=name,
        started=running and bool(container.get("started")),
        running=running,
        incarnation=f"{pod['metadata']['uid']}/{container.get('restartCount', 0)}",
        address=status.get("podIP", ""),
        memory=str(memory.get("message")) if memory.get("reason") == MEMORY_OUT else "",
        down=waits or "terminated" in now,
        garbage=str(answers.get("message")) if answers.get("reason") == ANSWERS_OUT else "",
    )


# After one rank crashes the others follow one by one, so one failure can leave a set of logs per rank.
KEPT_SETS, KEPT_LINES = 30, 400
SHOWN_LINES = 20
# Lines of a rank's log of which the last one shows whether its start goes on: probes cause a line every few seconds.
LAST_LINES = 50
# Bytes of a rank's evidence that are read; characters of a finding, of which an event takes a thousand.
EVIDENCE_BYTES, LONGEST_FINDING = 1 << 17, 900


class SupervisorApi(InPodApi):
    """The API calls that the supervisor's Role permits."""

    def see(self, name: str) -> Seen:
        """Return the state of a pod, which may not exist."""
        pod = self.find("GET", self.core(f"pods/{name}"))
        return Seen(name) if pod is None else read_pod(name, pod)

    def log(self, name: str, previous: bool) -> str:
        """Return the end of a pod's log, with ``previous`` that of the process before the running one."""
        # The sidecar, which repeats NCCL's lines, keeps running when the server restarts.
        return self._log(name, SIDECAR, False) + self._log(name, "sglang", previous)

    def said(self, names: list[str]) -> list[str] | None:
        """Return the last line that each server's start wrote, or None if a log can't be read."""
        try:
            logs = [self._read_log(name, "sglang", LAST_LINES, False) for name in names]
        except (OSError, http.client.HTTPException):
            return None
        return [line for log in logs for line in progress(log.splitlines())[-1:]]

    def tell(self, pod: Seen, reason: str, message: str) -> None:
        """Record an event about a pod."""
        uid = pod.incarnation.partition("/")[0]
        about = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "namespace": self.namespace, "uid": uid}
        self.record_event(about, reason, message, True, SUPERVISOR)

    def _log(self, name: str, container: str, previous: bool) -> str:
        try:
            return self._read_log(name, container, KEPT_LINES, previous)
        except (OSError, http.client.HTTPException) as error:
            return f"(no log: {error})\n"

    def _read_log(self, name: str, container: str, lines: int, previous: bool) -> str:
        query = f"container={container}&tailLines={lines}&previous={str(previous).lower()}"
        return self.read("GET", self.core(f"pods/{name}/log?{query}")).decode(errors="replace")

    def delete(self, name: str) -> None:
        """Delete a pod, which may be gone already."""
        self.find("DELETE", self.core(f"pods/{name}"), {"gracePeriodSeconds": 10})


def head_is_healthy(address: str, port: int) -> bool:
    """Request a token: 200 after about a second if all ranks produced it, 503 after 20 s if not.

    /health does the same, but always answers 200 with SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=false.
    """
    try:
        with HTTP.open(f"http://{address}:{port}/health_generate", timeout=25) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def work_done(address: str, port: int) -> str:
    """Return the head's metrics about its work, empty if there are none (no ``--enable-metrics``, no answer)."""
    try:
        with HTTP.open(f"http://{address}:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return ""
    return "\n".join(line for line in text.splitlines() if line.startswith(WORK))


def ask_ranks(addresses: list[str], port: int, seconds: float) -> list[Any]:
    """Return the evidence of each rank, None of those that did not give it within so many seconds in all."""
    found: list[Any] = [None] * len(addresses)

    def ask(rank: int) -> None:
        try:
            with HTTP.open(f"http://{addresses[rank]}:{port}/hang", timeout=seconds) as answer:
                found[rank] = json.loads(answer.read(EVIDENCE_BYTES))
        except Exception as error:
            # Any error: a rank that answers nonsense is one that does not answer.
            say(f"rank {rank} says nothing about the hang: {repr(error)[:200]}")

    threads = [threading.Thread(target=ask, args=(rank,), daemon=True) for rank in range(len(addresses))]
    until = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return list(found)


def explain(api: SupervisorApi, seen: list[Seen], options: argparse.Namespace) -> None:
    """Say, record and save why a group hangs, within a limited time; an error must not keep it from its restart."""
    try:
        addresses = [pod.address for pod in seen]
        given = ask_ranks(addresses, options.evidence_port, options.evidence_seconds)
        text = "; ".join(judge(given, addresses))[:LONGEST_FINDING]
        say(f"{HUNG}{text}")
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        kept = f"{text}\n{json.dumps(given, indent=1)}\n"
        (options.logs / f"{stamp}-hang.log").write_text(kept, encoding="ascii", errors="replace")
        api.tell(seen[0], "GroupHung", text)
    except Exception as error:
        say(f"the hang could not be told: {repr(error)[:200]}")


def keep_logs(api: SupervisorApi, pods: list[str], directory: Path, previous: bool = False) -> None:
    """Save and print the end of each pod's log: it is lost when the pod is deleted or its process crashes again.

    If the directory can't be written, only say so: the group has to restart in any case.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    texts = {name: api.log(name, previous) for name in pods}
    for name, text in texts.items():
        say(f"last lines of {name}:\n" + "\n".join(f"    {line}" for line in text.splitlines()[-SHOWN_LINES:]))
    try:
        for name, text in texts.items():
            (directory / f"{stamp}-{name}.log").write_text(text, encoding="utf-8")
        stamps = sorted({path.name.partition("-")[0] for path in directory.glob("*.log")})
        for path in directory.glob("*.log"):
            if path.name.partition("-")[0] in stamps[:-KEPT_SETS]:
                path.unlink()
    except OSError as error:
        say(f"the logs can't be saved: {error}")


def check(
    api: SupervisorApi,
    pods: list[str],
    history: History,
    before: dict[str, str],
    options: argparse.Namespace,
    limits: Limits,
) -> None:
    """Check a group and restart it if needed."""
    seen = [api.see(name) for name in pods]
    if restarted := crashed(seen, before):
        say(f"restarted by the kubelet: {', '.join(restarted)}")
        keep_logs(api, restarted, options.logs, previous=True)
    healthy = None
    if all(pod.started for pod in seen):
        healthy = head_is_healthy(seen[0].address, options.port)
    work = work_done(seen[0].address, options.port) if healthy is not None else ""
    said = api.said([pod.name for pod in seen if not pod.started]) if is_starting(seen) else []
    why = decide(seen, healthy, history, limits, time.monotonic(), work, said)
    if why:
        say(f"restarting the group: {why}")
        if options.evidence_port and hangs(seen, history):
            explain(api, seen, options)
        keep_logs(api, pods, options.logs)
        # Rank 0 first: from SGLang 0.5.21 on a worker ignores SIGTERM until the head is gone.
        for name in pods:
            api.delete(name)
        pause = acted(history, limits, time.monotonic())
        say(f"all {len(pods)} ranks deleted; the next restart not before {pause:.0f} s")


def watch(api: SupervisorApi, options: argparse.Namespace, limits: Limits, pulse: Pulse) -> None:
    """Check every group, and repeat; a check that fails is tried again."""
    groups: list[tuple[list[str], History, dict[str, str]]] = [(pods, History(), {}) for pods in options.pods]
    while True:
        for pods, history, before in groups:
            try:
                check(api, pods, history, before, options, limits)
            except (OSError, http.client.HTTPException, ValueError) as error:
                say(f"{pods[0]} and its group could not be checked, trying again: {error!r}")
        pulse.beat()
        time.sleep(options.interval)


def main() -> None:
    """Watch the groups until the pod ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namespace", required=True)
    parser.add_argument(
        "--pods",
        required=True,
        action="append",
        type=lambda text: text.split(","),
        help="of one group in rank order; give it again for another group",
    )
    parser.add_argument("--port", required=True, type=int)
    parser.add_argument("--live-port", required=True, type=int, help="of the page that says that checks go on")
    parser.add_argument("--interval", type=float, default=5)
    parser.add_argument("--stuck-after", type=float, default=Limits.stuck_after)
    parser.add_argument("--first-step-timeout", type=float, default=Limits.first_step)
    parser.add_argument("--start-timeout", type=float, default=Limits.start)
    parser.add_argument("--evidence-port", type=int, help="of the page with which a rank tells about a hang")
    parser.add_argument("--evidence-seconds", type=float, default=20)
    parser.add_argument("--logs", type=Path, default=Path("/var/log/group"))
    options = parser.parse_args()
    say(f"watching {'; '.join(map(', '.join, options.pods))}")
    limits = Limits(options.stuck_after, options.first_step_timeout, options.start_timeout)
    pulse = Pulse()
    serve_pages(options.live_port, pulse.read)
    watch(SupervisorApi(options.namespace, timeout=15), options, limits, pulse)


if __name__ == "__main__":
    main()
