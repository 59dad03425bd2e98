# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say what SGLang's resolver and our own guards make of a published table. Private to the collection.

A row of such a table may carry ``cell``, what was run in the terms of a profile (``preset``, ``server_args``,
``topology``), and ``requests``, the statistics of its requests as its log has them.
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
    """Return what says which engine SGLang makes of a change of the profile; it raises ValueError."""

    def as_sglang(overlay: Mapping[str, Any]) -> Resolved:
        key, resolved = engine_of(profile, overlay)
        # A preset's status repeats what the table says; only what else is known can confirm it.
        return Resolved(key, [finding for finding in resolved.findings if finding.rule != "profile.broken"])

    return as_sglang


def _guards(requests: list[Mapping[str, Any]]) -> list[str]:
    """Return what the guards say of the requests' statistics."""
    recordings = [parse_recording(json.dumps(dict(r))) for r in requests]
    alone = {g.kind: g.detail for recording in recordings for g in judge_recording(recording)}
    together = {g.kind: g.detail for g in judge_cell(recordings)}
    return [f"{kind}: {detail}" for kind, detail in (alone | together).items()]


def examined(table: Mapping[str, Any], as_sglang: Callable[[Mapping[str, Any]], Resolved]) -> Report:
    """Return the table's report with a remark on every row of which resolver or guards have something to say.

    Rows that resolve to one engine get one key, so that they count as repetitions of each other; a row of broken output
    is not ranked, whatever the table says.
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
                remarks.append(f"the resolver makes the engine of {first[resolved.key]} of it")
            first.setdefault(resolved.key, cell_name(row.labels))
        signs = _guards(entry.get("requests", []))
        if signs:
            row.status = "garbage"
            remarks.append("the guards see " + "; ".join(signs))
        row.remark = ". ".join(remarks)
    return report
