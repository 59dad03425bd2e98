# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stream logs out of Kubernetes pods. Private to the collection; the client object comes from the module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PodLogs:
    """Which logs: no ``container`` means the pod's first, no ``since_seconds`` all; ``log_file`` lies in the pod.

    ``rank_label`` is the label that carries a pod's place in its group.
    """

    namespace: str
    label_selector: str
    container: str = ""
    since_seconds: int = 0
    previous: bool = False
    log_file: str = ""
    rank_label: str = ""


def pod_names(api: Any, wanted: PodLogs) -> list[str]:
    """Return the names of the matching pods, sorted. ``api`` is a CoreV1Api; its exceptions pass through."""
    return list(pod_places(api, wanted))


def pod_places(api: Any, wanted: PodLogs) -> dict[str, int | None]:
    """Return the matching pods, sorted, each with the number that its ``rank_label`` carries, if any."""
    pods = api.list_namespaced_pod(wanted.namespace, label_selector=wanted.label_selector).items
    labels = {pod.metadata.name: (pod.metadata.labels or {}).get(wanted.rank_label, "") for pod in pods}
    return {name: int(place) if place.isdigit() else None for name, place in sorted(labels.items())}


def container_of(api: Any, wanted: PodLogs, pod: str) -> str:
    """Return the container to read: the one asked for, else the pod's first."""
    return wanted.container or str(api.read_namespaced_pod(pod, wanted.namespace).spec.containers[0].name)


@contextmanager
def open_pod_log(api: Any, wanted: PodLogs, pod: str) -> Iterator[Callable[[int], bytes]]:
    """Yield ``read(n)`` on one pod's log; nothing is loaded before it is asked for."""
    options: dict[str, Any] = {"container": container_of(api, wanted, pod), "previous": wanted.previous}
    if wanted.since_seconds:
        options["since_seconds"] = wanted.since_seconds
    response = api.read_namespaced_pod_log(pod, wanted.namespace, _preload_content=False, **options)
    try:
        yield response.read
    finally:
        response.close()
        response.release_conn()


def run_in_pod(kubernetes: Any, client: Any, wanted: PodLogs, pod: str, command: list[str]) -> Iterator[bytes]:
    """Execute a command in a pod's container and yield its output in pieces; ``kubernetes`` is the client library."""
    api = kubernetes.client.CoreV1Api(client)
    container = container_of(api, wanted, pod)
    # stream() turns the client that it is given into a web-socket client, so it gets one of its own.
    own = kubernetes.client.CoreV1Api(kubernetes.client.ApiClient(client.configuration))
    channel = kubernetes.stream.stream(
        own.connect_get_namespaced_pod_exec,
        pod,
        wanted.namespace,
        container=container,
        command=command,
        stdout=True,
        stderr=False,
        stdin=False,
        tty=False,
        _preload_content=False,
    )
    while channel.is_open():
        channel.update(timeout=5)
        if piece := channel.read_stdout(timeout=0):
            yield piece.encode()
    if rest := channel.read_stdout(timeout=0):
        yield rest.encode()
    channel.close()


@contextmanager
def open_pod_file(run: Callable[[list[str]], Iterator[bytes]], path: str) -> Iterator[Callable[[int], bytes]]:
    """Yield ``read(n)`` on the files that a glob names in a pod; ``run`` executes a command there."""
    pieces = run(["/bin/sh", "-c", "cat -- $1 2>/dev/null || true", "sh", path])

    def read(_size: int) -> bytes:
        return next((piece for piece in pieces if piece), b"")

    yield read
