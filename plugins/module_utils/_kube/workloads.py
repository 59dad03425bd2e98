# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kinds of workloads that run the ranks of a serving group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WORKLOADS = ("StatefulSet", "LeaderWorkerSet")


def pod_templates(item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the pod templates of a workload (an API object), rank 0 first."""
    if item.get("kind") == "LeaderWorkerSet":
        template = item["spec"]["leaderWorkerTemplate"]
        return [template["leaderTemplate"], template["workerTemplate"]]
    return [item["spec"]["template"]]
