# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Draw a report's pictures as inline SVG with matplotlib. Runs on the controller."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from statistics import fmean
from typing import Any

try:
    import matplotlib
    from matplotlib.figure import Figure
except ImportError:
    matplotlib = None  # type: ignore[assignment,unused-ignore]

from .rows import Report, Row, shape

MANY_ROWS = 12
STEP_AXES = frozenset({"steps", "depth", "mtp", "graphs", "speculative_num_steps"})
STEPS = re.compile(r"(?:MTP )?(\d+)(?:/\d+)?$")


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
    """Return the rows that get a line of their own: at most twelve, the fastest first."""
    return sorted(report.ranked, key=lambda r: -max((r.mean(w) or 0) for w in report.workloads))[:MANY_ROWS]


def throughput(report: Report) -> str | None:
    """Draw the peak rate against the concurrency, one line per row."""
    levels = sorted({shape(w)[1] for w in report.workloads})
    rows = _best(report)
    if len(levels) < 2 or not rows:
        return None
    figure, axes = _axes("Throughput by concurrency", "streams", "peak tok/s")
    contexts = sorted({shape(w)[0] for w in report.workloads})
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
    """Draw the rate at the highest concurrency over the first axis and the other axes; broken cells stay empty."""
    names = list(dict.fromkeys(k for r in report.rows for k in r.labels))
    rows = [r for r in report.rows if set(r.labels) == set(names)]
    if len(names) < 2 or len(rows) < 6 or not report.workloads:
        return None
    workload = max(report.workloads, key=shape)
    down = list(dict.fromkeys(r.labels[names[0]] for r in rows))
    across = list(dict.fromkeys(" / ".join(r.labels[n] for n in names[1:]) for r in rows))
    grid = [[float("nan")] * len(across) for row in down]
    for row in rows:
        value = row.mean(workload) if row.status == "ok" else None
        if value is not None:
            place = across.index(" / ".join(row.labels[n] for n in names[1:]))
            grid[down.index(row.labels[names[0]])][place] = value
    figure, axes = _axes(f"Peak tok/s at {workload}", " / ".join(names[1:]), names[0], 1.6 + 0.5 * len(down))
    axes.grid(visible=False)
    image = axes.imshow(grid, aspect="auto", cmap="viridis")
    axes.set_xticks(range(len(across)), across, rotation=60, ha="right", fontsize=7)
    axes.set_yticks(range(len(down)), down, fontsize=8)
    figure.colorbar(image, ax=axes, label="tok/s")
    return _svg(figure)


def by_column(report: Report, column: str, title: str, unit: str) -> str | None:
    """Draw another figure of the rows, one bar per row and workload."""
    workloads = list(dict.fromkeys(w for r in _best(report) for w, name in r.figures if name == column))
    rows = [r for r in _best(report) if any((w, column) in r.figures for w in workloads)]
    if not rows:
        return None
    figure, axes = _axes(title, unit, "", 1.4 + 0.32 * len(rows))
    thickness = 0.8 / len(workloads)
    for i, workload in enumerate(workloads):
        means = [r.mean(workload, column) for r in rows]
        values = [float("nan") if mean is None else mean for mean in means]
        axes.barh([n + i * thickness for n in range(len(rows))], values, thickness, label=workload)
    axes.set_yticks([n + 0.4 - thickness / 2 for n in range(len(rows))], [r.name for r in rows], fontsize=8)
    axes.invert_yaxis()
    axes.legend(fontsize=8)
    return _svg(figure)


def against(report: Report, column: str, title: str, y: str) -> str | None:
    """Draw a figure against the context, one line per row and concurrency; None if there is only one context."""
    rows = [r for r in _best(report) if any(key[1] == column for key in r.figures)]
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for (workload, name), values in row.figures.items():
            if name == column:
                context, streams = shape(workload)
                lines.setdefault(f"{row.name}, {streams} streams", []).append((context, fmean(values)))
    if not any(len(points) > 1 for points in lines.values()):
        return None
    figure, axes = _axes(title, "context, tokens", y)
    for name, points in list(lines.items())[:MANY_ROWS]:
        axes.plot(*zip(*sorted(points), strict=True), marker="o", label=name)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)
    return _svg(figure)


def acceptance(report: Report) -> str | None:
    """Draw the accept length against the draft steps, if an axis of the rows gives their number."""
    points: dict[str, list[tuple[int, float]]] = {}
    for row in report.ranked:
        steps = [m for k, v in row.labels.items() if k in STEP_AXES and (m := STEPS.match(v))]
        for (workload, name), values in row.figures.items():
            if name == "accept_length" and steps:
                points.setdefault(workload, []).append((int(steps[0][1]), fmean(values)))
    if not any(len(set(p)) > 1 for p in points.values()):
        return by_column(report, "accept_length", "Accept length", "tokens per verify step")
    figure, axes = _axes("Accept length against draft steps", "draft steps", "tokens per verify step")
    for workload, known in points.items():
        axes.plot(*zip(*sorted(known), strict=True), marker="o", label=workload)
    axes.set_xticks(sorted({point[0] for known in points.values() for point in known}))
    axes.legend(fontsize=8)
    return _svg(figure)


def requests(report: Report) -> str | None:
    """Draw the rate of every request, to show the spread; without request data, the rate of every repetition."""
    rows = [r for r in _best(report) if any(len(v) > 1 for v in (*r.requests.values(), *r.rates.values()))]
    if not rows:
        return None
    each = any(r.requests for r in rows)
    title = "Every request" if each else "Every repetition"
    figure, axes = _axes(title, "tok/s of one request" if each else "peak tok/s", "", 1.4 + 0.32 * len(rows))
    for i, workload in enumerate(report.workloads):
        points = [(v, n) for n, r in enumerate(rows) for v in (r.requests if each else r.rates).get(workload, [])]
        if points:
            xs, ys = zip(*points, strict=True)
            axes.scatter(xs, [y + i * 0.12 for y in ys], s=14, label=workload)
    axes.set_yticks(range(len(rows)), [r.name for r in rows], fontsize=8)
    axes.invert_yaxis()
    axes.legend(fontsize=8)
    return _svg(figure)


def pictures(report: Report) -> list[str]:
    """Return all pictures that the report's data allow, as SVG; an empty list without matplotlib."""
    if matplotlib is None:
        return []
    draw: list[Callable[[], str | None]] = [
        lambda: throughput(report),
        lambda: heat_map(report),
        lambda: (
            against(report, "ttft_s", "Time to the first token by context", "seconds")
            or by_column(report, "ttft_s", "Time to the first token", "seconds")
        ),
        lambda: acceptance(report),
        lambda: requests(report),
    ]
    return [svg for one in draw if (svg := one()) is not None]
