# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the tables of a report as text, and the rows that it leaves out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .._load.stats import spread
from .rows import PEAK, Report, Row, shape, traffic

SHOWN = {
    PEAK: ("peak tok/s", 1, ".2f"),
    "wall_tok_s": ("wall tok/s", 1, ".2f"),
    "ttft_s": ("TTFT s", 1, ".3f"),
    "itl_s": ("ITL ms", 1000, ".2f"),
    "prefill_tok_s": ("prefill tok/s", 1, ".0f"),
    "accept_length": ("accept length", 1, ".2f"),
    "accept_rate": ("accept rate", 1, ".4g"),
    "token_usage": ("token usage", 1, ".2f"),
    "running": ("running", 1, ".0f"),
}
"""The format of each column: its header, the factor of its unit, and the format of its numbers."""

BY_CONTEXT = ("ttft_s", "prefill_tok_s")
FIGURES = tuple(column for column in SHOWN if column != PEAK)


def _shown(row: Row, workload: str, column: str) -> str:
    """Return mean and standard deviation of a column, in brackets if the row is not ranked."""
    factor, form = SHOWN[column][1:]
    figures = spread([factor * v for v in row.values(workload, column)])
    mean, deviation = figures["mean"], figures["stdev"]
    if mean is None:
        return ""
    text = f"{mean:{form}}" + (f" ± {deviation:{form}}" if deviation else "")
    return text if row.status == "ok" else f"({text})"


def table(report: Report) -> list[list[str]]:
    """Return the main table as text, the header first: labels, one peak rate per workload, status."""
    labels = list(dict.fromkeys(k for r in report.rows for k in r.labels))
    alike = all(set(r.labels) == set(labels) for r in report.rows)
    out = [[*(labels if alike else ["cell"]), *(f"{traffic(w)}: tok/s" for w in report.workloads), "state"]]
    for row in report.rows:
        cells = [row.labels[name] for name in labels] if alike else [row.name]
        out.append([*cells, *(_shown(row, w, PEAK) for w in report.workloads), row.status])
    return out


def context_table(report: Report) -> list[list[str]]:
    """Return prefill and time to the first token by context, the shortest first; empty if there is only one context."""
    known = {w for r in report.rows for w, column in r.figures if column in BY_CONTEXT}
    if len({shape(w)[0] for w in known}) < 2:
        return []
    out = [["load", "cell", *(SHOWN[c][0] for c in BY_CONTEXT)]]
    for workload in sorted(known, key=shape):
        for row in report.rows:
            cells = [_shown(row, workload, c) for c in BY_CONTEXT]
            if any(cells):
                out.append([traffic(workload), row.name, *cells])
    return out


def _change(report: Report, row: Row, workload: str) -> str:
    """Return the relative difference between the peak rates of the row and of the baseline."""
    mean, base = row.mean(workload), report.baseline.mean(workload) if report.baseline else None
    counts = row.status == "ok" and row is not report.baseline
    return f"{mean / base - 1:+.1%}" if counts and mean and base else ""


def _counted(outcome: Mapping[str, int]) -> str:
    return f"{outcome.get('ok', 0)}/{outcome.get('failed', 0)}" if outcome else ""


def _ended(finishes: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {n}" for reason, n in finishes.items())


def figures_table(report: Report) -> list[list[str]]:
    """Return all other figures, one line per workload and cell, without empty columns.

    The first column is the change of the peak rate against the baseline; columns of `context_table` are not repeated.
    """
    columns = [c for c in FIGURES if not (c in BY_CONTEXT and context_table(report))]
    base = report.baseline.name if report.baseline else ""
    head = ["load", "cell", f"Δ to {base}", *(SHOWN[c][0] for c in columns), "ok/failed", "ended by"]
    lines = []
    for workload in dict.fromkeys([*report.workloads, *(key[0] for r in report.rows for key in r.figures)]):
        for row in report.rows:
            cells = [_change(report, row, workload), *(_shown(row, workload, c) for c in columns)]
            cells += [_counted(row.outcomes.get(workload, {})), _ended(row.finishes.get(workload, {}))]
            if any(cells):
                lines.append([traffic(workload), row.name, *cells])
    return _without_empty_columns([head, *lines]) if lines else []


def _without_empty_columns(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    kept = [i for i in range(len(rows[0])) if any(row[i] for row in rows[1:])]
    return [[row[i] for i in kept] for row in rows]


def left_out(report: Report) -> list[str]:
    """Return one line per row that is not ranked or has a remark: its name, its status and the reason."""
    lines = []
    for row in report.rows:
        if row.status != "ok" or row.reason or row.remark:
            status = ": ".join(filter(None, (row.status, row.reason)))
            lines.append(f"{row.name}: {'. '.join(filter(None, (status, row.remark)))}")
    return lines
