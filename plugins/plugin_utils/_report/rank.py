# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rank cells: winners with their certainty, the noise floor, and regressions between two result sets."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.plain import align

from .._load.stats import RUNS_NEEDED, distinguishable, spread
from .rows import MIXED, PEAK, Report, Row, traffic

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


def _gain(row: Mapping[str, Any]) -> float:
    return COMPARED[row["figure"]][1] * float(row["after"] / row["before"] - 1)


def comparison_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the result of `regressions`: what changed, by how much, how certain that is, and the aligned table."""
    order = ("worse", "missing", "better", "same")
    counts = {verdict: sum(r["verdict"] == verdict for r in rows) for verdict in order}
    said = [f"{n} {'unchanged' if verdict == 'same' else verdict}" for verdict, n in counts.items() if n]
    out = [f"What changed: of {len(rows)} figures " + ", ".join(said) + "."]
    for verdict, name, place in (("worse", "loss", 0), ("better", "gain", -1)):
        changed = sorted((r for r in rows if r["verdict"] == verdict), key=_gain)
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
    if abs(change) <= tolerance or distinguishable(old, new) is False:
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
