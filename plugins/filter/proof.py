# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Mapping
from statistics import median_high
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Rule, Rules

RULES = Rules(
    {
        "verify.compare.unproved": Rule(
            "both transports have to be verified in this run before they can be compared",
            "Run playbook compare_transports, which does that.",
            "nccl_verify_results",
        ),
        "verify.compare.slow": Rule(
            "RDMA is {ratio} times as fast as TCP",
            "The transport is proved, so look at its speed: playbook fabric with --tags fabric_check, firmware after a"
            " replug, MTU at both ends.",
            "nccl_verify_min_ratio",
        ),
    }
)

SIDES = {"rdma": "RDMA", "tcp": "TCP "}
SMALLEST_RATE = 0.001  # tokens per second; a run without tokens must not divide by zero


def compare_speed(
    results: Mapping[str, Mapping[str, Any]], instance: str, tokens: int, least: float = 0
) -> dict[str, Any]:
    """Return the ratio of the medians, the report as lines, and what is wrong with it as findings.

    ``results`` are the proofs by transport class, ``least`` is the ratio that RDMA has to reach.
    """
    if not results.keys() >= SIDES.keys():
        problem = RULES.finding("verify.compare.unproved", sorted(results))
        return {"ratio": 0.0, "lines": [], "findings": [problem.as_dict()]}
    rates = {side: [run["tokens_per_second"] for run in results[side]["measured"]] for side in SIDES}
    medians = {side: median_high(runs) for side, runs in rates.items()}
    ratio = round(medians["rdma"] / max(medians["tcp"], SMALLEST_RATE), 2)
    lines = [f"{instance}: one stream of {tokens} tokens, {len(rates['rdma'])} runs each"]
    for side, name in SIDES.items():
        runs = ", ".join(map(str, rates[side]))
        lines.append(f"{name}  median {medians[side]} tok/s  ({runs})  {results[side]['msg']}")
    lines.append(f"RDMA is {ratio} times as fast as TCP")
    buses = {side: results[side].get("bandwidth") or {} for side in SIDES}
    if all(buses.values()):
        shown = ", ".join(f"{name.strip()} {buses[side]['busbw']} GB/s" for side, name in SIDES.items())
        lines.append(f"all-reduce on the bus: {shown}")
    problem = RULES.finding("verify.compare.slow", least, ratio=ratio)
    return {"ratio": ratio, "lines": lines, "findings": [problem.as_dict()] if ratio < least else []}


class FilterModule:
    """Names under which playbooks find the filters."""

    def filters(self) -> dict[str, Any]:
        return {"compare_speed": compare_speed}
