# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Format measurements and sweep plans as lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.plain import align
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.rows import traffic
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.sweep import cell_name


def _figure(spread: Mapping[str, Any] | None, digits: int = 1) -> str:
    if not spread or spread.get("mean") is None:
        return "-"
    deviation = f" ± {spread['stdev']:.{digits}f}" if spread.get("stdev") else ""
    return f"{spread['mean']:.{digits}f}{deviation}"


def bench_lines(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table: workload, sum of the requests' rates, tokens over wall time, TTFT, status."""
    rows = [["workload", "peak tok/s", "wall tok/s", "TTFT s", "ITL ms", "accept", "state"]]
    for cell in cells:
        itl = cell.get("itl_s") or {}
        scaled = {k: v * 1000 for k, v in itl.items() if k in ("mean", "stdev") and v is not None}
        rows.append(
            [
                traffic(cell["workload"]["name"]),
                _figure(cell.get("peak_tok_s")),
                _figure(cell.get("wall_tok_s")),
                _figure(cell.get("ttft_s"), 3),
                _figure(scaled),
                _figure(cell.get("accept_length"), 2),
                cell["status"] + (f": {cell['reason']}" if cell.get("reason") else ""),
            ]
        )
    return align(rows)


def sweep_lines(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line per cell: its labels, and whether it is measured."""
    names = {cell["id"]: cell_name(cell["labels"]) for cell in cells}
    rows = []
    for cell in cells:
        why = "; ".join(r["reason"] for r in cell.get("reasons", []) if r.get("severity") == "error")
        if cell["status"] == "duplicate":
            why = f"the command line of {names.get(cell['duplicate_of'], cell['duplicate_of'])}"
        rows.append([names[cell["id"]], cell["status"], why])
    return align(rows)


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"bench_lines": bench_lines, "sweep_lines": sweep_lines}
