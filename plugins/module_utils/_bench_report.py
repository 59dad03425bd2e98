# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Turn the records of a sweep, or a published table, into the tables of a report. Private to the collection.

Everything here is data in, data out; `_bench_html` and `_bench_plots` show it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ._load_stats import distinguishable, spread

SHAPES = (1, 4, 8)
"""Concurrencies for which a winner is named, as the published reports do."""


@dataclass
class Row:
    """One cell: its labels, its state, and per workload name the figures of its repetitions.

    ``rates`` maps a workload's name to the list of peak rates in tok/s, one a repetition. ``figures`` holds the other
    columns by (workload, column). ``reason`` says why the row is not ranked.
    """

    id: str
    labels: dict[str, str]
    status: str = "ok"
    reason: str = ""
    rates: dict[str, list[float]] = field(default_factory=dict)
    figures: dict[tuple[str, str], float] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    key: str = ""

    def mean(self, workload: str) -> float | None:
        """Return the mean peak rate of a workload in tok/s."""
        return spread(self.rates.get(workload, []))["mean"]

    @property
    def name(self) -> str:
        """Return the labels as one short text."""
        return " / ".join(self.labels.values()) or self.id


@dataclass
class Report:
    """All rows of one run and what is known about it."""

    title: str
    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    source: str = ""
    reproduce: str = ""

    @property
    def workloads(self) -> list[str]:
        """Return every workload's name, in the order of first use."""
        return list(dict.fromkeys(w for row in self.rows for w in row.rates))

    @property
    def ranked(self) -> list[Row]:
        """Return the rows that count."""
        return [r for r in self.rows if r.status == "ok" and r.rates]


def _measured(row: Row, record: Mapping[str, Any]) -> None:
    row.status = str(record.get("status", "failed"))
    failure = record.get("failure") or {}
    row.reason = failure.get("line", "") or record.get("reason", "")
    row.environment = dict(record.get("environment", {}))
    for cell in record.get("measurements", []):
        workload = cell["workload"]["name"]
        good = [run for run in cell.get("runs", []) if run["status"] == "ok"]
        if cell["status"] != "ok":
            row.status = cell["status"]
            signs = [g["detail"] for run in cell.get("runs", []) for g in run["garbage"]]
            row.reason = row.reason or cell.get("reason", "") or "; ".join(signs[:2])
        row.rates[workload] = [run["figures"]["peak_tok_s"] for run in good if run["figures"]["peak_tok_s"]]
        for column in ("wall_tok_s", "ttft_s", "itl_s", "accept_length"):
            mean = (cell.get(column) or {}).get("mean")
            if mean is not None:
                row.figures[workload, column] = mean


def from_records(title: str, records: Sequence[Mapping[str, Any]]) -> Report:
    """Return the report of a sweep's journal: the plan's cells, each with its last result."""
    rows: dict[str, Row] = {}
    for record in records:
        if record.get("kind") == "plan":
            for cell in record["cells"]:
                row = rows.setdefault(cell["id"], Row(cell["id"], dict(cell["labels"]), key=cell.get("key", "")))
                row.status = {"run": "not run", "invalid": "invalid", "duplicate": "duplicate"}[cell["status"]]
                reasons = [r["reason"] for r in cell.get("reasons", []) if r.get("severity") == "error"]
                row.reason = "; ".join(reasons)
                if cell["status"] == "duplicate":
                    original = rows.get(cell["duplicate_of"])
                    row.reason = (
                        f"SGLang makes the engine of {original.name if original else cell['duplicate_of']} of it"
                    )
        elif record.get("kind") == "result" and record["cell"] in rows:
            _measured(rows[record["cell"]], record)
    return Report(title, list(rows.values()))


def from_published(table: Mapping[str, Any]) -> Report:
    """Return the report of a published table: ``{title, source, columns: {label: …}, rows: [{labels, n1, n4, …}]}``.

    A column ``n<k>`` is the peak rate in tok/s at k streams, ``c<ctx>-n<k>`` the same at a context; a row with
    ``status`` other than ``ok`` is shown and not ranked.
    """
    rows = []
    for i, entry in enumerate(table["rows"]):
        row = Row(f"row{i + 1}", {k: str(v) for k, v in entry["labels"].items()}, entry.get("status", "ok"))
        row.reason = entry.get("reason", "")
        row.key = str(entry.get("key", ""))
        for column, value in entry.get("rates", {}).items():
            row.rates[column if column.startswith("c") else f"c0-{column}"] = [float(value)]
        for column, value in entry.get("figures", {}).items():
            workload, name = column.split(".", 1)
            row.figures[workload if workload.startswith("c") else f"c0-{workload}", name] = float(value)
        rows.append(row)
    return Report(str(table["title"]), rows, list(table.get("notes", [])), str(table.get("source", "")))


