# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the winners of a sweep as presets into a copy of the profile."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .._load.stats import spread
from .rank import pooled, winners
from .rows import Report, Row

PRESET_KEYS = ("server_args", "env", "topology", "image", "sglang_version")
SHAPE = re.compile(r"c0-n(\d+)$")


def _name(workload: str) -> str:
    match = SHAPE.match(workload)
    return f"tuned-n{match[1]}" if match else f"tuned-{workload}"


def _expected(report: Report, row: Row) -> dict[str, Any]:
    results = []
    for workload in report.workloads:
        match, rate = SHAPE.match(workload), spread(pooled(report, row, workload))["mean"]
        if match and rate:
            length = row.mean(workload, "accept_length")
            more = {"accept_length": round(length, 2)} if length else {}
            results.append({"concurrency": int(match[1]), "tokens_per_second": round(rate, 2)} | more)
    method = "sweep of this collection; sum of the requests' own tokens per second, mean of the repetitions"
    return {"source": f"sweep {report.title}", "method": method, "results": results}


def with_winners(profile: Mapping[str, Any], report: Report) -> tuple[dict[str, Any], list[str]]:
    """Return the profile with a preset ``tuned-…`` for each workload's winner, and a line about each.

    A winner that the repetitions cannot distinguish from others is included, and its description says so. Presets of an
    earlier sweep are replaced; everything else stays.
    """
    rows = {row.name: row for row in report.ranked}
    presets = {k: v for k, v in (profile.get("presets") or {}).items() if not k.startswith("tuned-")}
    lines = []
    for winner in winners(report):
        row = rows[winner.row]
        told = f"Winner for {winner.workload} in sweep {report.title}: {winner.doubt}"
        preset: dict[str, Any] = {"description": told}
        if row.overlay.get("preset"):
            preset["based_on"] = row.overlay["preset"]
        preset |= {key: row.overlay[key] for key in PRESET_KEYS if row.overlay.get(key)}
        expected = _expected(report, row)
        preset |= {"status": "measured", "source": expected["source"], "expected": expected}
        name = _name(winner.workload)
        presets[name] = preset
        transport = row.overlay.get("transport", "roce")
        note = f", served with -e transport={transport}" if transport != "roce" else ""
        lines.append(f"{name}: {winner.row}, {winner.doubt}{note}")
    return {**profile, "presets": presets}, lines
