# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What would keep a group's pods from starting, told before a running one is taken down. Private to the collection.

Objects are the API's JSON (camelCase). Nothing here asks the API.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ._findings import Finding
from ._serving_manifests import INSTANCE

_Object = Mapping[str, Any]


def obstacles(
    plan: _Object, nads: Iterable[_Object], nodes: Iterable[_Object], pods: Iterable[_Object]
) -> list[Finding]:
    """Return an error for everything in the cluster that keeps a rank of ``plan`` from its node.

    ``nads`` are those of the plan's namespace, ``nodes`` and ``pods`` those of the whole cluster. A group's own pods
    never stand in its way: they go before their successors come.
    """
    present = {nad["metadata"]["name"] for nad in nads}
    by_host = {node["metadata"].get("labels", {}).get("kubernetes.io/hostname"): node for node in nodes}
    others = [pod for pod in pods if _holds(pod) and not _own(pod, plan)]
    found: list[Finding] = []
    for entry in plan["ranks"]:
        found += _missing_nads(entry, plan["namespace"], present)
        node = by_host.get(entry["node"])
        if node is None:
            found.append(_absent(entry))
        else:
            found += [*_closed(entry, node), *_shortages(entry, node, others)]
    return found


def _where(entry: _Object) -> str:
    return f"rank {entry['rank']} on {entry['node']}"


def _missing_nads(entry: _Object, namespace: str, present: set[str]) -> list[Finding]:
    return [
        Finding(
            "error",
            "serving.nad.missing",
            network["name"],
            None,
            f"namespace {namespace} has no NetworkAttachmentDefinition of this name, which the pod's"
            f" {network['interface']} needs",
            "Run playbooks/kubernetes.yml again, which defines all networks, or use another serving_plan_vf_index",
            _where(entry),
        )
        for network in entry["networks"]
        if network["name"] not in present
    ]


def _absent(entry: _Object) -> Finding:
    return Finding(
        "error",
        "serving.node.absent",
        entry["node"],
        None,
        "the cluster has no node with this kubernetes.io/hostname",
        "Run playbooks/kubernetes.yml, which lets the host join, or name other hosts in serving_plan_nodes",
        _where(entry),
    )


def _closed(entry: _Object, node: _Object) -> list[Finding]:
    name = node["metadata"]["name"]
    conditions = {c.get("type"): c for c in node.get("status", {}).get("conditions") or []}
    ready = conditions.get("Ready", {"message": "it never reported"})
    found = []
    if ready.get("status") != "True":
        reason = f"the node is not ready: {ready.get('message') or 'it gives no reason'}"
        remedy = "Bring its kubelet back (systemctl status k3s or k3s-agent there), or serve on other nodes"
        found.append(Finding("error", "serving.node.not-ready", name, None, reason, remedy, _where(entry)))
    if node.get("spec", {}).get("unschedulable"):
        reason = "the node is cordoned, so no pod may start there"
        remedy = f"kubectl uncordon {name} when its maintenance is over, or serve on other nodes"
        found.append(Finding("error", "serving.node.cordoned", name, None, reason, remedy, _where(entry)))
    return found


def _shortages(entry: _Object, node: _Object, others: Sequence[_Object]) -> list[Finding]:
    there = [pod for pod in others if pod["spec"].get("nodeName") == node["metadata"]["name"]]
    offered = node.get("status", {}).get("allocatable") or {}
    found = []
    for resource, needed in entry["resources"]["limits"].items():
        total = int(offered.get(resource, 0))
        held = [(pod, count) for pod in there if (count := _asked(pod, resource))]
        if needed > total:
            reason = f"the node offers {total} of it and the rank needs {needed}"
            remedy = "Run playbooks/kubernetes.yml, whose device plugins offer it, and look at their pods' logs"
        elif needed > total - sum(count for _pod, count in held):
            holders = ", ".join(_describe(pod, count) for pod, count in held)
            reason = f"the node offers {total} of it, the rank needs {needed}, and {holders}"
            remedy = _remedy([pod for pod, _count in held])
        else:
            continue
        found.append(Finding("error", "serving.node.full", resource, None, reason, remedy, _where(entry)))
    return found


def _describe(pod: _Object, count: int) -> str:
    return f"pod {pod['metadata']['namespace']}/{pod['metadata']['name']} holds {count}"


def _remedy(holding: Sequence[_Object]) -> str:
    groups = sorted({group for pod in holding if (group := _instance(pod))})
    if not groups:
        return "Take that pod away, or serve on other nodes (serving_plan_nodes)"
    stops = " and ".join(f"playbooks/serve_stop.yml -e instance={group}" for group in groups)
    return f"Stop the other group first ({stops}), or serve on other nodes (serving_plan_nodes)"


def _instance(pod: _Object) -> str:
    return str((pod["metadata"].get("labels") or {}).get(INSTANCE, ""))


def _own(pod: _Object, plan: _Object) -> bool:
    return bool(_instance(pod) == plan["instance"] and pod["metadata"].get("namespace") == plan["namespace"])


def _holds(pod: _Object) -> bool:
    """Tell whether the pod goes on holding what it has: neither ended nor about to be gone."""
    ended = pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}
    return not ended and not pod["metadata"].get("deletionTimestamp")


def _asked(pod: _Object, resource: str) -> int:
    """Return how many of an extended resource the scheduler books: what all containers take, or the greediest init."""
    spec = pod["spec"]
    together = sum(_limit(container, resource) for container in spec.get("containers") or [])
    return max([together, *(_limit(container, resource) for container in spec.get("initContainers") or [])])


def _limit(container: _Object, resource: str) -> int:
    # Extended resources are whole numbers, requested as they are limited (Kubernetes, "Extended resources").
    return int((container.get("resources", {}).get("limits") or {}).get(resource, 0))
