# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters from the serving plan to Kubernetes objects, and from what runs back; each is documented in its YAML file."""

from __future__ import annotations

from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common import findings
from ansible_collections.gb10.cluster.plugins.module_utils._kube import group_status
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import RANK, REVISION
from ansible_collections.gb10.cluster.plugins.module_utils._kube.workloads import WORKLOADS
from ansible_collections.gb10.cluster.plugins.plugin_utils._paths import PROFILES
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving import compare, gateway, manifests, obstacles, types
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving import pods as serving_pods
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.catalogue import load_history


def serving_manifests(
    plan: dict[str, Any],
    options: dict[str, Any],
    files: dict[str, str],
    patches: dict[str, str],
    access: dict[str, Any],
) -> list[dict[str, Any]]:
    """Return all objects of a group."""
    secrets = {variable: (ref["secret"], ref["key"]) for variable, ref in options.get("secrets", {}).items()}
    pods = serving_pods.PodOptions(**{**options, "secrets": secrets})
    return manifests.render(plan, pods, files, patches, gateway.Access(**access))


def serving_outdated(live: list[dict[str, Any]], objects: list[dict[str, Any]]) -> list[str]:
    """Return the names of workloads that run another revision, the head's first; empty when none does."""
    revision = manifests.group_revision(objects)
    ours = [item for item in objects if item["kind"] in WORKLOADS]
    wanted = {(item["kind"], item["metadata"]["name"]) for item in ours}
    ranks = sorted(live, key=lambda item: int(item["metadata"]["labels"][RANK]))
    running = {(item["kind"], item["metadata"]["name"]): item["metadata"].get("annotations") or {} for item in ranks}
    same = running.keys() == wanted and all(a.get(REVISION) == revision for a in running.values())
    return [] if same else [name for _kind, name in running]


def serving_obstacles(plan: dict[str, Any], nads: list[dict[str, Any]], rooms: list[dict[str, Any]]) -> str:
    """Return what would keep the plan's pods from starting, a line each; an empty string when nothing would."""
    return findings.format_findings(obstacles.obstacles(plan, nads, rooms))


def serving_differences(plan: dict[str, Any], info: dict[str, Any]) -> list[str]:
    """Return what the running head says of itself that the plan did not ask for."""
    history = load_history(PROFILES / "catalogue")
    return compare.differences(plan["ranks"][0]["argv"], info, plan["sglang_version"], history)


class FilterModule:
    """Names under which playbooks find the filters."""

    def filters(self) -> dict[str, Any]:
        return {
            "serving_manifests": serving_manifests,
            "serving_instance": types.instance_name,
            "serving_unknown": group_status.unknown_group,
            "serving_differences": serving_differences,
            "serving_outdated": serving_outdated,
            "serving_obstacles": serving_obstacles,
            "serving_holders": group_status.holders,
        }
