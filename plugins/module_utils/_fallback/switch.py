# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that moves a group to its fallback while a node is gone, and back. Runs in its own pod; standard library
only. Its Roles permit reading nodes, scaling the group's StatefulSets, deleting their pods, and keeping its status.
"""

from __future__ import annotations

import argparse
import signal
import time
import urllib.error
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path

from .._in_pod.api import ACCOUNT, InPodApi, Json
from .._in_pod.pages import Pulse, say, serve_pages
from .state import MAIN, Seen, Settings, Status, decide, in_its_way, read_node, steps

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
