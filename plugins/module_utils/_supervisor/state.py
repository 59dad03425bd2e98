# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide when a group has to restart: its head is stuck, a rank was lost, or a node runs out of memory.

Nothing here calls the API or reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .._kube.labels import MEMORY, MEMORY_OUT

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

    ``memory`` says why the group has to stop before the pod's node freezes.
    """

    name: str
    started: bool = False
    running: bool = False
    incarnation: str = ""
    address: str = ""
    memory: str = ""


@dataclass(frozen=True)
class Limits:
    """How long a head may be stuck or a group partly new, and how long to wait between two restarts, in seconds.

    A head is stuck while it answers 503 and its counters do not change, so ``stuck_after`` has to be longer than the
    slowest single step of a warm head. Until a head is warm its steps may compile kernels (six minutes for one step
    were seen), and ``first_step`` applies.
    """

    stuck_after: float = 120
    first_step: float = 1800
    part_after: float = 30
    backoff_first: float = 30
    backoff_most: float = 600
    calm_after: float = 600


@dataclass
class Memory:
    """What the supervisor remembers between two checks."""

    incarnations: tuple[str, ...] = ()
    work: str = ""
    tokens: float = 0.0
    warm: int = 0
    stuck_since: float | None = None
    part_since: float | None = None
    healthy_since: float | None = None
    restarts: int = 0
    not_before: float = 0.0
    notes: list[str] = field(default_factory=list)


def decide(seen: list[Seen], healthy: bool | None, memory: Memory, limits: Limits, now: float, work: str = "") -> str:
    """Return why the whole group must restart now, or an empty string; update ``memory``.

    ``healthy`` is the head's answer, None if it was not asked because some rank has not started yet; ``work`` are its
    metrics, empty if they are unknown.
    """
    incarnations = tuple(pod.incarnation for pod in seen)
    if work:
        tokens = generated(work)
        memory.warm = memory.warm + (tokens - memory.tokens >= BUSY_TOKENS) if tokens >= memory.tokens else 0
        memory.tokens = tokens
    for pod in seen:
        if pod.memory and now >= memory.not_before:
            return f"{pod.name}: {pod.memory}"
    if all(pod.started for pod in seen) and healthy:
        memory.incarnations = incarnations
        memory.stuck_since = memory.part_since = None
        memory.healthy_since = memory.healthy_since or now
        if now - memory.healthy_since >= limits.calm_after:
            memory.restarts = 0
        return ""
    memory.healthy_since = None
    running = all(pod.running for pod in seen)
    stuck = healthy is False and running and all(pod.started for pod in seen)
    working = bool(work) and work != memory.work
    memory.work = work or memory.work
    memory.stuck_since = (now if working else memory.stuck_since or now) if stuck else None
    changed = [now_is != was for now_is, was in zip(incarnations, memory.incarnations, strict=False)]
    part = running and any(changed) and not all(changed)
    if running and not part:
        # Running ranks that all restarted, or none of which did, are one group, even while they are still loading.
        memory.incarnations = incarnations
    memory.part_since = (memory.part_since or now) if part else None
    if now < memory.not_before:
        return ""
    patience = limits.stuck_after if memory.warm >= WARM_CHECKS else max(limits.first_step, limits.stuck_after)
    if memory.stuck_since is not None and now - memory.stuck_since >= patience:
        return f"the head has been stuck for {now - memory.stuck_since:.0f} s"
    if memory.part_since is not None and now - memory.part_since >= limits.part_after:
        old = [pod.name for pod, new in zip(seen, changed, strict=False) if not new]
        return f"some ranks are new while {', '.join(old)} still belong to the old group"
    return ""


def generated(work: str) -> float:
    """Return the number of generated tokens in the head's metrics."""
    return sum(float(line.rpartition(" ")[2]) for line in work.splitlines() if line.startswith(GENERATED))


def acted(memory: Memory, limits: Limits, now: float) -> float:
    """Record a restart; return the least number of seconds until the next one."""
    pause: float = min(limits.backoff_first * 2**memory.restarts, limits.backoff_most)
    memory.restarts += 1
    memory.not_before = now + pause
    memory.incarnations = ()
    memory.stuck_since = memory.part_since = memory.healthy_since = None
    memory.warm, memory.tokens = 0, 0.0
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


def read_pod(name: str, pod: dict[str, Any]) -> Seen:
    """Return the state of a pod; a pod that is being deleted counts as gone."""
    if pod["metadata"].get("deletionTimestamp"):
        return Seen(name)
    status = pod.get("status", {})
    container: dict[str, Any] = next((c for c in status.get("containerStatuses") or [] if c["name"] == "sglang"), {})
    running = "running" in container.get("state", {})
    conditions = {one["type"]: one for one in status.get("conditions") or [] if one.get("status") == "False"}
    memory = conditions.get(MEMORY, {})
    return Seen(
        name=name,
        started=running and bool(container.get("started")),
        running=running,
        incarnation=f"{pod['metadata']['uid']}/{container.get('restartCount', 0)}",
        address=status.get("podIP", ""),
        memory=str(memory.get("message")) if memory.get("reason") == MEMORY_OUT else "",
    )