@dataclass(frozen=True)
class Winner:
    """The best row for one traffic shape; ``tied`` names rows that the repetitions can't tell from it."""

    workload: str
    row: str
    tok_s: float
    tied: tuple[str, ...]
    certain: bool


def winners(report: Report) -> list[Winner]:
    """Return the best row of every workload, and of all of them together under ``mixed``.

    ``certain`` is true only when three or more repetitions set it apart from every other row; single measurements
    never make a certain winner.
    """
    found = []
    for workload in report.workloads:
        ranked = sorted((r for r in report.ranked if r.mean(workload)), key=lambda r: -(r.mean(workload) or 0))
        if not ranked:
            continue
        best = ranked[0]
        answers = {r.name: distinguishable(best.rates[workload], r.rates[workload]) for r in ranked[1:]}
        tied = tuple(name for name, answer in answers.items() if answer is False)
        found.append(Winner(workload, best.name, best.mean(workload) or 0.0, tied, all(answers.values())))
    whole = [r for r in report.ranked if all(r.mean(w) for w in report.workloads)]
    if len(report.workloads) > 1 and whole:
        top = {w: max(r.mean(w) or 0 for r in whole) for w in report.workloads}
        share = {r.name: min((r.mean(w) or 0) / top[w] for w in report.workloads) for r in whole}
        best_name = max(share, key=lambda n: share[n])
        found.append(Winner("mixed", best_name, share[best_name], (), False))
    return found


def noise_floor(report: Report) -> dict[str, float]:
    """Return, per workload, the relative spread (max - min over mean) among rows that are one engine configuration.

    Rows with one ``key`` are repetitions of each other, whatever their labels say.
    """
    floors: dict[str, float] = {}
    rows = sorted((r for r in report.rows if r.key and r.rates), key=lambda r: r.key)
    for _unused, group in itertools.groupby(rows, key=lambda r: r.key):
        twins = list(group)
        for workload in report.workloads:
            values = [v for r in twins for v in r.rates.get(workload, [])]
            mean = spread(values)["mean"]
            if len(values) > 1 and mean:
                floors[workload] = max(floors.get(workload, 0.0), (max(values) - min(values)) / mean)
    return floors


def regressions(before: Report, after: Report, tolerance: float = 0.05) -> list[dict[str, Any]]:
    """Compare two result sets row by row.

    ``verdict`` is ``worse``, ``better``, ``same`` (within tolerance, or not distinguishable), or ``missing`` when the
    second set lacks a figure of the first.
    """
    newer = {tuple(sorted(r.labels.items())): r for r in after.rows}
    table = []
    for row in before.ranked:
        twin = newer.get(tuple(sorted(row.labels.items())))
        for workload in before.workloads:
            old = row.mean(workload)
            if old is None:
                continue
            new = twin.mean(workload) if twin and twin.status == "ok" else None
            verdict = "missing"
            if new is not None and twin is not None:
                apart = distinguishable(row.rates[workload], twin.rates[workload])
                verdict = "same"
                if abs(new / old - 1) > tolerance and apart is not False:
                    verdict = "worse" if new < old else "better"
            table.append({"row": row.name, "workload": workload, "before": old, "after": new, "verdict": verdict})
    return table


def table(report: Report) -> list[list[str]]:
    """Return the main table as text, the header first: labels, one rate column a workload, other figures, state."""
    labels = list(dict.fromkeys(k for r in report.rows for k in r.labels))
    workloads = report.workloads
    extra = [
        (w, c) for w in workloads for c in ("ttft_s", "accept_length") if any((w, c) in r.figures for r in report.rows)
    ]
    names = {"ttft_s": "TTFT s", "accept_length": "accept length"}
    out = [[*labels, *(f"{w} tok/s" for w in workloads), *(f"{w} {names[c]}" for w, c in extra), "state"]]
    for row in report.rows:
        cells = [row.labels.get(name, "") for name in labels]
        for workload in workloads:
            figures = spread(row.rates.get(workload, []))
            mean, deviation = figures["mean"], figures["stdev"]
            shown = "" if mean is None else f"{mean:.2f}" + (f" ± {deviation:.2f}" if deviation else "")
            cells.append(f"({shown})" if shown and row.status != "ok" else shown)
        cells += [f"{row.figures[e]:.3f}" if e in row.figures else "" for e in extra]
        out.append([*cells, row.status if not row.reason else f"{row.status}: {row.reason}"])
    return out


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
    if report.reproduce:
        lines += ["", "## Again", "", "```", report.reproduce, "```"]
    return "\n".join(lines).rstrip() + "\n"
