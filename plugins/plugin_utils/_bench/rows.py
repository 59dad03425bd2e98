# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Turn the records of a sweep, or a published table, into the tables of a report, and rank their cells."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.plain import align

from .record import current, last_plan
from .stats import RUNS_NEEDED, distinguishable, figure_at, spread
from .sweep import cell_name

# Turn the records of a sweep, or a published table, into the tables of a report.
#
# Pure. `rank` compares the rows; `answers` and `sections` say what a report contains; `plots` shows it.

WORKLOAD = re.compile(r"c(\d+)-n(\d+)$")
ALL = "all"
"""Replaces the name of a workload in published figures that cover all workloads together."""

MIXED = "mixed"
"""Replaces the name of a workload for the engine that is best over all workloads."""

PEAK = "peak_tok_s"
PLACES = {
    "wall_tok_s": ("figures", "wall_tok_s"),
    "ttft_s": ("figures", "ttft_s", "p50"),
    "ttft_p95_s": ("figures", "ttft_s", "p95"),
    "ttft_p99_s": ("figures", "ttft_s", "p99"),
    "itl_s": ("figures", "itl_s", "p50"),
    "itl_p95_s": ("figures", "itl_s", "p95"),
    "itl_p99_s": ("figures", "itl_s", "p99"),
    "prefill_tok_s": ("figures", "prefill_tok_s", "p50"),
    "accept_length": ("server", "accept_length"),
    "accept_rate": ("server", "accept_rate"),
    "token_usage": ("server", "token_usage"),
    "running": ("server", "running"),
}
"""The places of all columns except the peak rate in the record of a repetition."""

BASELINES = frozenset({"none", "baseline"})


def shape(workload: str) -> tuple[int, int]:
    """Return (context tokens, streams) from the name of a workload; 0 for a part that is missing."""
    match = WORKLOAD.match(workload)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def traffic(workload: str) -> str:
    """Return the name of a workload for people, for example ``8 streams, 32k context``."""
    if workload in (ALL, MIXED):
        return "all workloads" if workload == ALL else "mixed traffic"
    context, streams = shape(workload)
    if not streams:
        return workload
    short = f"{context // 1024}k" if context % 1024 == 0 else f"{context:,}"
    return f"{streams} stream{'s' * (streams > 1)}" + (f", {short} context" if context else "")


@dataclass
class Row:
    """One cell: its labels, its status, and the figures of its repetitions by workload.

    ``rates`` maps the name of a workload to its peak rates in tok/s, one per repetition. ``figures`` holds the other
    columns by (workload, column), one value per repetition, ``requests`` the rate of each request, ``outcomes`` how
    many requests were ``ok`` and ``failed``, ``finishes`` how many requests ended by each finish reason,
    ``measurements`` the records themselves. ``overlay`` is the cell's change of its profile, ``remark`` the comments of
    resolver and guards on a published row, ``reason`` why the row is not ranked, ``nodes``
    how many nodes serve it, 0 if that is unknown.
    """

    id: str
    labels: dict[str, str]
    status: str = "ok"
    reason: str = ""
    rates: dict[str, list[float]] = field(default_factory=dict)
    figures: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    requests: dict[str, list[float]] = field(default_factory=dict)
    outcomes: dict[str, dict[str, int]] = field(default_factory=dict)
    finishes: dict[str, dict[str, int]] = field(default_factory=dict)
    measurements: list[Mapping[str, Any]] = field(default_factory=list)
    overlay: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    remark: str = ""
    key: str = ""
    nodes: int = 0

    def values(self, workload: str, column: str = PEAK) -> list[float]:
        """Return the figures of one column for a workload, one per repetition; by default the peak rate in tok/s."""
        return self.rates.get(workload, []) if column == PEAK else self.figures.get((workload, column), [])

    def mean(self, workload: str, column: str = PEAK) -> float | None:
        return spread(self.values(workload, column))["mean"]

    @property
    def name(self) -> str:
        """Return the labels as one short text."""
        return cell_name(self.labels) or self.id


