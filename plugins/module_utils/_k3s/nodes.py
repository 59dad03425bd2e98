# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report why Kubernetes nodes are not ready for the model. Private to the collection.

Objects are the API's JSON. This module does not call the API, and no message contains an API object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._kube.node_room import units


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
