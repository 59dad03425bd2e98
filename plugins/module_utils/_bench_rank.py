# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Winners with their doubt, the noise floor, and what got worse between two result sets. Private to the collection."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ._bench_report import Report, Row
from ._load_stats import distinguishable, spread


def pooled(report: Report, row: Row, workload: str) -> list[float]:
    """Return the rates of every row that is the same engine configuration: they are repetitions of each other."""
    twins = [r for r in report.ranked if r is row or (r.key and r.key == row.key)]
    return [rate for r in twins for rate in r.rates.get(workload, [])]


def _apart(report: Report, one: Row, other: Row, workload: str, floor: float) -> bool | None:
    """Tell whether two rows differ: by more than their repetitions, and more than one engine does by itself."""
    a, b = pooled(report, one, workload), pooled(report, other, workload)
    means = sorted((sum(a) / len(a), sum(b) / len(b)))
    if (one.key and one.key == other.key) or (len(a) + len(b) > 2 and means[1] - means[0] <= floor * means[1] / 2):
        return False
    return distinguishable(a, b)


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
    floors = noise_floor(report)
    for workload in report.workloads:
        ranked = sorted((r for r in report.ranked if r.mean(workload)), key=lambda r: -(r.mean(workload) or 0))
        if not ranked:
            continue
        best = ranked[0]
        floor = floors.get(workload, 0.0)
        answers = {r.name: _apart(report, best, r, workload, floor) for r in ranked[1:]}
        tied = tuple(name for name, answer in answers.items() if answer is False)
        found.append(Winner(workload, best.name, best.mean(workload) or 0.0, tied, all(answers.values())))
    whole = [r for r in report.ranked if all(r.mean(w) for w in report.workloads)]
    if len(report.workloads) > 1 and whole:
        top = {w: max(r.mean(w) or 0 for r in whole) for w in report.workloads}
        share = {r.name: min((r.mean(w) or 0) / top[w] for w in report.workloads) for r in whole}
        best_name = max(share, key=lambda n: share[n])
        found.append(Winner("mixed", best_name, share[best_name], (), False))
    return found


def comparison_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of `regressions` as aligned lines, the worst first."""
    order = ("worse", "missing", "better", "same")
    lines = [["row", "workload", "before", "after", "change", "verdict"]]
    for row in sorted(rows, key=lambda r: order.index(r["verdict"])):
        after = row["after"]
        change = f"{after / row['before'] - 1:+.1%}" if after else ""
        shown = f"{after:.2f}" if after else "-"
        lines.append([row["row"], row["workload"], f"{row['before']:.2f}", shown, change, row["verdict"]])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]


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