@dataclass
class Report:
    """All rows of one run with its metadata; ``reproduce`` is the command that repeats the measurement."""

    title: str
    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    source: str = ""
    reproduce: str = ""
    profile: str = ""

    @property
    def workloads(self) -> list[str]:
        """Return the names of all workloads, in the order of first use."""
        return list(dict.fromkeys(w for row in self.rows for w in row.rates))

    @property
    def ranked(self) -> list[Row]:
        return [r for r in self.rows if r.status == "ok" and r.rates]

    @property
    def baseline(self) -> Row | None:
        """Return the ranked row with the label baseline, otherwise the first ranked row."""
        named = [r for r in self.ranked if BASELINES & set(r.labels.values())]
        return next(iter([*named, *self.ranked]), None)


def _summed(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return {key: sum(c.get(key, 0) for c in counts) for key in dict.fromkeys(k for c in counts for k in c)}


def _measured(row: Row, record: Mapping[str, Any]) -> None:
    row.status = str(record.get("status", "failed"))
    failure = record.get("failure") or {}
    row.reason = failure.get("line", "") or record.get("reason", "")
    row.environment = dict(record.get("environment", {}))
    row.nodes = len(set(row.environment.get("nodes") or []))
    row.measurements = list(record.get("measurements", []))
    for cell in row.measurements:
        workload = cell["workload"]["name"]
        runs = cell.get("runs", [])
        good = [run for run in runs if run["status"] == "ok"]
        if cell["status"] != "ok":
            row.status = cell["status"] if row.status == "ok" else row.status
            signs = [g["detail"] for run in runs for g in run["garbage"]]
            row.reason = row.reason or cell.get("reason", "") or "; ".join(signs[:2])
        row.rates[workload] = [run["figures"][PEAK] for run in good if run["figures"][PEAK]]
        row.requests[workload] = [r["tok_s"] for run in good for r in run.get("requests", []) if r.get("tok_s")]
        for column, path in PLACES.items():
            values = [v for run in good if (v := figure_at(run, *path)) is not None]
            if values:
                row.figures[workload, column] = values
        figures = [run["figures"] for run in runs]
        row.outcomes[workload] = _summed([{k: f[k] for k in ("ok", "failed") if k in f} for f in figures])
        row.finishes[workload] = _summed([f.get("finish_reasons", {}) for f in figures])


def _planned(row: Row, cell: Mapping[str, Any], rows: Mapping[str, Row]) -> Row:
    row.overlay = dict(cell.get("overlay", {}))
    row.status = {"run": "not run", "invalid": "invalid", "duplicate": "duplicate"}[cell["status"]]
    row.reason = "; ".join(r["reason"] for r in cell.get("reasons", []) if r.get("severity") == "error")
    if cell["status"] == "duplicate":
        original = rows.get(cell["duplicate_of"])
        row.reason = f"it has the command line of {original.name if original else cell['duplicate_of']}"
    return row


def from_records(title: str, records: Sequence[Mapping[str, Any]]) -> Report:
    """Return the report of a sweep's journal: the cells of the last plan, each with its last result.

    Results that identify themselves as those of another engine or workload than the plan's are left out.
    """
    plan = last_plan(records)
    rows: dict[str, Row] = {}
    for cell in plan["cells"]:
        row = Row(cell["id"], dict(cell["labels"]), key=cell.get("key", ""))
        rows[cell["id"]] = _planned(row, cell, rows)
    report = Report(title, list(rows.values()), profile=str(plan.get("profile", "")))
    report.reproduce = _command(str(plan.get("sweep", title)), plan)
    known = [r for r in records if r.get("kind") == "result" and r["cell"] in rows]
    for record in (r for r in known if "key" not in r or current([r], plan)):
        _measured(rows[record["cell"]], record)
        if original := record.get("duplicate_of"):
            name = rows[original].name if original in rows else original
            rows[record["cell"]].reason = f"the image resolves it to the same engine as {name}"
    _name_engines(report.rows)
    return report


def _command(name: str, plan: Mapping[str, Any]) -> str:
    """Return the command that measures again; playbook bench records one cell without a sweep (``single_cell``)."""
    if not name.startswith("bench-"):
        return f"ansible-playbook gb10.cluster.sweep -e sweep={name}"
    preset = plan["cells"][0]["labels"].get("preset", "")
    served = f"-e profile={plan.get('profile')}" + (f" -e preset={preset}" if preset else "")
    return f"ansible-playbook gb10.cluster.bench {served if plan.get('profile') else '-e bench_url=URL'}"


def _name_engines(rows: Sequence[Row]) -> None:
    """Give rows that are one engine by the image's own resolver the same key, whatever the plan expected."""
    said: dict[str, str] = {}
    for row in rows:
        if engine := row.environment.get("engine"):
            said.setdefault(row.key, f"{engine}|{row.key.partition('|')[2]}")
    for row in rows:
        row.key = said.get(row.key, row.key)


def _workload(name: str) -> str:
    return name if name == ALL or name.startswith("c") else f"c0-{name}"


def from_published(table: Mapping[str, Any]) -> Report:
    """Return the report of a published table: ``{title, source, notes, sweeps, rows: [{labels, rates, figures, …}]}``.

    ``rates`` has the peak rate in tok/s under ``n<k>``, at k streams, or ``c<ctx>-n<k>``, at a context; ``figures``
    has other columns under ``<workload>.<column>``; ``outcomes`` has how many requests of a workload were ``ok`` and
    ``failed``; the workload ``all`` holds figures that the source gives for all workloads together. A row with a
    ``status`` other than ``ok`` is shown but not ranked. ``sweeps`` names the sweeps that measure the same cells.
    """
    rows = []
    for i, entry in enumerate(table["rows"]):
        row = Row(f"row{i + 1}", {k: str(v) for k, v in entry["labels"].items()}, entry.get("status", "ok"))
        row.reason = entry.get("reason", "")
        row.key = str(entry.get("key", ""))
        row.rates = {_workload(name): [float(value)] for name, value in entry.get("rates", {}).items()}
        row.outcomes = {_workload(name): dict(counts) for name, counts in entry.get("outcomes", {}).items()}
        for place, value in entry.get("figures", {}).items():
            workload, column = place.split(".", 1)
            row.figures[_workload(workload), column] = [float(value)]
        rows.append(row)
    report = Report(str(table["title"]), rows, list(table.get("notes", [])), str(table.get("source", "")))
    command = "ansible-playbook -i inventory/mine -K gb10.cluster.sweep -e sweep="
    report.reproduce = "\n".join(f"{command}{name}" for name in table.get("sweeps", []))
    return report


SHOWN = {
    PEAK: ("peak tok/s", 1, ".2f"),
    "wall_tok_s": ("wall tok/s", 1, ".2f"),
    "ttft_s": ("TTFT s", 1, ".3f"),
    "ttft_p95_s": ("TTFT p95 s", 1, ".3f"),
    "ttft_p99_s": ("TTFT p99 s", 1, ".3f"),
    "itl_s": ("ITL ms", 1000, ".2f"),
    "itl_p95_s": ("ITL p95 ms", 1000, ".2f"),
    "itl_p99_s": ("ITL p99 ms", 1000, ".2f"),
    "prefill_tok_s": ("prefill tok/s", 1, ".0f"),
    "accept_length": ("accept length", 1, ".2f"),
    "accept_rate": ("accept rate", 1, ".4g"),
    "token_usage": ("token usage", 1, ".2f"),
    "running": ("running", 1, ".0f"),
}
"""The format of each column: its header, the factor of its unit, and the format of its numbers."""

BY_CONTEXT = ("ttft_s", "ttft_p95_s", "ttft_p99_s", "prefill_tok_s")
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
    return _without_empty_columns(out)


def _change(report: Report, row: Row, workload: str) -> str:
    """Return the relative difference between the peak rates of the row and of the baseline."""
    mean, base = row.mean(workload), report.baseline.mean(workload) if report.baseline else None
    counts = row.status == "ok" and row is not report.baseline
    return f"{mean / base - 1:+.1%}" if counts and mean and base else ""


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
            outcome, finishes = row.outcomes.get(workload), row.finishes.get(workload, {})
            cells.append(f"{outcome.get('ok', 0)}/{outcome.get('failed', 0)}" if outcome else "")
            cells.append(", ".join(f"{reason} {n}" for reason, n in finishes.items()))
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


# Rank cells: winners with their certainty, the noise floor, and regressions between two result sets.

COMPARED = {PEAK: ("peak tok/s", 1), "wall_tok_s": ("wall tok/s", 1), "ttft_s": ("TTFT s", -1), "itl_s": ("ITL s", -1)}
"""The figures by which two result sets are compared; 1 if more is better, -1 if less is better."""


def pooled(report: Report, row: Row, workload: str) -> list[float]:
    """Return the rates of all rows with the same engine configuration, because they are repetitions of each other."""
    twins = [r for r in report.ranked if r is row or (r.key and r.key == row.key)]
    return [rate for r in twins for rate in r.rates.get(workload, [])]


def engines(report: Report) -> list[Row]:
    """Return one row per ranked engine: the first of those that resolve to it."""
    first: dict[str, Row] = {}
    for row in report.ranked:
        first.setdefault(row.key or f"row {row.id}", row)
    return list(first.values())


def _apart(report: Report, one: Row, other: Row, workload: str, floor: float) -> bool | None:
    """Return whether two engines differ by more than the noise floor and by more than their repetitions."""
    a, b = pooled(report, one, workload), pooled(report, other, workload)
    means = sorted((fmean(a), fmean(b)))
    if len(a) + len(b) > 2 and means[1] - means[0] <= floor * means[1] / 2:
        return False
    return distinguishable(a, b)


@dataclass(frozen=True)
class Winner:
    """The best engine for one workload, named after its first row.

    ``tok_s`` is the mean of all its repetitions; under ``mixed`` it is the engine's smallest share of the best rate
    over all workloads. ``second`` is the next best engine and ``second_tok_s`` its value. ``tied`` names the rows that
    the repetitions cannot distinguish from it.
    """

    workload: str
    row: str
    tok_s: float
    tied: tuple[str, ...]
    certain: bool
    second: str = ""
    second_tok_s: float | None = None

    @property
    def doubt(self) -> str:
        """Return how certain the result is."""
        if self.certain:
            return "its repetitions differ from those of every other cell"
        if self.tied:
            return f"not distinguishable from {', '.join(self.tied)}"
        return "fewer than three repetitions" if self.second else "no other cell to compare with"


def winners(report: Report) -> list[Winner]:
    """Return the best engine of every workload, and the best one over all workloads under ``mixed``.

    ``certain`` is true only if there are other engines and three or more repetitions distinguish the winner from each
    of them; under ``mixed``, at every workload.
    """
    found = []
    floors = noise_floor(report)
    workloads = report.workloads
    rates = {w: {r.id: fmean(v) for r in engines(report) if (v := pooled(report, r, w))} for w in workloads}

    def winner(name: str, values: Mapping[str, float], among: Sequence[Row], shapes: Sequence[str]) -> Winner:
        best, *rivals = sorted(among, key=lambda r: -values[r.id])
        answers = {(r.name, w): _apart(report, best, r, w, floors.get(w, 0.0)) for r in rivals for w in shapes}
        tied = [
            f"{row} at {traffic(w)}" if len(shapes) > 1 else row
            for (row, w), apart in answers.items()
            if apart is False
        ]
        next_best = (rivals[0].name, values[rivals[0].id]) if rivals else ("", None)
        certain = bool(answers) and all(answers.values())
        return Winner(name, best.name, values[best.id], tuple(tied), certain, *next_best)

    for workload in workloads:
        ranked = [r for r in engines(report) if r.id in rates[workload]]
        if ranked:
            found.append(winner(workload, rates[workload], ranked, [workload]))
    whole = [r for r in engines(report) if all(r.id in rates[w] for w in workloads)]
    if len(workloads) > 1 and whole:
        top = {w: max(rates[w][r.id] for r in whole) for w in workloads}
        share = {r.id: min(rates[w][r.id] / top[w] for w in workloads) for r in whole}
        found.append(winner(MIXED, share, whole, workloads))
    return found


def comparison_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the result of `regressions`: what changed, by how much, how certain that is, and the aligned table."""
    order = ("worse", "missing", "better", "same")
    counts = {verdict: sum(r["verdict"] == verdict for r in rows) for verdict in order}
    said = [f"{n} {'unchanged' if verdict == 'same' else verdict}" for verdict, n in counts.items() if n]
    out = [f"What changed: of {len(rows)} figures " + ", ".join(said) + "."]
    for verdict, name, place in (("worse", "loss", 0), ("better", "gain", -1)):
        changed = [row for row in rows if row["verdict"] == verdict]
        changed.sort(key=lambda row: COMPARED[row["figure"]][1] * float(row["after"] / row["before"] - 1))
        if changed:
            row = changed[place]
            where = f"{COMPARED[row['figure']][0]} of {row['row']} at {traffic(row['workload'])}"
            out.append(f"By how much: the largest {name} is {where}, {row['after'] / row['before'] - 1:+.1%}.")
    fewest = min((r["repetitions"] for r in rows if r["after"]), default=0)
    doubt = "counts only if it exceeds the spread" if fewest >= RUNS_NEEDED else "can be chance"
    out.append(f"Can I trust it: each figure has {fewest} or more repetitions, so a difference {doubt}.")
    lines = [["row", "workload", "figure", "before", "after", "change", "verdict"]]
    for row in sorted(rows, key=lambda r: order.index(r["verdict"])):
        after = row["after"]
        change = f"{after / row['before'] - 1:+.1%}" if after else ""
        shown = f"{after:.5g}" if after else "-"
        figure = COMPARED[row["figure"]][0]
        lines.append(
            [row["row"], traffic(row["workload"]), figure, f"{row['before']:.5g}", shown, change, row["verdict"]]
        )
    return [*out, *align(lines)]


def noise_floor(report: Report) -> dict[str, float]:
    """Return per workload the largest relative spread ((max - min) / mean) of the repetitions of one engine.

    Rows with the same ``key`` are repetitions of each other, whatever their labels; broken output is excluded.
    """
    floors: dict[str, float] = {}
    for row in engines(report):
        for workload in report.workloads:
            values = pooled(report, row, workload)
            if len(values) > 1 and fmean(values):
                floors[workload] = max(floors.get(workload, 0.0), (max(values) - min(values)) / fmean(values))
    return floors


def _verdict(row: Row, twin: Row, workload: str, column: str, tolerance: float) -> str:
    old, new = row.values(workload, column), twin.values(workload, column)
    change = COMPARED[column][1] * (fmean(new) / fmean(old) - 1)
    # Twelve digits, because 95 / 100 - 1 is a little more than 5 % for a computer.
    if round(abs(change), 12) <= tolerance or distinguishable(old, new) is False:
        return "same"
    return "better" if change > 0 else "worse"


def regressions(before: Report, after: Report, tolerance: float = 0.05) -> list[dict[str, Any]]:
    """Compare two result sets row by row, by every figure of `COMPARED` that the first set has.

    ``verdict`` is ``worse``, ``better``, ``same`` (within the tolerance, or not distinguishable), or ``missing`` if the
    second set lacks a figure of the first.
    """
    newer = {tuple(sorted(r.labels.items())): r for r in after.ranked}
    table = []
    for row, workload, column in itertools.product(before.ranked, before.workloads, COMPARED):
        old = row.mean(workload, column)
        if not old:
            continue
        twin = newer.get(tuple(sorted(row.labels.items())))
        new = twin.mean(workload, column) if twin else None
        verdict = _verdict(row, twin, workload, column, tolerance) if twin and new is not None else "missing"
        repetitions = min(len(row.values(workload, column)), len(twin.values(workload, column)) if twin else 0)
        figures = {"before": old, "after": new, "verdict": verdict, "repetitions": repetitions}
        table.append({"row": row.name, "workload": workload, "figure": column, **figures})
    return table


PRESET_KEYS = ("server_args", "env", "topology", "image", "sglang_version")


def _name(workload: str) -> str:
    context, streams = shape(workload)
    return f"tuned-n{streams}" if streams and not context else f"tuned-{workload}"


def _expected(report: Report, row: Row) -> dict[str, Any]:
    results = []
    for workload in report.workloads:
        (context, streams), rate = shape(workload), spread(pooled(report, row, workload))["mean"]
        if streams and not context and rate:
            length = row.mean(workload, "accept_length")
            more = {"accept_length": round(length, 2)} if length else {}
            results.append({"concurrency": streams, "tokens_per_second": round(rate, 2)} | more)
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
