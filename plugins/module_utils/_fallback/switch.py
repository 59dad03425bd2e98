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

from .._in_pod.pages import say, serve_pages
from .api import SwitchApi
from .state import MAIN, Seen, Settings, Status, decide, in_its_way, read_node, steps

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
    """What Prometheus reads; empty while the API has not answered."""

    def __init__(self) -> None:
        self._text, self._written = "", 0.0

    def write(self, text: str) -> None:
        """Replace the text."""
        self._text, self._written = text, time.monotonic()

    def read(self, path: str) -> tuple[int, str]:
        """Return status and text of a path; the metrics fail if they are too old."""
        fresh = path == "/metrics" and time.monotonic() - self._written < _STALE
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
        time.sleep(pause)


if __name__ == "__main__":
    main()
