# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that moves a group to its fallback while a node is gone, and back. Runs in its own pod; standard library
only. Its Roles permit reading nodes, scaling the group's StatefulSets, deleting their pods, and keeping its status.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
import urllib.error
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any

from .._common import plain
from .api import ACCOUNT, InPodApi, Json, Pulse, say, serve_pages

# Decide which of a group's presets serves: the planned one, or its fallback while a node is gone.
#
# Nothing in this part calls the API or reads a clock. All times are seconds of the API server's clock.

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
        return plain.load(cls, json.loads(text))

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
        return plain.load(cls, json.loads(text))


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
        others = (one for one in settings.choices[1:] if one is not serving)
        fits = next((one for one in others if _is_usable(one, seen)), None)
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


_MERGE = "application/merge-patch+json"


class SwitchApi(InPodApi):
    """Reads nodes and the group's pods, scales its StatefulSets, and keeps the status."""

    def __init__(self, namespace: str, instance: str, account: Path = ACCOUNT) -> None:
        super().__init__(namespace, timeout=10, account=account)
        self._instance = instance

    def _scale(self, name: str) -> str:
        return f"/apis/apps/v1/namespaces/{self.namespace}/statefulsets/{name}/scale"

    def nodes(self) -> list[Json]:
        """Return all nodes."""
        found: list[Json] = self.call("GET", "/api/v1/nodes")["items"]
        return found

    def replicas(self, name: str) -> int | None:
        """Return the wanted replicas of a StatefulSet, or None if it does not exist."""
        found = self.find("GET", self._scale(name))
        return None if found is None else int(found["spec"].get("replicas", 0))

    def has_pod(self, name: str) -> bool:
        """Tell whether a StatefulSet still has its pod, which may be stopping."""
        return self.find("GET", self.core(f"pods/{name}-0")) is not None

    def scale(self, name: str, replicas: int) -> None:
        """Set the replicas of a StatefulSet."""
        self.call("PATCH", self._scale(name), {"spec": {"replicas": replicas}}, _MERGE)

    def stop(self, name: str, grace: int) -> None:
        """Delete the pod of a StatefulSet, with less patience than the pod asks for."""
        self.find("DELETE", self.core(f"pods/{name}-0"), {"gracePeriodSeconds": grace})

    def kept(self) -> tuple[str, str]:
        """Return the kept status and its version."""
        found = self.call("GET", self.core(f"configmaps/{self._instance}-fallback"))
        return (found.get("data") or {}).get("status", ""), found["metadata"]["resourceVersion"]

    def keep(self, status: str, version: str) -> None:
        """Keep a status; fail if another program has kept one since ``version``."""
        body = {"metadata": {"resourceVersion": version}, "data": {"status": status}}
        self.call("PATCH", self.core(f"configmaps/{self._instance}-fallback"), body, _MERGE)

    def add_event(self, reason: str, message: str, warning: bool) -> None:
        """Record an event of the group's Service."""
        service = {"apiVersion": "v1", "kind": "Service", "name": self._instance, "namespace": self.namespace}
        self.record_event(service, f"Fallback{reason}", message, warning, "gb10.cluster/fallback")


_HOST = "kubernetes.io/hostname"
# Seconds that a rank may take to stop; its successor waits for the device. A rank that lost a peer can finish nothing,
# and from SGLang 0.5.21 on a worker ignores SIGTERM until it hears that its head is gone.
_GRACE, _GRACE_WITHOUT_PEER = 10, 2
# Seconds between two looks while one preset stops and another one starts: nobody is served meanwhile.
_SOON = 1
# Seconds without an answer of the API after which the metrics fail.
_STALE = 60


def look(settings: Settings, api: SwitchApi) -> Seen:
    """Return the state of the cluster."""
    nodes = {item["metadata"].get("labels", {}).get(_HOST, item["metadata"]["name"]): item for item in api.nodes()}
    sets = [name for choice in settings.choices for name in choice.sets]
    replicas = {name: api.replicas(name) for name in sets}
    wanted = {name for choice in settings.choices for name in choice.nodes}
    return Seen(
        api.now,
        {name: read_node(item) for name, item in nodes.items() if name in wanted},
        {name: number for name, number in replicas.items() if number is not None},
    )


def step(settings: Settings, api: SwitchApi) -> Status:
    """Look once, keep what was decided, and take the next step towards it.

    The decision is kept before it is carried out. If two of these programs run, because the node of one of them was
    cut off, one of them fails here and looks again.
    """
    text, version = api.kept()
    seen = look(settings, api)
    before = Status.parse(text) if text else Status(since=seen.now)
    after = decide(settings, seen, before)
    if after != before or not text:
        api.keep(after.as_json(), version)
    if (after.reason, after.message) != (before.reason, before.message):
        say(f"{after.reason}: {after.message}")
        api.add_event(after.reason, after.message, warning=after.reason != "NodesReturned")
    todo = steps(settings, seen, after)
    if any(replicas for _name, replicas in todo) and any(map(api.has_pod, in_its_way(settings, after))):
        return after
    for name, replicas in todo:
        say(f"scaling {name} to {replicas}")
        api.scale(name, replicas)
        if not replicas:
            api.stop(name, _GRACE_WITHOUT_PEER if after.reason == "NodeLost" else _GRACE)
    return after


def metrics(settings: Settings, status: Status) -> str:
    """Return the metrics of Prometheus."""
    serving = settings.choice(status.serving)
    group = f'group="{settings.instance}"'
    figures = [
        ("gb10_fallback_serving", f'{group},preset="{serving.preset}"', status.serving != MAIN),
        ("gb10_fallback_impossible", group, status.reason == "NoFallbackFits"),
    ]
    return "".join(f"# TYPE {name} gauge\n{name}{{{labels}}} {int(value)}\n" for name, labels, value in figures)


class Page:
    """What Prometheus reads, empty while the API has not answered; and the kubelet's probe."""

    def __init__(self) -> None:
        self._text, self._written, self.pulse = "", 0.0, Pulse()

    def write(self, text: str) -> None:
        """Replace the text."""
        self._text, self._written = text, time.monotonic()

    def read(self, path: str) -> tuple[int, str]:
        """Return status and text of a path; the metrics fail if they are too old."""
        if path != "/metrics":
            return self.pulse.read(path)
        fresh = time.monotonic() - self._written < _STALE
        return (200, self._text) if fresh else (503, "")


def _stop(*_signal: object) -> None:
    raise SystemExit(0)


def main() -> None:
    """Look every few seconds until the pod ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", required=True, type=Settings.parse, metavar="JSON")
    parser.add_argument("--interval", type=float, default=5)
    options = parser.parse_args()
    # Process 1 of a container ignores SIGTERM unless it has a handler.
    signal.signal(signal.SIGTERM, _stop)
    settings: Settings = options.settings
    api, page = SwitchApi(settings.namespace, settings.instance), Page()
    serve_pages(settings.metrics_port, page.read)
    say(f"watching {', '.join(settings.main.nodes)} for group {settings.instance}")
    while True:
        pause = options.interval
        try:
            status = step(settings, api)
            page.write(metrics(settings, status))
            pause = pause if status.settled else min(pause, _SOON)
        except urllib.error.HTTPError as error:
            conflict = error.code == HTTPStatus.CONFLICT
            say("another switch has written the status, looking again" if conflict else f"trying again: {error}")
        except (OSError, HTTPException, ValueError) as error:
            say(f"the API gave no answer, trying again: {error}")
        page.pulse.beat()
        time.sleep(pause)


if __name__ == "__main__":
    main()
