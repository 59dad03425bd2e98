# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters about a serving plan and the group that it makes; each is documented in its YAML file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common import findings, plain
from ansible_collections.gb10.cluster.plugins.module_utils._kube import group_status
from ansible_collections.gb10.cluster.plugins.module_utils._kube.node_room import Room
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.data import PROFILES
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving import obstacles, plan, rights, summary
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.model import Plan, instance_name
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.catalogue import load_history


def serving_obstacles(
    plan: dict[str, Any],
    nads: list[dict[str, Any]],
    rooms: list[dict[str, Any]],
    unread: list[str] | None = None,
    tolerations: list[dict[str, Any]] | None = None,
    resources: dict[str, Any] | None = None,
    computed: bool = True,
    kubeconfig: str | None = None,
    context: str | None = None,
) -> list[dict[str, Any]]:
    """Return what would prevent the plan's pods from starting."""
    known, asked = [plain.load(Room, room) for room in rooms], (resources, computed, kubeconfig, context)
    return findings.as_dicts(
        obstacles.obstacles(Plan.from_dict(plan), nads, known, unread or (), tolerations or (), *asked)
    )


def found_by(check: Callable[..., Iterable[findings.Finding]]) -> Callable[..., list[dict[str, Any]]]:
    """Return a filter that returns what a check finds."""
    return lambda *given, **named: findings.as_dicts(check(*given, **named))


def serving_taken(plan: dict[str, Any], workloads: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return which VFs of the plan another group has got since it was planned."""
    return findings.as_dicts(obstacles.taken(Plan.from_dict(plan), group_status.holders(workloads)))


def serving_differences(plan: dict[str, Any], info: dict[str, Any]) -> list[str]:
    """Return the settings that the head reports with other values than the plan gave it or its image expected."""
    history = load_history(PROFILES / "catalogue")
    changed = summary.differences(plan["ranks"][0]["argv"], info, plan["sglang_version"], history)
    return changed + summary.unforeseen((plan.get("image_verdict") or {}).get("resolved") or {}, info)


def serving_rights(
    objects: list[dict[str, Any]], plan: dict[str, Any], secret: bool, subjects: list[dict[str, str]]
) -> str:
    """Return the Roles and bindings that a user needs for a group of these objects, as YAML."""
    namespace, instance = plan["namespace"], plan["instance"]
    return rights.manifest(rights.needed(objects, namespace, instance, secret), namespace, instance, subjects)


def existing_cluster(found: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    """Return what of an existing cluster is used, and what it lacks."""
    lines, said = obstacles.judge(found, obstacles.Wanted(**wanted))
    return {"text": "\n".join(lines), "findings": findings.as_dicts(said)}


def summary_lines(
    plan: dict[str, Any],
    pods: list[dict[str, Any]],
    hostvars: Mapping[str, Mapping[str, Any]],
    verdict: dict[str, Any],
    generation: dict[str, Any],
    kubeconfig: str,
    context: str,
) -> list[str]:
    """Return the summary as lines from the registered results of role summary; a task may have been skipped."""
    group = Plan.from_dict(plan)
    read = {rank.node: hostvars[rank.node].get("summary_gids", {}) for rank in group.ranks if rank.node in hostvars}
    devices = {node: found.get("devices", []) for node, found in read.items()}
    sizes = {
        rank.rank: read[rank.node].get("pod_mtus", {}).get(f"{group.namespace}/{rank.pod}", {})
        for rank in group.ranks
        if rank.node in read
    }
    measured = verdict.get("measured") or [json.loads(generation.get("stdout") or "{}")]
    lines = summary.summary(group, pods, summary.gids(devices), sizes, verdict, measured[0], kubeconfig, context)
    return [*lines[:1], *summary.judged(plan.get("image_verdict") or {}), *lines[1:]]


def serving_logs(read: list[dict[str, Any]], namespace: str, kubeconfig: str, context: str, last_hang: str = "") -> str:
    """Return when and why the group hung last, and the logs of ranks, as text."""
    hang = [f"Last hang: {last_hang}"] if last_hang else []
    return "\n".join(hang + summary.shown_logs(read, namespace, kubeconfig, context))


def serving_requests(plan: dict[str, Any], kubeconfig: str, context: str) -> str:
    """Return the commands that send a first request to a group."""
    return "\n".join(summary.next_steps(Plan.from_dict(plan), kubeconfig, context))


class FilterModule:
    """Names under which playbooks find the filters."""

    def filters(self) -> dict[str, Any]:
        return {
            "summary_lines": summary_lines,
            "serving_logs": serving_logs,
            "serving_requests": serving_requests,
            "serving_served": summary.served,
            "serving_instance": instance_name,
            "serving_unknown": found_by(obstacles.unknown_group),
            "serving_replaced": found_by(obstacles.replaced),
            "serving_taken": serving_taken,
            "serving_differences": serving_differences,
            "serving_obstacles": serving_obstacles,
            "serving_rights": serving_rights,
            "existing_cluster": existing_cluster,
            "serving_holders": group_status.holders,
            "serving_fallback": plan.kept,
        }
