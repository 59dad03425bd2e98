# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter of role summary; it is documented in its YAML file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.plugin_utils._serving import summary
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.model import Plan


def summary_lines(
    plan: dict[str, Any],
    pods: list[dict[str, Any]],
    hostvars: Mapping[str, Mapping[str, Any]],
    verdict: dict[str, Any],
    generation: dict[str, Any],
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
    return summary.summary(group, pods, summary.gids(devices), sizes, verdict, measured[0], context)


class FilterModule:
    """Names under which playbooks find the filters."""

    def filters(self) -> dict[str, Any]:
        return {"summary_lines": summary_lines}
