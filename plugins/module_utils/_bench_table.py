# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a report as text: the table, the headlines, Markdown. Private to the collection."""

from __future__ import annotations

from ._bench_rank import noise_floor, winners
from ._bench_report import Report
from ._load_stats import spread

SHOWN = {
    "wall_tok_s": "tokens over wall time",
    "ttft_s": "TTFT s",
    "prefill_tok_s": "prefill tok/s",
    "accept_length": "accept length",
    "accept_rate": "accept rate",
}
"""Columns of the main table beside the peak rates, where there are figures for them."""

DIGITS = {"wall_tok_s": 2, "prefill_tok_s": 0, "accept_length": 2, "accept_rate": 2}


def table(report: Report) -> list[list[str]]:
    """Return the main table as text, the header first: labels, one rate column a workload, other figures, state."""
    labels = list(dict.fromkeys(k for r in report.rows for k in r.labels))
    alike = all(set(r.labels) == set(labels) for r in report.rows)
    workloads = report.workloads
    extra = [
        (w, c)
        for w in dict.fromkeys([*workloads, *(w for r in report.rows for w, _unused in r.figures)])
        for c in SHOWN
        if any((w, c) in r.figures for r in report.rows)
    ]
    out = [
        [
            *(labels if alike else ["cell"]),
            *(f"{w} tok/s" for w in workloads),
            *(f"{w} {SHOWN[c]}" for w, c in extra),
            "state",
        ]
    ]
    for row in report.rows:
        cells = [row.labels[name] for name in labels] if alike else [row.name]
        for workload in workloads:
            figures = spread(row.rates.get(workload, []))
            mean, deviation = figures["mean"], figures["stdev"]
            shown = "" if mean is None else f"{mean:.2f}" + (f" ± {deviation:.2f}" if deviation else "")
            cells.append(f"({shown})" if shown and row.status != "ok" else shown)
        cells += [f"{row.figures[e]:.{DIGITS.get(e[1], 3)}f}" if e in row.figures else "" for e in extra]
        out.append([*cells, row.status])
    return out


def left_out(report: Report) -> list[str]:
    """Return a line for every row that is not ranked or of which there is something to say: its name, state and why."""
    lines = []
    for row in report.rows:
        said = [text for text in (row.reason, row.remark) if text]
        if row.status != "ok" or said:
            lines.append(f"{row.name}: {'. '.join([row.status, *said])}")
    return lines


def headlines(report: Report) -> list[str]:
    """Return what a reader wants to know first, a line each: winners with their doubt, the noise floor, the notes."""
    lines = []
    for w in winners(report):
        if w.workload == "mixed":
            lines.append(f"mixed traffic: {w.row}, never below {w.tok_s:.0%} of the best")
            continue
        doubt = "one measurement only"
        if w.tied:
            doubt = f"not distinguishable from {', '.join(w.tied)}"
        lines.append(f"{w.workload}: {w.row}, {w.tok_s:.2f} tok/s" + ("" if w.certain else f"; {doubt}"))
    for workload, floor in noise_floor(report).items():
        lines.append(f"noise floor at {workload}: {floor:.1%} between rows that are one engine configuration")
    return lines + report.notes


def markdown(report: Report) -> str:
    """Return the report as Markdown."""
    lines = [f"# {report.title}", ""]
    if report.source:
        lines += [f"Source: {report.source}", ""]
    header, *rows = table(report)
    escape = [[c.replace("|", "\\|") for c in r] for r in (header, *rows)]
    lines += ["| " + " | ".join(escape[0]) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(r) + " |" for r in escape[1:]]
    lines += ["", "## Winners", "", *(f"- {line}" for line in headlines(report)), ""]
    if left_out(report):
        lines += ["", "## Left out, and remarks", "", *(f"- {line}" for line in left_out(report)), ""]
    if report.reproduce:
        lines += ["", "## Again", "", "```", report.reproduce, "```"]
    return "\n".join(lines).rstrip() + "\n"
