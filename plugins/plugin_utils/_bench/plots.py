# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Draw a report's pictures as inline SVG with matplotlib. Runs on the controller.

Series differ in marker, line and hatch as well as in colour, so that a black-and-white print shows them apart. Colours
are variables of the page's style, so that a dark page has its own.
"""

from __future__ import annotations

import html
import io
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

try:
    import matplotlib
    from cycler import cycler
    from matplotlib.figure import Figure
except ImportError:
    matplotlib = None  # type: ignore[assignment,unused-ignore]

from .rows import PEAK, Report, Row, shape, traffic
from .sweep import cell_name

MANY_ROWS = 12
STEP_AXES = frozenset({"steps", "depth", "mtp", "graphs", "speculative_num_steps"})
STEPS = re.compile(r"(?:MTP )?(\d+)(?:/\d+)?$")
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#000000", "#cc79a7", "#8a6d00")
"""Colours that people with colour blindness tell apart (Okabe and Ito), without those that vanish on white paper."""
COLOURS = PALETTE * 2
INK, GROUND = "#1f2328", "#fefefe"
VARIABLES = {colour: f"var(--series-{n}, {colour})" for n, colour in enumerate(PALETTE, start=1)}
VARIABLES |= {INK: "currentColor", GROUND: f"var(--ground, {GROUND})"}
"""What a page may set for each colour that matplotlib, which knows no variables, writes."""
MARKERS = tuple("osD^vPX*<>hp")
DASHES = ("-", "--", "-.", ":") * 3
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "ooo", "---", "+++", "***", "|||", "//..", "xx..")
WIDTHS = {"wide": 11.0, "narrow": 4.6}
"""Inches of the picture for a page and for a phone. A single picture's letters would be too small on a phone."""

Points = Mapping[str, Sequence[tuple[float, float]]]


