# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find what would prevent a group from starting, before a running one is stopped. Private to the collection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import FALLBACK, INSTANCE, REVISION
from ansible_collections.gb10.cluster.plugins.module_utils._kube.node_room import Holder, Room, untolerated

from .._rules import Rules
from .model import Plan, RankPlan

_RULES = Rules("_serving")


def obstacles(
    plan: Plan,
    nads: Iterable[Mapping[str, Any]],
    rooms: Iterable[Room],
    unread: Iterable[str] = (),
    tolerations: Sequence[Mapping[str, Any]] = (),
) -> list[Finding]:
    """Return an error for everything in the cluster that prevents a rank of ``plan`` from starting on its node.

    ``nads`` are the NetworkAttachmentDefinitions of the plan's namespace, ``rooms`` the nodes as module node_room_info
    returns them; ``unread`` may contain ``nodes``, and then they are not judged. Pods of the same group are no
    obstacle: they stop before the new ones start. ``tolerations`` are those of the pods.
    """
    present = {nad["metadata"]["name"] for nad in nads}
    by_host = {room.host: room for room in rooms}
    found: list[Finding] = []
    for entry in plan.ranks:
        found += [
            _error("serving.nad.missing", one.name, entry, namespace=plan.namespace, interface=one.interface)
            for one in entry.networks
            if one.name not in present
        ]
        if "nodes" in unread:
            continue
        room = by_host.get(entry.node)
        if room is None:
            found.append(_error("serving.node.absent", entry.node, entry))
        else:
            found += [_error(rule, room.node, entry, **words) for rule, words in closed(room, tolerations)]
            found += _shortages(entry, room, plan)
    return found


def unknown_group(accounts: Iterable[Mapping[str, Any]], instance: str, namespace: str) -> list[Finding]:
    """Return an error if the group is not named or does not exist.

    ``accounts`` are the namespace's ServiceAccounts. Of a group's objects, this is created first and deleted last.
    """
    found = {item["metadata"].get("labels", {}).get(INSTANCE, "") for item in accounts} - {""}
    if instance in found:
        return []
    present = ", ".join(sorted(found)) or "none"
    rule = "serving.group.unknown" if instance else "serving.group.unnamed"
    return [_RULES.finding(rule, instance or None, namespace=namespace, present=present)]


def replaced(objects: Iterable[Mapping[str, Any]], ranks: Iterable[Mapping[str, Any]], instance: str) -> list[Finding]:
    """Return an error if ranks run another revision than that of the ``objects`` that were applied.

    ``ranks`` are those of module serving_group_info.
    """
    applied = {
        (item["spec"]["template"]["metadata"].get("annotations") or {}).get(REVISION, "")
        for item in objects
        if item["kind"] == "StatefulSet" and FALLBACK not in (item["metadata"].get("labels") or {})
    }
    other = {str(rank["pod"]): str(rank["revision"]) for rank in ranks if rank["revision"] not in applied}
    if not other:
        return []
    shown = ", ".join(f"{pod} has {revision or 'none'}" for pod, revision in sorted(other.items()))
    return [_RULES.finding("serving.group.replaced", instance, revision=", ".join(sorted(applied)), pods=shown)]


def _error(rule: str, key: str, entry: RankPlan, **words: object) -> Finding:
    return _RULES.finding(rule, None, f"rank {entry.rank} on {entry.node}", key=key, **words)


def closed(room: Room, tolerations: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the rules by which no pod with these tolerations can start on a node, each with its words."""
    if room.trouble:
        yield "serving.node.not_ready", {"trouble": room.trouble}
    if room.disk:
        yield "serving.node.disk", {"disk": room.disk}
    if room.cordoned:
        yield "serving.node.cordoned", {}
    if taints := untolerated(room, tolerations):
        wanted = ", ".join(f"{{key: {taint.key}, operator: Exists}}" for taint in taints)
        yield "serving.node.tainted", {"taints": ", ".join(map(str, taints)), "wanted": wanted}


def _shortages(entry: RankPlan, room: Room, plan: Plan) -> list[Finding]:
    own = (plan.namespace, plan.instance)
    found = []
    for resource, needed in entry.limits.items():
        total = room.offers.get(resource, 0)
        others = [h for h in room.holders if resource in h.resources and (h.namespace, h.instance) != own]
        if needed > total:
            found.append(_error("serving.node.full/offers", resource, entry, total=total, needed=needed))
        elif needed > total - sum(h.resources[resource] for h in others):
            held = ", ".join(f"pod {h.namespace}/{h.pod} holds {h.resources[resource]}" for h in others)
            words = {"total": total, "needed": needed, "held": held, "fix": _fix(others)}
            found.append(_error("serving.node.full/held", resource, entry, **words))
    return found


def _fix(others: Sequence[Holder]) -> str:
    groups = sorted({holder.instance for holder in others} - {""})
    if not groups:
        return "Delete that pod"
    stops = " and ".join(f"playbooks/serve_stop.yml -e instance={group}" for group in groups)
    return f"Stop the other group first ({stops})"
