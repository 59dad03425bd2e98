# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Determine the state of a serving group from its pods and events.

Objects are the API's JSON (camelCase). This module neither calls the API nor reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .labels import INSTANCE, RANK, REVISION, VF_INDEX
from .workloads import pod_templates

# Reasons of a waiting container that do not resolve without a change.
_FINAL = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "ErrImageNeverPull", "InvalidImageName", "RunContainerError"}
)
# A rank that starts before rank 0 may crash once; a second crash is a fault of the rank.
_CRASHES = 2
# The kubelet retries every few seconds; so many failures are not a race at the start.
_SANDBOX_FAILURES = 3
# Reasons that the kubelet gives for a container that ended while its node was down.
_UNWATCHED = frozenset({"Unknown", "ContainerStatusUnknown"})


@dataclass(frozen=True)
class Rank:
    """The state of one pod of a group; ``trouble`` says what is wrong, and is empty if nothing is.

    ``last_exit`` is the kubelet's reason for the last end of the container, such as ``OOMKilled``. ``hopeless`` means
    that waiting cannot help. ``lost`` means that the rank ended because its node went down.
    """

    rank: int
    pod: str
    node: str
    phase: str
    ready: bool
    started: bool
    restarts: int
    revision: str
    trouble: str = ""
    hopeless: bool = False
    last_exit: str = ""
    lost: bool = False

    def __str__(self) -> str:
        state = "ready" if self.ready else self.trouble or ("loading" if self.phase == "Running" else self.phase)
        again = f", restarted {self.restarts} time(s)" if self.restarts else ""
        return f"rank {self.rank}: pod {self.pod} on {self.node or 'no node yet'}: {state}{again}"


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


def _events_of(pod: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    uid = pod["metadata"].get("uid")
    # A recreated pod keeps its name, so only the uid distinguishes its events from those of its predecessor.
    return [e for e in events if e.get("type") == "Warning" and e.get("involvedObject", {}).get("uid") == uid]


def _trouble(
    pod: Mapping[str, Any], container: Mapping[str, Any], warnings: list[Mapping[str, Any]]
) -> tuple[str, bool]:
    waiting = container.get("state", {}).get("waiting") or {}
    reason = waiting.get("reason", "")
    restarts = int(container.get("restartCount", 0))
    if reason == "CrashLoopBackOff" or container.get("state", {}).get("terminated"):
        last = (container.get("lastState", {}).get("terminated") or container["state"].get("terminated")) or {}
        return f"crashed with exit code {last.get('exitCode', '?')}", restarts >= _CRASHES
    if reason in _FINAL:
        return f"{reason}: {waiting.get('message', '')}", True
    if reason in {"ErrImagePull", "ImagePullBackOff"}:
        return f"{reason}: {waiting.get('message', '')}", False
    sandbox = [e for e in warnings if e.get("reason") in {"FailedCreatePodSandBox", "NoNetworkFound"}]
    if sandbox and pod.get("status", {}).get("phase") == "Pending":
        count = sum(int(e.get("count") or 1) for e in sandbox)
        return str(sandbox[-1].get("message", "")), count >= _SANDBOX_FAILURES
    for condition in pod.get("status", {}).get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"not scheduled: {condition.get('message', '')}", False
    return "", False


def _last_exit(container: Mapping[str, Any]) -> str:
    ends = [container.get(key, {}).get("terminated") or {} for key in ("state", "lastState")]
    return next((str(end["reason"]) for end in ends if end.get("reason")), "")


def read_rank(pod: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> Rank:
    """Return the state of a rank from its pod and the events of its namespace."""
    status = pod.get("status", {})
    statuses = status.get("containerStatuses") or [{}]
    container: Mapping[str, Any] = next((c for c in statuses if c.get("name") == "sglang"), statuses[0])
    # A fault of the server container takes precedence over faults of the other containers.
    stuck = next((c for c in (container, *statuses) if not c.get("state", {}).get("running")), container)
    metadata = pod["metadata"]
    leaving = bool(metadata.get("deletionTimestamp"))
    ready = not leaving and any(
        c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or []
    )
    trouble, hopeless = ("stopping", False) if leaving else _trouble(pod, stuck, _events_of(pod, events))
    return Rank(
        rank=int(metadata["labels"][RANK]),
        pod=metadata["name"],
        node=pod.get("spec", {}).get("nodeName", "") or "",
        phase=status.get("phase", "Unknown"),
        ready=ready,
        started=bool(container.get("started")),
        restarts=int(container.get("restartCount", 0)),
        revision=(metadata.get("annotations") or {}).get(REVISION, ""),
        trouble="" if ready else trouble,
        hopeless=not ready and hopeless,
        last_exit=_last_exit(container),
        lost=_last_exit(container) in _UNWATCHED,
    )


def read_group(pods: Iterable[Mapping[str, Any]], events: Iterable[Mapping[str, Any]], size: int) -> Group:
    """Return the state of a group that is expected to have ``size`` ranks."""
    listed = list(events)
    ranks = sorted((read_rank(pod, listed) for pod in pods), key=lambda rank: rank.rank)
    return Group(ranks, sorted(set(range(size)) - {rank.rank for rank in ranks}))


def unknown_group(accounts: Iterable[Mapping[str, Any]], instance: str, namespace: str) -> str:
    """Return why the group is unknown (not named, or not found), or an empty string if it exists.

    ``accounts`` are the namespace's ServiceAccounts. Of a group's objects, this is created first and deleted last.
    """
    found = {item["metadata"].get("labels", {}).get(INSTANCE, "") for item in accounts} - {""}
    if instance in found:
        return ""
    there = f"Namespace {namespace} has {', '.join(sorted(found)) or 'no groups'}."
    if instance:
        return f"There is no group {instance}. {there}"
    return f"No group is named. Add -e instance=NAME, or -e profile=NAME if it has its profile's name. {there}"


def holders(workloads: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the VFs that running groups hold: a dictionary ``{instance, node, vf_index}`` per rank."""
    found = []
    for item in workloads:
        labels = item["metadata"].get("labels") or {}
        for template in pod_templates(item):
            index = (template["metadata"].get("annotations") or {}).get(VF_INDEX)
            node = (template["spec"].get("nodeSelector") or {}).get("kubernetes.io/hostname")
            if labels.get(INSTANCE) and node and index is not None:
                found.append({"instance": labels[INSTANCE], "node": node, "vf_index": int(index)})
    return found
