# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The devices that nodes offer to pods, and the pods that hold them.

Objects are the API's JSON (camelCase). This module does not call the API. It counts only extended resources, such as
GPUs and RDMA devices. Their names contain a slash, and the scheduler assigns whole numbers of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .labels import INSTANCE

_QUANTITY = re.compile(r"([0-9.]+)([eE][0-9]+|[numk]|Ki|[MGTPE]i?|)")
_SCALES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_SCALES |= {"E": 10**18, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}


@dataclass(frozen=True)
class Holder:
    """A pod that holds ``resources``; ``instance`` is its serving group, empty for any other pod."""

    namespace: str
    pod: str
    instance: str
    resources: dict[str, int]


@dataclass(frozen=True)
class Taint:
    """A taint of a node with which pods that do not tolerate it can't start there."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}{f'={self.value}' if self.value else ''}:{self.effect}"


@dataclass(frozen=True)
class Room:
    """A node and its devices.

    ``host`` is its label kubernetes.io/hostname. ``trouble`` says why the node is not ready, ``disk`` why its disk is
    too full for new pods; empty if all is well. ``offers`` is the number of devices by resource name, ``arch``
    the architecture as Go names it. ``left`` is what pods of no serving group leave of its ``cpu`` (in thousandths) and
    ``memory`` (in bytes), as far as it is known.
    ``taints`` lacks those by which Kubernetes itself shows the node's conditions.
    """

    node: str
    host: str
    trouble: str
    cordoned: bool
    offers: dict[str, int]
    holders: list[Holder]
    disk: str = ""
    arch: str = ""
    taints: list[Taint] = field(default_factory=list)
    left: dict[str, int] = field(default_factory=dict)


def amount(name: str, quantity: str | int) -> int:
    """Return bytes of ``memory``, thousandths of a ``cpu``, or a number of devices; raise ValueError for anything else.

    The API keeps quantities as their authors wrote them: ``500m``, ``1.5``, ``92Gi``, ``1e3``.
    """
    if match := _QUANTITY.fullmatch(str(quantity)):
        number, unit = float(match[1]), match[2]
        scale = 10 ** int(unit[1:]) if unit[1:].isdigit() else _SCALES[unit]
        found = number * scale * (1000 if name == "cpu" else 1)
        # Devices, whose names have a slash, are not divided.
        if "/" not in name or found.is_integer():
            return int(found)
    raise ValueError(f"{quantity!r} is not an amount of {name}")


def rooms(nodes: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]]) -> list[Room]:
    """Return the nodes of a cluster, sorted by name, with the pods that hold their devices."""
    holders: dict[str, list[Holder]] = {}
    taken: dict[str, Counter[str]] = {}
    for pod in pods:
        if _stays(pod) and INSTANCE not in (pod["metadata"].get("labels") or {}):
            taken.setdefault(pod["spec"].get("nodeName", ""), Counter()).update(_requested(pod))
        booked = _booked(pod)
        if booked and _stays(pod):
            metadata = pod["metadata"]
            instance = (metadata.get("labels") or {}).get(INSTANCE, "")
            holder = Holder(metadata["namespace"], metadata["name"], instance, booked)
            holders.setdefault(pod["spec"].get("nodeName", ""), []).append(holder)
    found = [
        _room(node, holders.get(node["metadata"]["name"], []), taken.get(node["metadata"]["name"], Counter()))
        for node in nodes
    ]
    return sorted(found, key=lambda room: room.node)


def able(found: Iterable[Room], wanted: Mapping[str, Mapping[str, int]]) -> bool:
    """Return whether every host of ``wanted`` is ready and offers these devices, whether or not pods hold them."""
    by_host = {room.host: room for room in found}
    return all(
        host in by_host
        and not by_host[host].trouble
        and all(by_host[host].offers.get(name, 0) >= count for name, count in devices.items())
        for host, devices in wanted.items()
    )


def untolerated(room: Room, tolerations: Iterable[Mapping[str, Any]]) -> list[Taint]:
    """Return the taints of a node that pods with these tolerations do not tolerate."""
    given = list(tolerations)
    return [taint for taint in room.taints if not any(_tolerates(one, taint) for one in given)]


def _tolerates(toleration: Mapping[str, Any], taint: Taint) -> bool:
    key, every = toleration.get("key") or "", toleration.get("operator") == "Exists"
    return (
        (key == taint.key or (every and not key))
        and (every or str(toleration.get("value") or "") == taint.value)
        and (toleration.get("effect") or taint.effect) == taint.effect
    )


def _room(node: Mapping[str, Any], holders: list[Holder], taken: Mapping[str, int]) -> Room:
    name, status = node["metadata"]["name"], node.get("status", {})
    conditions = {c.get("type"): c for c in status.get("conditions") or []}
    full = conditions.get("DiskPressure", {})
    has = status.get("allocatable") or {}
    return Room(
        node=name,
        host=(node["metadata"].get("labels") or {}).get("kubernetes.io/hostname", name),
        trouble=_trouble(conditions.get("Ready")),
        disk=str(full.get("message") or "DiskPressure") if full.get("status") == "True" else "",
        cordoned=bool(node.get("spec", {}).get("unschedulable")),
        offers=_extended(has),
        left={name: amount(name, has[name]) - taken.get(name, 0) for name in ("cpu", "memory") if name in has},
        holders=holders,
        arch=str((status.get("nodeInfo") or {}).get("architecture", "")),
        taints=[
            Taint(str(one["key"]), str(one.get("value") or ""), str(one["effect"]))
            for one in node.get("spec", {}).get("taints") or []
            # The others follow the conditions of the node, which say why.
            if one["effect"] != "PreferNoSchedule" and not one["key"].startswith("node.kubernetes.io/")
        ],
    )


def _trouble(ready: Mapping[str, Any] | None) -> str:
    if ready is None:
        return "its kubelet never reported"
    return "" if ready.get("status") == "True" else str(ready.get("message") or "its kubelet gives no reason")


def _stays(pod: Mapping[str, Any]) -> bool:
    ended = pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}
    return not ended and not pod["metadata"].get("deletionTimestamp")


def _booked(pod: Mapping[str, Any]) -> dict[str, int]:
    """Return what the scheduler reserves: the sum over all containers, or the largest init container if larger."""
    together: Counter[str] = Counter()
    for container in pod["spec"].get("containers") or []:
        together.update(_limits(container))
    for container in pod["spec"].get("initContainers") or []:
        together |= Counter(_limits(container))
    return dict(together)


def _requested(pod: Mapping[str, Any]) -> dict[str, int]:
    """Return the memory and CPUs that the scheduler counts for a pod, without the rare larger init container."""
    together: Counter[str] = Counter()
    for container in pod["spec"].get("containers") or []:
        asked = (container.get("resources") or {}).get("requests") or {}
        together.update({name: amount(name, asked[name]) for name in ("cpu", "memory") if name in asked})
    return dict(together)


def _limits(container: Mapping[str, Any]) -> dict[str, int]:
    # The request for an extended resource equals its limit (Kubernetes, "Extended resources").
    return _extended(container.get("resources", {}).get("limits"))


def _extended(quantities: Mapping[str, Any] | None) -> dict[str, int]:
    return {name: amount(name, text) for name, text in (quantities or {}).items() if "/" in name}
