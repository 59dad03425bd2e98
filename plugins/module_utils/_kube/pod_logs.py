# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find pods, read their logs and files, and run commands in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from .client import Cluster, ClusterError, Ran, at_once
from .labels import number

SELECTION_SPEC: dict[str, dict[str, Any]] = {
    "namespace": {"type": "str", "required": True},
    "label_selector": {"type": "str", "required": True},
    "container": {"type": "str", "default": ""},
}
"""Argument spec of the option ``pods`` of modules that read pods."""


@dataclass(frozen=True)
class PodContainer:
    """One container of a pod; ``place`` is the number in the pod's rank label, if it has one."""

    cluster: Cluster
    namespace: str
    pod: str
    container: str
    place: int | None = None

    def open_files(self, pattern: str) -> AbstractContextManager[Callable[[int], bytes]]:
        """Open the container's regular files that match a glob, oldest first, or without a glob its log, in pieces."""
        if not pattern:
            return self.cluster.open_log(self.namespace, self.pod, self.container)
        # The line that a killed process left unfinished must not run into the first line of the next file.
        script = 'ls -tr -- $1 2>/dev/null | while IFS= read -r f; do [ -f "$f" ] && cat -- "$f" && echo; done; true'
        command = ["/bin/sh", "-c", script, "sh", pattern]
        pieces = self.cluster.stream(self.namespace, self.pod, self.container, command)
        return nullcontext(lambda _size: next((piece for piece in pieces if piece), b""))

    def run(self, command: list[str], waiting: Callable[[], None] = lambda: None) -> Ran:
        """Run a command in the container to its end; ``waiting`` is called every few seconds until then."""
        return self.cluster.run(self.namespace, self.pod, self.container, command, waiting)


def run_in_each(containers: Iterable[PodContainer], command: list[str]) -> dict[str, Ran]:
    """Run a command in all containers at the same time; return the results by pod. Raises ClusterError."""
    places = list(containers)
    return dict(zip((each.pod for each in places), at_once(lambda each: each.run(command), places), strict=True))


def find_containers(
    cluster: Cluster, namespace: str, label_selector: str, container: str = "", rank_label: str = ""
) -> list[PodContainer]:
    """Return the named container, or the first one, of every pod that matches a selector, sorted by pod.

    Raises ClusterError, also if no pod matches.
    """
    found = []
    for pod in cluster.pods(namespace, label_selector):
        place = number((pod["metadata"].get("labels") or {}).get(rank_label))
        chosen = container or pod["spec"]["containers"][0]["name"]
        found.append(PodContainer(cluster, namespace, pod["metadata"]["name"], chosen, place))
    if not found:
        raise ClusterError(
            f"no pod of namespace {namespace} matches {label_selector}, so there is nothing to read. "
            f"Check namespace and labels: {cluster.kubectl} -n {namespace} get pods --show-labels"
        )
    return sorted(found, key=lambda each: each.pod)
