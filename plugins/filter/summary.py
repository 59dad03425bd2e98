# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The filter of role summary; it is documented in its YAML file."""

from __future__ import annotations

from typing import Any

from ansible_collections.gb10.cluster.plugins.plugin_utils._serving import summary
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.model import Plan


def summary_lines(
    plan: dict[str, Any],
    pods: list[dict[str, Any]],
    devices: dict[str, list[dict[str, Any]]],
    mtus: dict[int, list[str]],
    verdict: dict[str, Any],
    generation: dict[str, Any],
) -> list[str]:
    """Return the summary as lines; ``devices`` come from roce_gid_info by node, ``mtus`` from the pods by rank."""
    return summary.summary(Plan.from_dict(plan), pods, summary.gids(devices), mtus, verdict, generation)


class FilterModule:
    """Names under which playbooks find the filters."""

    def filters(self) -> dict[str, Any]:
        return {"summary_lines": summary_lines}
