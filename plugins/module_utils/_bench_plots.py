# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Draw a report's pictures as inline SVG with matplotlib. Runs on the controller; private to the collection."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

try:
    import matplotlib
    from matplotlib.figure import Figure
except ImportError:
    matplotlib = None  # type: ignore[assignment,unused-ignore]

from ._bench_report import Report, Row

MANY_ROWS = 12
WORKLOAD = re.compile(r"c(\d+)-n(\d+)$")


def _context_and_streams(workload: str) -> tuple[int, int]:
    match = WORKLOAD.match(workload)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "gb10.cluster"}):
        figure.savefig(out, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    return out.getvalue()[out.getvalue().index("<svg") :]


def _axes(title: str, x: str, y: str, height: float = 3.6) -> tuple[Figure, Any]:
    figure = Figure(figsize=(7.2, height))
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(visible=True, alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _best(report: Report) -> list[Row]:
    """Return the rows worth a line of their own: at most a dozen, the fastest first."""
    return sorted(report.ranked, key=lambda r: -max((r.mean(w) or 0) for w in report.workloads))[:MANY_ROWS]


def throughput(report: Report) -> str | None:
    """Draw peak rate against concurrency, a line a row."""
    levels = sorted({_context_and_streams(w)[1] for w in report.workloads})
    rows = _best(report)
    if len(levels) < 2 or not rows:
        return None
    figure, axes = _axes("Throughput by concurrency", "streams", "peak tok/s")
    contexts = sorted({_context_and_streams(w)[0] for w in report.workloads})
    for row in rows:
        for context in contexts:
            points = [(n, row.mean(f"c{context}-n{n}")) for n in levels]
            kept = [(n, v) for n, v in points if v is not None]
            if kept:
                name = row.name if len(contexts) == 1 else f"{row.name}, {context} context"
                axes.plot(*zip(*kept, strict=True), marker="o", label=name)
    axes.set_xticks(levels)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
    return _svg(figure)


def heat_map(report: Report) -> str | None:
    """Draw the rate at the highest concurrency over the first axis and the others; broken cells stay empty."""
    names = list(dict.fromkeys(k for r in report.rows for k in r.labels))
    if len(names) < 2 or len(report.rows) < 6 or not report.workloads:
        return None
    workload = max(report.workloads, key=_context_and_streams)
    down = list(dict.fromkeys(r.labels.get(names[0], "") for r in report.rows))
    across = list(dict.fromkeys(" / ".join(r.labels.get(n, "") for n in names[1:]) for r in report.rows))
    grid = [[float("nan")] * len(across) for _unused in down]
    for row in report.ranked:
        value = row.mean(workload)
        if value is not None:
            place = across.index(" / ".join(row.labels.get(n, "") for n in names[1:]))
            grid[down.index(row.labels.get(names[0], ""))][place] = value
    figure, axes = _axes(f"Peak tok/s at {workload}", " / ".join(names[1:]), names[0], 1.6 + 0.5 * len(down))
    axes.grid(visible=False)
    image = axes.imshow(grid, aspect="auto", cmap="viridis")
    axes.set_xticks(range(len(across)), across, rotation=60, ha="right", fontsize=7)
    axes.set_yticks(range(len(down)), down, fontsize=8)
    figure.colorbar(image, ax=axes, label="tok/s")
    return _svg(figure)


def by_column(report: Report, column: str, title: str, unit: str) -> str | None:
    """Draw another figure of the rows, one bar a row and workload."""
    rows = [r for r in _best(report) if any((w, column) in r.figures for w in report.workloads)]
    if not rows:
        return None
    figure, axes = _axes(title, unit, "", 1.4 + 0.32 * len(rows))
    workloads = [w for w in report.workloads if any((w, column) in r.figures for r in rows)]
    thickness = 0.8 / len(workloads)
    for i, workload in enumerate(workloads):
        values = [r.figures.get((workload, column), float("nan")) for r in rows]
        axes.barh([n + i * thickness for n in range(len(rows))], values, thickness, label=workload)
    axes.set_yticks([n + 0.4 - thickness / 2 for n in range(len(rows))], [r.name for r in rows], fontsize=8)
    axes.invert_yaxis()
    axes.legend(fontsize=8)
    return _svg(figure)


def repetitions(report: Report) -> str | None:
    """Draw every repetition's rate, so that the spread is seen and not only said."""
    rows = [r for r in _best(report) if any(len(v) > 1 for v in r.rates.values())]
    if not rows:
        return None
    figure, axes = _axes("Every repetition", "peak tok/s", "", 1.4 + 0.32 * len(rows))
    for i, workload in enumerate(report.workloads):
        points = [(v, n) for n, r in enumerate(rows) for v in r.rates.get(workload, [])]
        if points:
            xs, ys = zip(*points, strict=True)
            axes.scatter(xs, [y + i * 0.12 for y in ys], s=14, label=workload)
    axes.set_yticks(range(len(rows)), [r.name for r in rows], fontsize=8)
    axes.invert_yaxis()
    axes.legend(fontsize=8)
    return _svg(figure)


def pictures(report: Report) -> list[str]:
    """Return every picture that the report's data allow, as SVG; none without matplotlib."""
    if matplotlib is None:
        return []
    draw: list[Callable[[], str | None]] = [
        lambda: throughput(report),
        lambda: heat_map(report),
        lambda: by_column(report, "ttft_s", "Time to the first token", "seconds"),
        lambda: by_column(report, "accept_length", "Accept length", "tokens a verify step"),
        lambda: repetitions(report),
    ]
    return [svg for one in draw if (svg := one()) is not None]
