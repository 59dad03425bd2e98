# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Add the remarks of SGLang's resolver and of the output guards to a published table.

A row of such a table may have ``cell``, the launch in the terms of a profile (``preset``, ``server_args``,
``topology``), and ``requests``, the statistics of its requests from its log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import has_errors
from ansible_collections.gb10.cluster.plugins.plugin_utils._output.record import (
    judge_cell,
    judge_recording,
    parse_recording,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._report.rows import Report, from_published
from ansible_collections.gb10.cluster.plugins.plugin_utils._sweep.engine import engine_of
from ansible_collections.gb10.cluster.plugins.plugin_utils._sweep.plan import Resolved, cell_name


def resolver(profile: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Resolved]:
    """Return a function that resolves a change of the profile to its engine; it raises ValueError."""

    def as_sglang(overlay: Mapping[str, Any]) -> Resolved:
        key, resolved = engine_of(profile, overlay)
        # A preset's status repeats the table's own statement, so only the other findings can confirm it.
        return Resolved(key, [finding for finding in resolved.findings if finding.rule != "profile.broken"])

    return as_sglang


def _guards(requests: list[Mapping[str, Any]]) -> list[str]:
    """Return the findings of the output guards about the statistics of the requests."""
    recordings = [parse_recording(json.dumps(dict(r))) for r in requests]
    alone = {g.kind: g.detail for recording in recordings for g in judge_recording(recording)}
    together = {g.kind: g.detail for g in judge_cell(recordings)}
    return [f"{kind}: {detail}" for kind, detail in (alone | together).items()]


def examined(table: Mapping[str, Any], as_sglang: Callable[[Mapping[str, Any]], Resolved]) -> Report:
    """Return the report of the table, with a remark on every row about which the resolver or the guards have findings.

    Rows that resolve to one engine get the same key, so that they count as repetitions of each other. A row with broken
    output is not ranked, whatever its status in the table.
    """
    report = from_published(table)
    report.profile = str(table.get("profile", ""))
    first: dict[str, str] = {}
    for row, entry in zip(report.rows, table["rows"], strict=True):
        remarks = []
        cell = entry.get("cell")
        if cell is not None and report.profile:
            resolved = as_sglang(cell)
            row.overlay, row.key = dict(cell), resolved.key
            if has_errors(resolved.findings):
                reasons = dict.fromkeys(f.reason for f in resolved.findings if f.severity == "error")
                remarks.append("the resolver refuses it: " + "; ".join(reasons))
            elif resolved.key in first:
                remarks.append(f"it resolves to the same engine as {first[resolved.key]}")
            first.setdefault(resolved.key, cell_name(row.labels))
        signs = _guards(entry.get("requests", []))
        if signs:
            row.status = "garbage"
            remarks.append("the guards see " + "; ".join(signs))
        row.remark = ". ".join(remarks)
    return report
