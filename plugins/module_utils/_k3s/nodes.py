# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report why Kubernetes nodes are not ready for the model, and explain the cluster's warnings.

Objects are the API's JSON. This module does not call the API, and no message contains an API object.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._kube.node_room import units

SHOWN_WARNINGS = 5
# {pattern of a Kubernetes warning: its meaning and remedy}
HINTS = (
    (
        r'no runtime for "(?P<name>[^"]+)" is configured',
        "K3s found no container runtime {name} when it started. Run apt-get install nvidia-container-toolkit on"
        " the node, then systemctl restart k3s or k3s-agent.",
    ),
    (
        r"ErrImagePull|ImagePullBackOff|[Ff]ailed to pull image",
        "An image can't be pulled. Check that the node reaches the registry, or add it to the air-gap directory.",
    ),
    (r"DiskPressure|[Ee]vict", "The node's disk is full. Free space there; preflight shows how much is left."),
    (
        r"[Nn]ode password rejected",
        "The node was installed again and the cluster knows its old password. Run"
        " kubectl -n kube-system delete secret NODE.node-password.k3s.",
    ),
)


def lacks(node: Mapping[str, Any], wanted: Mapping[str, int]) -> list[str]:
    """Return, in words, why a node is not ready or does not offer ``{resource: smallest number}``."""
    status = node.get("status", {})
    ready: Mapping[str, Any] = next((c for c in status.get("conditions") or () if c.get("type") == "Ready"), {})
    found = [] if ready.get("status") == "True" else [f"is not ready ({ready.get('message') or 'it never reported'})"]
    offered = status.get("allocatable") or {}
    return found + [
        f"offers {units(offered.get(name, 0))} of {least} {name}"
        for name, least in wanted.items()
        if units(offered.get(name, 0)) < least
    ]


def missing_on_nodes(
    nodes: Sequence[Mapping[str, Any]],
    names: Iterable[str],
    resources: Mapping[str, int],
    of_node: Mapping[str, Iterable[str]],
) -> list[str]:
    """Return a sentence for each node of ``names`` (empty: all) that is absent, not ready, or offers too little."""
    by_name = {node["metadata"]["name"]: node for node in nodes}
    found = []
    for name in list(names) or sorted(by_name):
        wanted = dict.fromkeys(of_node.get(name, ()), 1) | dict(resources)
        wrong = lacks(by_name[name], wanted) if name in by_name else ["has not joined the cluster"]
        if wrong:
            found.append(f"{name} {' and '.join(wrong)}")
    return found or ([] if by_name else ["no node has this label"])


def latest_warnings(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the newest Warning events, each text once: ``Pod gpu-plugin-x: FailedCreatePodSandBox: …``."""
    newest = sorted(events, key=lambda e: str(e.get("lastTimestamp") or e.get("eventTime") or ""), reverse=True)
    lines: dict[str, str] = {}
    for event in newest:
        about, text = event.get("involvedObject") or {}, " ".join(str(event.get("message") or "").split())
        lines.setdefault(text, f"{about.get('kind')} {about.get('name')}: {event.get('reason')}: {text[:300]}")
    return list(lines.values())[:SHOWN_WARNINGS]


def hints(warnings: Iterable[str]) -> list[str]:
    """Return the remedies for the warnings whose cause is known, each once."""
    found = []
    for text in warnings:
        for pattern, hint in HINTS:
            if match := re.search(pattern, text):
                found.append(hint.format(**match.groupdict()))
    return list(dict.fromkeys(found))
