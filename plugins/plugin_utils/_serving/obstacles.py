# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find what would prevent a group from starting, before a running one is stopped. Private to the collection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._kube.node_room import Holder, Room

from .model import Plan, RankPlan


def obstacles(
    plan: Plan, nads: Iterable[Mapping[str, Any]], rooms: Iterable[Room], unread: Iterable[str] = ()
) -> list[Finding]:
    """Return an error for everything in the cluster that prevents a rank of ``plan`` from starting on its node.

    ``nads`` are the NetworkAttachmentDefinitions of the plan's namespace, ``rooms`` the nodes as module node_room_info
    returns them; ``unread`` may contain ``nodes``, and then they are not judged. Pods of the same group are no
    obstacle: they stop before the new ones start.
    """
    present = {nad["metadata"]["name"] for nad in nads}
    by_host = {room.host: room for room in rooms}
    found: list[Finding] = []
    for entry in plan.ranks:
        found += _missing_nads(entry, plan.namespace, present)
        if "nodes" in unread:
            continue
        room = by_host.get(entry.node)
        found += [_absent(entry)] if room is None else [*_closed(entry, room), *_shortages(entry, room, plan)]
    return found


def _error(rule: str, key: str, reason: str, remedy: str, entry: RankPlan) -> Finding:
    return Finding("error", rule, key, None, reason, remedy, f"rank {entry.rank} on {entry.node}")


def _missing_nads(entry: RankPlan, namespace: str, present: set[str]) -> list[Finding]:
    remedy = "Run playbooks/kubernetes.yml again, which creates all networks, or use another serving_plan_vf_index"
    return [
        _error(
            "serving.nad.missing",
            network.name,
            f"namespace {namespace} has no NetworkAttachmentDefinition of this name, which the pod's"
            f" {network.interface} needs",
            remedy,
            entry,
        )
        for network in entry.networks
        if network.name not in present
    ]


def _absent(entry: RankPlan) -> Finding:
    reason = "the cluster has no node with this kubernetes.io/hostname"
    remedy = "Run playbooks/kubernetes.yml, which joins the host to the cluster, or set other serving_plan_nodes"
    return _error("serving.node.absent", entry.node, reason, remedy, entry)


def _closed(entry: RankPlan, room: Room) -> list[Finding]:
    node, found = room.node, []
    if room.trouble:
        reason = f"the node is not ready: {room.trouble}"
        remedy = "Start its kubelet again (systemctl status k3s or k3s-agent there), or serve on other nodes"
        found.append(_error("serving.node.not-ready", node, reason, remedy, entry))
    if room.disk:
        reason = f"the disk of the node is too full, so no pod may start there: {room.disk}"
        remedy = "Free space on it (preflight shows how much is left). The kubelet admits pods again five minutes later"
        found.append(_error("serving.node.disk", node, reason, remedy, entry))
    if room.cordoned:
        reason = "the node is cordoned, so no pod may start there"
        remedy = f"Run kubectl uncordon {node} after its maintenance, or serve on other nodes"
        found.append(_error("serving.node.cordoned", node, reason, remedy, entry))
    return found


def _shortages(entry: RankPlan, room: Room, plan: Plan) -> list[Finding]:
    own = (plan.namespace, plan.instance)
    found = []
    for resource, needed in entry.limits.items():
        total = room.offers.get(resource, 0)
        others = [h for h in room.holders if resource in h.resources and (h.namespace, h.instance) != own]
        if needed > total:
            reason = f"the node offers {total} and the rank needs {needed}"
            remedy = "Run playbooks/kubernetes.yml, which installs the device plugins, and read the logs of their pods"
        elif needed > total - sum(h.resources[resource] for h in others):
            held = ", ".join(f"pod {h.namespace}/{h.pod} holds {h.resources[resource]}" for h in others)
            reason = f"the node offers {total}, the rank needs {needed}, and {held}"
            remedy = _remedy(others)
        else:
            continue
        found.append(_error("serving.node.full", resource, reason, remedy, entry))
    return found


def _remedy(others: Sequence[Holder]) -> str:
    groups = sorted({holder.instance for holder in others} - {""})
    if not groups:
        return "Delete that pod, or serve on other nodes (serving_plan_nodes)"
    stops = " and ".join(f"playbooks/serve_stop.yml -e instance={group}" for group in groups)
    return f"Stop the other group first ({stops}), or serve on other nodes (serving_plan_nodes)"
