# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide which of a group's presets serves: the planned one, or its fallback while a node is gone.

Nothing here calls the API or reads a clock. All times are seconds of the API server's clock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from typing import Any

MAIN = "main"


@dataclass(frozen=True)
class Choice:
    """A preset on a set of nodes: its StatefulSets, one per node, in rank order."""

    name: str
    preset: str
    nodes: tuple[str, ...]
    sets: tuple[str, ...]


@dataclass(frozen=True)
class Settings:
    """What the owner named. ``choices`` begins with the planned preset, whose name is MAIN.

    A node is gone ``after`` so many seconds without being ready. The planned preset returns when all its nodes have
    been ready for ``return_after`` seconds.
    """

    instance: str
    namespace: str
    choices: tuple[Choice, ...]
    after: float
    return_after: float
    metrics_port: int = 0

    @classmethod
    def parse(cls, text: str) -> Settings:
        """Return the settings from JSON."""
        given = json.loads(text)
        choices = tuple(
            Choice(one["name"], one["preset"], tuple(one["nodes"]), tuple(one["sets"])) for one in given["choices"]
        )
        return cls(**given | {"choices": choices})

    @property
    def main(self) -> Choice:
        """Return the planned preset."""
        return self.choices[0]

    def choice(self, name: str) -> Choice:
        """Return the choice of this name, or the planned one if a later deployment has removed the name."""
        return next((one for one in self.choices if one.name == name), self.main)


@dataclass(frozen=True)
class Node:
    """Whether a node is ready, since when, and whether pods may start there."""

    ready: bool
    since: float
    cordoned: bool = False

    @property
    def usable(self) -> bool:
        return self.ready and not self.cordoned


@dataclass(frozen=True)
class Seen:
    """The cluster: nodes by host name, and wanted replicas by StatefulSet."""

    now: float
    nodes: Mapping[str, Node]
    replicas: Mapping[str, int]


@dataclass(frozen=True)
class Status:
    """What was decided last; it is kept in the cluster, so that it outlives the program that decides.

    ``settled`` says that the serving choice was started. ``absent`` are nodes that the cluster does not have, with the
    time at which that was seen first.
    """

    serving: str = MAIN
    reason: str = "Planned"
    message: str = ""
    since: float = 0.0
    settled: bool = True
    absent: Mapping[str, float] = field(default_factory=dict)

    def as_json(self) -> str:
        """Return the status as it is kept."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def parse(cls, text: str) -> Status:
        """Return the status that was kept, without what only a newer release knows."""
        known = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in json.loads(text).items() if name in known})


def read_node(item: Mapping[str, Any]) -> Node:
    """Return the state of a node, an object of the API. A node without a condition has never been ready."""
    conditions = item.get("status", {}).get("conditions") or []
    ready: Mapping[str, Any] = next((one for one in conditions if one["type"] == "Ready"), {})
    stamp = ready.get("lastTransitionTime") or item["metadata"]["creationTimestamp"]
    since = datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
    return Node(ready.get("status") == "True", since, bool(item.get("spec", {}).get("unschedulable")))


def decide(settings: Settings, seen: Seen, status: Status) -> Status:
    """Return what serves from now on, and why."""
    main, serving = settings.main, settings.choice(status.serving)
    absent = {name: status.absent.get(name, seen.now) for name in main.nodes if name not in seen.nodes}
    status = replace(status, absent=absent, serving=serving.name)
    if serving is not main and _is_back(settings, seen):
        message = f"preset {main.preset} serves again: all its nodes have been ready for {settings.return_after:.0f} s"
        return _changed(status, main, "NodesReturned", message, seen.now)
    gone = [name for name in serving.nodes if _gone_for(name, seen, absent) >= settings.after]
    if gone:
        named = ", ".join(gone)
        fits = next((one for one in _others(settings, serving) if _is_usable(one, seen)), None)
        if fits:
            nodes = ", ".join(fits.nodes)
            message = f"preset {fits.preset} serves on {nodes}: gone for more than {settings.after:.0f} s: {named}"
            return _changed(status, fits, "NodeLost", message, seen.now)
        message = f"gone for more than {settings.after:.0f} s: {named}; no set of nodes of the fallback is ready"
        if (status.reason, status.message) != ("NoFallbackFits", message):
            return replace(status, reason="NoFallbackFits", message=message, since=seen.now)
    elif status.reason == "NoFallbackFits":
        message = f"all nodes of preset {serving.preset} are there again"
        return replace(status, reason="NodesReturned", message=message, since=seen.now)
    return replace(status, settled=status.settled or _is_started(serving, settings, seen))


def steps(settings: Settings, seen: Seen, status: Status) -> list[tuple[str, int]]:
    """Return the StatefulSets to scale now, each with its replicas.

    The choices that do not serve stop first. The serving one may start when no StatefulSet of ``in_its_way`` has a pod.
    A planned preset that has started once is left alone: its owner may stop it.
    """
    serving = settings.choice(status.serving)
    if serving is settings.main and status.settled:
        return []
    stop = [(name, 0) for one in settings.choices if one is not serving for name in one.sets if seen.replicas.get(name)]
    # A StatefulSet that does not exist is being deleted with its group.
    if stop or not all(name in seen.replicas for name in serving.sets):
        return stop
    return [(name, 1) for name in serving.sets if seen.replicas[name] == 0]


def in_its_way(settings: Settings, status: Status) -> list[str]:
    """Return the StatefulSets of the other choices on the nodes of the serving one."""
    serving = settings.choice(status.serving)
    others = (one for one in settings.choices if one is not serving)
    places = (place for one in others for place in zip(one.sets, one.nodes, strict=True))
    return [name for name, node in places if node in serving.nodes]


def _others(settings: Settings, serving: Choice) -> list[Choice]:
    """Return the fallback's sets of nodes that do not serve."""
    return [one for one in settings.choices[1:] if one is not serving]


def _gone_for(name: str, seen: Seen, absent: Mapping[str, float]) -> float:
    node = seen.nodes.get(name)
    if node is None:
        return seen.now - absent[name]
    return -1.0 if node.ready else seen.now - node.since


def _is_usable(choice: Choice, seen: Seen) -> bool:
    return all(name in seen.nodes and seen.nodes[name].usable for name in choice.nodes)


def _is_back(settings: Settings, seen: Seen) -> bool:
    since = [seen.now - seen.nodes[name].since for name in settings.main.nodes if name in seen.nodes]
    return _is_usable(settings.main, seen) and min(since) >= settings.return_after


def _is_started(serving: Choice, settings: Settings, seen: Seen) -> bool:
    others = [name for one in settings.choices if one is not serving for name in one.sets]
    return all(seen.replicas.get(name) == 1 for name in serving.sets) and not any(map(seen.replicas.get, others))


def _changed(status: Status, choice: Choice, reason: str, message: str, now: float) -> Status:
    return replace(status, serving=choice.name, reason=reason, message=message, since=now, settled=False)
