# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Determine the state of a serving group from its pods and events.

Objects are the API's JSON (camelCase). This module neither calls the API nor reads a clock, only the time zone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from .._common.findings import cut
from .labels import ANSWERS, HEALTH, INSTANCE, LOAD, RANK, REVISION, VF_INDEX, number
from .pod_state import SHOWN_LENGTH, crash, last_event, ready, stuck_container, tells_more, trouble

# A rank that starts before rank 0 may crash once or twice. Waiting does not help after so many crashes with the same
# failure, or after so many crashes of any kind.
_SAME_CRASHES = 3
_CRASHES = 6
# Conditions of ranks that serve all the same.
_NOTED = (ANSWERS, HEALTH)
# Reasons that the kubelet gives for a container that ended while its node was down.
_UNWATCHED = frozenset({"Unknown", "ContainerStatusUnknown"})


@dataclass(frozen=True)
class Rank:
    """The state of one pod of a group; ``trouble`` says what is wrong, and is empty if nothing is.

    ``last_exit`` is the kubelet's reason for the last end of the container, such as ``OOMKilled``. ``hopeless`` means
    that waiting cannot help. ``lost`` means that the rank ended because its node went down. ``failure`` is what the
    last crash was: the exit code, the kubelet's reason and the last line of the log. ``crash`` identifies that crash:
    the pod's uid and a number. ``down``: the container has not run since. ``event`` is the pod's newest event. ``note``
    is what is wrong with a rank that may be ready all the same, and what its load took of the node's memory.
    """

    rank: int
    pod: str
    node: str
    phase: str
    ready: bool
    started: bool
    restarts: int
    revision: str
    trouble: str
    hopeless: bool
    last_exit: str
    lost: bool
    failure: str
    crash: str
    down: bool
    event: str
    note: str

    def __str__(self) -> str:
        state = "ready" if self.ready else self.trouble or ("loading" if self.phase == "Running" else self.phase)
        if not self.ready and tells_more(self.event, state):
            state += f" (last event {self.event})"
        again = f", restarted {self.restarts} time(s)" if self.restarts else ""
        note = f"; {self.note}" if self.note else ""
        return f"rank {self.rank}: pod {self.pod} on {self.node or 'no node yet'}: {state}{again}{note}"


@dataclass(frozen=True)
class Group:
    """All ranks of a group; ``missing`` are the ranks without a pod."""

    ranks: list[Rank] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)

    @property
    def ready(self) -> bool:
        return bool(self.ranks) and not self.missing and all(rank.ready for rank in self.ranks)

    @property
    def hopeless(self) -> bool:
        return any(rank.hopeless for rank in self.ranks)

    def troubled(self) -> list[Rank]:
        """Return the ranks that are not ready; those with a known reason come first."""
        return sorted((r for r in self.ranks if not r.ready), key=lambda r: (not r.trouble, r.rank))

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, ready for a module's result."""
        return {"ready": self.ready, "missing": self.missing, "ranks": [asdict(rank) for rank in self.ranks]}

    def lines(self) -> list[str]:
        """Return one line per rank."""
        return [str(rank) for rank in self.ranks] + [f"rank {number}: no pod" for number in self.missing]


_SINCE = re.compile(r"\bsince (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)")
# strftime's names depend on the locale, which Ansible sets.
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def in_own_zone(text: str, now: float) -> str:
    """Return a text whose times after "since" are those of this machine's zone, with the time that has passed."""

    def told(found: re.Match[str]) -> str:
        try:
            own = datetime.strptime(f"{found[1]}+0000", "%Y-%m-%dT%H:%M:%SZ%z").astimezone()
        except (ValueError, OverflowError, OSError):
            return found[0]
        passed = max(0, int(now - own.timestamp()))
        unit, size = next((u, s) for u, s in (("day", 86400), ("hour", 3600), ("minute", 60)) if passed >= s or s == 60)
        count = passed // size
        # After a week, the name of a day is no date.
        day = _DAYS[own.weekday()] if passed < 6 * 86400 else f"{own:%Y-%m-%d}"
        return f"since {day} {own:%H:%M} ({count} {unit}{'' if count == 1 else 's'})"

    return _SINCE.sub(told, text)


def _failure(last: Mapping[str, Any]) -> str:
    """Return the identity of a crash. The last log line says what failed; its numbers (times, addresses) vary."""
    lines = str(last.get("message") or "").split("\n")
    text = re.sub(r"0x[0-9a-f]+|\d+", "N", next((line for line in reversed(lines) if line.strip()), ""))
    return f"{last['exitCode']} {last.get('reason', '')} {text}".strip() if "exitCode" in last else ""