class Sheet:
    """Draws every picture at one width."""

    def __init__(self, report: Report, width: float) -> None:
        """Choose the rows that get a series of their own: at most twelve, the fastest first."""
        self.report, self.width = report, width
        self.rows = sorted(report.ranked, key=lambda r: -max(r.mean(w) or 0 for w in r.rates))[:MANY_ROWS]

    def _figure(self, title: str, x: str, y: str, height: float = 4.2) -> tuple[Figure, Any]:
        figure = Figure(figsize=(self.width, height))
        axes = figure.add_subplot()
        axes.set_title(title, loc="left", fontsize=13)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.grid(visible=True, alpha=0.3)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        return figure, axes

    def _wrapped(self, name: str) -> str:
        return textwrap.fill(name, int(4 * self.width))

    def _svg(self, figure: Figure, told: Mapping[str, Sequence[float]]) -> str:
        """Return the picture with a title and a text for those who can't see it: the range of each series."""
        for axes in figure.axes[:1]:
            if len(axes.get_legend_handles_labels()[1]) > 1:
                columns = max(1, int(self.width // 4))
                axes.legend(loc="upper left", bbox_to_anchor=(0, -0.16 * 4.2 / figure.get_figheight()), ncols=columns)
        out = io.StringIO()
        # Ids must differ between the two widths: a browser does not draw a pattern whose first definition is hidden.
        with matplotlib.rc_context({"svg.hashsalt": f"gb10.cluster {self.width}"}):
            figure.savefig(out, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
        drawn = out.getvalue()[out.getvalue().index("<svg") :]
        for colour, variable in VARIABLES.items():
            drawn = drawn.replace(colour, variable)
        axes = figure.axes[0]
        ranges = "; ".join(f"{name}: {min(each):.4g} to {max(each):.4g}" for name, each in told.items() if each)
        title = axes.get_title(loc="left").replace("\n", " ")
        units = ", ".join(filter(None, (axes.get_ylabel(), axes.get_xlabel())))
        said = f"<title>{html.escape(title)}</title><desc>{html.escape(f'{units}. {ranges}')}</desc>"
        head, end, rest = drawn.partition(">")
        return f'{head} role="img"{end}{said}{rest}'

    def _lines(self, title: str, x: str, y: str, series: Points) -> str | None:
        """Draw one line per series; None if no series has two points."""
        if not any(len({x for x, _value in points}) > 1 for points in series.values()):
            return None
        figure, axes = self._figure(title, x, y)
        for name, points in list(series.items())[:MANY_ROWS]:
            axes.plot(*zip(*sorted(points), strict=True), label=self._wrapped(name))
        axes.set_ylim(0, 1.08 * max(point[1] for points in series.values() for point in points))
        ticks = sorted({point[0] for points in series.values() for point in points})
        if max(ticks) < 1000:
            axes.set_xticks(ticks)
        return self._svg(figure, {name: [value for _x, value in points] for name, points in series.items()})

    def _rows_axis(self, axes: Any, rows: Sequence[Row]) -> None:
        axes.set_yticks(range(len(rows)), [self._wrapped(r.name) for r in rows])
        axes.invert_yaxis()
        axes.margins(y=0.02)

    def _bars(self, column: str, title: str, unit: str) -> str | None:
        """Draw one bar per row and workload, with the range of the repetitions."""
        rows = [r for r in self.rows if any(r.values(w, column) for w in self.report.workloads)]
        workloads = [w for w in self.report.workloads if any(r.values(w, column) for r in rows)]
        if not rows:
            return None
        figure, axes = self._figure(title, unit, "", 1.6 + 0.28 * len(rows) * (len(workloads) + 0.6))
        thick = 0.8 / len(workloads)
        for i, workload in enumerate(workloads):
            known = [(n, v) for n, r in enumerate(rows) if (v := r.values(workload, column))]
            places, means = [n + (i + 0.5) * thick - 0.4 for n, _values in known], [fmean(v) for _n, v in known]
            # The mean of equal numbers can differ from them in the last bit, and matplotlib refuses negative lengths.
            ends = [(max(0.0, fmean(v) - min(v)), max(0.0, max(v) - fmean(v))) for _n, v in known]
            spans = [list(side) for side in zip(*ends, strict=True)]
            look = {"hatch": HATCHES[i % MANY_ROWS], "edgecolor": GROUND, "ecolor": INK, "label": traffic(workload)}
            axes.barh(places, means, 0.9 * thick, xerr=spans, capsize=3, color=COLOURS[i % MANY_ROWS], **look)
            for place, mean, high in zip(places, means, spans[1], strict=True):
                axes.annotate(f"{mean:.3g}", (mean + high, place), (5, 0), textcoords="offset points", va="center")
        self._rows_axis(axes, rows)
        return self._svg(figure, {r.name: [v for w in workloads for v in r.values(w, column)] for r in rows})

    def frontier(self) -> str | None:
        """Draw what each user gets against what each node gives, at the shortest context with several concurrencies."""
        rows = [r for r in self.rows if r.nodes]
        loads: dict[int, list[str]] = {}
        for workload in sorted(self.report.workloads, key=shape):
            if shape(workload)[1] and any(r.mean(workload) for r in rows):
                loads.setdefault(shape(workload)[0], []).append(workload)
        chosen = next((found for found in loads.values() if len(found) > 1), [])
        series = {r.name: [(mean / shape(w)[1], mean / r.nodes) for w in chosen if (mean := r.mean(w))] for r in rows}
        context = traffic(chosen[0]).partition(", ")[2] if chosen else ""
        title = "Frontier: tokens per second of a user against those of a node" + (f", {context}" if context else "")
        points = sorted((point for each in series.values() for point in each), reverse=True)
        if not chosen or len(points) < 2:
            return None
        figure, axes = self._figure(textwrap.fill(title, int(6 * self.width)), "tok/s of one user", "tok/s of one node")
        best = [point for n, point in enumerate(points) if all(point[1] > other[1] for other in points[:n])]
        axes.plot(*zip(*best, strict=True), color=INK, alpha=0.25, linewidth=7, linestyle="-", marker="")
        for name, each in series.items():
            axes.plot(*zip(*sorted(each), strict=True), label=self._wrapped(name))
        for row in rows[:1]:
            for workload in chosen:
                if mean := row.mean(workload):
                    users = shape(workload)[1]
                    place = (mean / users, mean / row.nodes)
                    axes.annotate(f"{users} user{'s' * (users > 1)}", place, (6, 4), textcoords="offset points")
        axes.set_xlim(0, 1.15 * points[0][0])
        axes.set_ylim(0, 1.1 * max(point[1] for point in points))
        return self._svg(figure, {name: [node for _user, node in each] for name, each in series.items()})

    def throughput(self) -> str | None:
        """Draw the peak rate by concurrency, or as bars if that would be one point or too many lines."""
        series: dict[str, list[tuple[float, float]]] = {}
        contexts = {shape(w)[0] for w in self.report.workloads}
        for row in self.rows:
            for workload in self.report.workloads:
                mean = row.mean(workload)
                if mean is not None:
                    context = traffic(workload).partition(", ")[2] or "no context"
                    name = row.name if len(contexts) == 1 else f"{row.name}; {context}"
                    series.setdefault(name, []).append((shape(workload)[1], mean))
        few = len(series) <= MANY_ROWS
        drawn = self._lines("Throughput by concurrency", "streams", "peak tok/s", series) if few else None
        return drawn or self._bars(PEAK, "Throughput", "peak tok/s; the black line is the range of the repetitions")

    def heat_map(self) -> str | None:
        """Draw the rate at the highest concurrency over the last axis and the other axes; broken cells stay empty."""
        names = list(dict.fromkeys(k for r in self.report.rows for k in r.labels))
        rows = [r for r in self.report.rows if set(r.labels) == set(names)]
        if len(names) < 2 or len(rows) < 6 or not self.report.workloads:
            return None
        workload = max(self.report.workloads, key=shape)
        places = {r.id: (cell_name({n: r.labels[n] for n in names[:-1]}), r.labels[names[-1]]) for r in rows}
        down, across = (list(dict.fromkeys(place[i] for place in places.values())) for i in (0, 1))
        grid = [[float("nan")] * len(across) for name in down]
        told: dict[str, list[float]] = {}
        title = f"Peak tok/s at {traffic(workload)}; an empty field has no valid result"
        figure, axes = self._figure(self._wrapped(title), names[-1].replace("_", " "), "", 1.6 + 0.45 * len(down))
        axes.grid(visible=False)
        for row in rows:
            value = row.mean(workload) if row.status == "ok" else None
            if value is not None:
                y, x = down.index(places[row.id][0]), across.index(places[row.id][1])
                grid[y][x] = value
                told.setdefault(down[y], []).append(value)
                look = {"facecolor": GROUND, "edgecolor": "none", "pad": 1.5}
                axes.text(x, y, f"{value:.3g}", ha="center", va="center", fontsize=8, bbox=look)
        axes.imshow(grid, aspect="auto", cmap="viridis")
        axes.set_xticks(range(len(across)), across)
        axes.set_yticks(range(len(down)), list(map(self._wrapped, down)), fontsize=8)
        return self._svg(figure, told)

    def first_token(self) -> str | None:
        """Draw the time to the first token by context, or as bars if there is only one context."""
        series: dict[str, list[tuple[float, float]]] = {}
        for row in self.rows:
            for (workload, column), values in row.figures.items():
                if column == "ttft_s":
                    context, streams = shape(workload)
                    name = f"{row.name}; {traffic(f'c0-n{streams}')}"
                    series.setdefault(name, []).append((context, fmean(values)))
        drawn = self._lines("Time to the first token by context", "context, tokens", "seconds", series)
        return drawn or self._bars("ttft_s", "Time to the first token", "seconds")

    def acceptance(self) -> str | None:
        """Draw the accept length against the draft steps, if an axis of the rows gives their number."""
        series: dict[str, list[tuple[float, float]]] = {}
        for row in self.report.ranked:
            steps = {k: int(m[1]) for k, v in row.labels.items() if k in STEP_AXES and (m := STEPS.match(v))}
            others = cell_name({k: v for k, v in row.labels.items() if k not in steps})
            for workload in self.report.workloads if steps else ():
                if (mean := row.mean(workload, "accept_length")) is not None:
                    name = "; ".join(filter(None, (others, traffic(workload))))
                    series.setdefault(name, []).append((next(iter(steps.values())), mean))
        title, unit = "Accept length", "tokens per verify step"
        drawn = self._lines(f"{title} by draft steps", "draft steps", unit, series)
        return drawn or self._bars("accept_length", title, unit)

    def requests(self) -> str | None:
        """Draw the rate of every request, to show the spread."""
        rows = [r for r in self.rows if any(len(v) > 1 for v in r.requests.values())]
        if not rows:
            return None
        workloads = self.report.workloads
        height = 1.6 + 0.28 * len(rows) * (len(workloads) + 0.6)
        figure, axes = self._figure("Every request", "tok/s of one request", "", height)
        for i, workload in enumerate(workloads):
            points = [
                (v, n + 0.8 * (i + 0.5) / len(workloads) - 0.4)
                for n, r in enumerate(rows)
                for v in r.requests.get(workload, [])
            ]
            if points:
                axes.plot(*zip(*points, strict=True), linestyle="none", alpha=0.7, label=traffic(workload))
        self._rows_axis(axes, rows)
        return self._svg(figure, {r.name: [v for w in workloads for v in r.requests.get(w, [])] for r in rows})

    def pictures(self) -> Iterator[str | None]:
        """Yield every picture, or None in place of one that the data do not allow."""
        yield from (self.throughput(), self.frontier(), self.heat_map())
        yield from (self.first_token(), self.acceptance(), self.requests())


def pictures(report: Report) -> list[dict[str, str]]:
    """Return all pictures that the report's data allow, as SVG by the names of `WIDTHS`; none without matplotlib."""
    if matplotlib is None:
        return []
    look: Any = {
        "svg.fonttype": "none",
        "hatch.linewidth": 1,
        "legend.frameon": False,
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "savefig.facecolor": "none",
    }
    places = ("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color")
    look |= dict.fromkeys(places, INK)
    series = cycler(color=COLOURS, marker=MARKERS, linestyle=DASHES)
    with matplotlib.rc_context(look | {"axes.prop_cycle": series}):
        drawn = zip(*(Sheet(report, width).pictures() for width in WIDTHS.values()), strict=True)
        return [dict(zip(WIDTHS, map(str, one), strict=True)) for one in drawn if all(one)]