def _last_exit(container: Mapping[str, Any]) -> str:
    ends = [container.get(key, {}).get("terminated") or {} for key in ("state", "lastState")]
    return next((str(end["reason"]) for end in ends if end.get("reason")), "")


def read_rank(pod: Mapping[str, Any], events: Iterable[Mapping[str, Any]], program: str) -> Rank | None:
    """Return the state of a rank from its pod and the events of its namespace; None for a pod that is no rank's."""
    place = number((pod["metadata"].get("labels") or {}).get(RANK))
    if place is None:
        return None
    events = list(events)
    status = pod.get("status", {})
    statuses = status.get("containerStatuses") or [{}]
    container: Mapping[str, Any] = next((c for c in statuses if c.get("name") == "sglang"), statuses[0])
    metadata = pod["metadata"]
    stuck = stuck_container(pod, "sglang")
    is_ready = ready(pod)
    stopping = bool(metadata.get("deletionTimestamp"))
    wrong, hopeless = ("stopping", False) if stopping else trouble(pod, stuck, events, program)
    down = bool(crash(stuck))
    # The kubelet restarts a container at once after its first crash, so the crash is often seen only afterwards.
    last = crash(stuck) or stuck.get("lastState", {}).get("terminated") or {}
    return Rank(
        rank=place,
        pod=metadata["name"],
        node=pod.get("spec", {}).get("nodeName", "") or "",
        phase=status.get("phase", "Unknown"),
        ready=is_ready,
        started=bool(container.get("started")),
        restarts=int(container.get("restartCount", 0)),
        revision=(metadata.get("annotations") or {}).get(REVISION, ""),
        trouble="" if is_ready else wrong,
        hopeless=not is_ready and hopeless,
        last_exit=_last_exit(container),
        lost=_last_exit(container) in _UNWATCHED,
        failure="" if stopping else _failure(last),
        crash=f"{metadata.get('uid', '')}/{int(stuck.get('restartCount', 0)) + down}",
        down=down,
        event=last_event(str(metadata.get("uid", "")), events),
        note="; ".join(
            f"{one['type'].partition('/')[2]}: {cut(str(one.get('message') or ''), SHOWN_LENGTH)}"
            for one in status.get("conditions") or []
            if one.get("type") == LOAD or (one.get("type") in _NOTED and one.get("status") == "False")
        ),
    )


def read_group(
    pods: Iterable[Mapping[str, Any]], events: Iterable[Mapping[str, Any]], size: int, program: str = "kubectl"
) -> Group:
    """Return the state of a group that is expected to have ``size`` ranks; ``program`` begins commands of remedies."""
    listed = list(events)
    found = [read_rank(pod, listed, program) for pod in pods]
    ranks = sorted((rank for rank in found if rank is not None), key=lambda rank: rank.rank)
    return Group(ranks, sorted(set(range(size)) - {rank.rank for rank in ranks}))


def with_history(group: Group, crashes: MutableMapping[str, dict[str, str]]) -> Group:
    """Tell from their crashes whether waiting for ranks can help; ``crashes`` is updated with those seen.

    Kubernetes keeps only the last crash of a container, and the group supervisor replaces all pods if only some ranks
    crashed. ``crashes`` therefore maps ``{pod: {crash: failure}}``, also for the pods before the present one.
    """

    def weighed(rank: Rank) -> Rank:
        seen = crashes.setdefault(rank.pod, {})
        if rank.ready or not rank.failure:
            return rank
        seen[rank.crash] = rank.failure
        uid, _slash, number = rank.crash.rpartition("/")
        # Crashes that were not seen count as the same failure. A container that runs may have crashed long ago.
        unseen = int(number) - sum(one.startswith(f"{uid}/") for one in seen) if rank.down else 0
        same, all_seen = unseen + list(seen.values()).count(rank.failure), unseen + len(seen)
        if same < _SAME_CRASHES and all_seen < _CRASHES:
            return rank
        return replace(
            rank, hopeless=True, trouble=rank.trouble or f"crashed {all_seen} times, last with {rank.failure}"
        )

    return replace(group, ranks=[weighed(rank) for rank in group.ranks])


def holders(workloads: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the VFs that running groups hold: a dictionary ``{instance, node, vf_index}`` per rank."""
    found = []
    for item in workloads:
        labels = item["metadata"].get("labels") or {}
        template = item["spec"]["template"]
        index = number((template["metadata"].get("annotations") or {}).get(VF_INDEX))
        node = (template["spec"].get("nodeSelector") or {}).get("kubernetes.io/hostname")
        if labels.get(INSTANCE) and node and index is not None:
            found.append({"instance": labels[INSTANCE], "node": node, "vf_index": index})
    return found
