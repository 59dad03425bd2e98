# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the answers at the top of a report, and that page, Markdown and pictures have them in the same order."""

import html
import re
from itertools import product
from typing import Any

import numpy as np
import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench import plots
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.plots import pictures
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.report import answers, markdown, page, setups
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.rows import Report, Row, traffic
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from stored import compare

PROVEN = {"transport": {"satisfied": True, "msg": "4 of 4 ranks on NET/IB"}}


def row(name: str, rates: dict[str, list[float]], **more: Any) -> Row:
    measured = [{"judged": True, "workload": {"name": workload}} for workload in rates]
    fields: dict[str, Any] = {"environment": PROVEN, "measurements": measured} | more
    return Row(name, {"steps": name, "transport": "roce"}, key=name, rates=rates, **fields)


def sweep(*rows: Row, source: str = "") -> Report:
    return Report("mine", list(rows), source=source)


FAST = {"c0-n1": [30.0, 30.1, 29.9], "c0-n8": [200.0, 201.0, 199.0]}
SLOW = {"c0-n1": [20.0, 20.1, 19.9], "c0-n8": [160.0, 161.0, 159.0]}


def test_a_sweep_says_what_won_by_how_much_and_that_it_can_be_trusted() -> None:
    found = answers(sweep(row("none", SLOW), row("4", FAST), row("7", {}, status="garbage")))
    assert found.parts == {
        "What won?": ["Fastest at all 2 loads: steps 4, RoCE."],
        "By how much?": [
            "1 stream: 30.00 tok/s, 50.0% more than with steps none (20.00).",
            "8 streams: 200.00 tok/s, 25.0% more than with steps none (160.00).",
        ],
        "Can I trust it?": [
            "Yes.",
            "Every figure has 3 or more repetitions; repetitions differ by up to 1.2%.",
            "Every lead exceeds the spread of the repetitions.",
            "The transport of every rank is proven: 4 of 4 ranks on NET/IB.",
            "All ranked answers were checked, and none is broken.",
            "Not ranked, with reasons below: 1 garbage; of 3 cells.",
        ],
    }


def test_a_single_run_does_not_ask_what_won() -> None:
    times = {("c0-n8", "ttft_s"): [0.5], ("c0-n8", "ttft_p95_s"): [0.8], ("c0-n8", "itl_s"): [0.025]}
    report = sweep(row("4", FAST, figures=times))
    report.profile = "nemotron"
    found = answers(report).parts
    assert list(found) == ["What was measured?", "How fast is it?", "Can I trust it?"]
    assert found["What was measured?"] == ["Profile nemotron, steps 4, RoCE."]
    last = "8 streams: 200.00 tok/s, first token after 0.500 s, 25.0 ms between tokens; p95 of the first token 0.800 s."
    assert found["How fast is it?"] == ["1 stream: 30.00 tok/s.", last]
    assert found["Can I trust it?"][0] == "Yes."
    # The other cell of this sweep lost without a figure, so nothing won against it either.
    lost = answers(sweep(row("4", FAST), row("7", {}, status="crash"))).parts
    assert lost["What was measured?"] == ["Only one cell has a valid result: steps 4, RoCE."]


@pytest.mark.parametrize(
    ("other", "doubt"),
    [
        (row("2", {"c0-n8": [198.0, 202.0, 199.0]}), "within the spread: not distinguishable from steps 2, RoCE."),
        (row("2", {"c0-n8": [150.0]}), "Some figures have only 1 repetition, so a lead can be chance"),
        (row("2", {"c0-n8": [150.0] * 3}, environment={}), "The transport is not proven for steps 2, RoCE."),
        (
            row("2", {"c0-n8": [150.0] * 3}, measurements=[{"judged": False, "workload": {"name": "c0-n8"}}]),
            "Not all answers were checked",
        ),
        (row("2", {"c0-n8": [150.0] * 3}, outcomes={"c0-n8": {"ok": 7, "failed": 1}}), "1 of 8 requests failed."),
    ],
)
def test_each_weakness_is_a_doubt(other: Row, doubt: str) -> None:
    found = answers(sweep(row("4", {"c0-n8": FAST["c0-n8"]}), other))
    assert found.trust == "In part: 1 doubt."
    assert [text for good, text in found.checks if good is False and doubt in text]


def test_a_cell_on_one_node_needs_no_proof_of_the_transport() -> None:
    alone, proven = row("2", SLOW, environment={"nodes": ["spark1"]}), row("4", FAST)
    found = answers(sweep(alone))
    assert (found.trust, (True, "No network carried data: it ran on one node.") in found.checks) == ("Yes.", True)
    assert answers(sweep(alone, proven)).trust == "Yes."
    setup = setups(sweep(alone))[0]
    assert (setup.verdict, setup.transport["satisfied"]) == ("no network carried data: it ran on one node", True)
    # One that should have talked to another node still has to prove it.
    assert answers(sweep(row("2", SLOW, environment={"nodes": ["spark1", "spark2"]}), proven)).trust != "Yes."


def test_winners_that_differ_by_load_are_named_with_the_best_for_mixed_traffic() -> None:
    report = sweep(row("2", {"c0-n1": [30.0], "c0-n8": [100.0]}), row("4", {"c0-n1": [20.0], "c0-n8": [101.0]}))
    won = ["Fastest at 1 stream: steps 2, RoCE.", "Fastest at 8 streams: steps 4, RoCE."]
    assert answers(report).won == [*won, "Best for mixed traffic: steps 2, RoCE, never below 99% of the fastest."]


def test_many_loads_are_summarised() -> None:
    rates = {f"c0-n{n}": [10.0 * n] for n in (1, 2, 4, 8)}
    found = answers(sweep(row("2", rates), row("4", {w: [2 * v for v in r] for w, r in rates.items()})))
    assert found.lead == ["steps 4, RoCE: 20.00 to 160.00 tok/s, 100.0% more than the next best."]
    one = row("2", rates | {"c0-n16": [160.0]})
    assert answers(sweep(row("2", rates))).parts["How fast is it?"][3:] == ["8 streams: 80.00 tok/s."]
    assert answers(sweep(one)).parts["How fast is it?"][3:] == ["2 more loads are in the tables."]


def test_published_figures_are_not_proven() -> None:
    checks = answers(sweep(row("2", FAST), source="a forum")).checks
    assert (False, "These figures were published elsewhere: their transport is not proven.") in checks


def test_without_a_valid_result_the_reasons_are_the_answer() -> None:
    found = answers(sweep(row("2", {}, status="crash", reason="illegal instruction")))
    assert found.parts == {
        "What won?": ["Nothing: no cell has a valid result."],
        "By how much?": ["There is no figure."],
        "Can I trust it?": ["No.", "steps 2, RoCE: crash: illegal instruction"],
    }
    assert "Nothing: no cell" in markdown(sweep())
    assert pictures(sweep(*(row(str(steps), {}, status="crash") for steps in range(6)))) == []


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("report", [sweep(row("2", SLOW), row("4", FAST)), sweep(row("4", FAST))], ids=["sweep", "one"])
def test_the_order_is_answers_then_pictures_then_tables(report: Report) -> None:
    text = page([(report, pictures(report))])
    places = [text.index(part) for part in (*answers(report).parts, "<svg", "<table")]
    assert places == sorted(places)
    said = markdown(report)
    assert said.index("Can I trust it?") < said.index("## Throughput")
    for answer in answers(report).lines:
        assert all(part in said for part in answer.split("? ", 1)[1].split(". ")[:1])


def test_workloads_have_names_for_people() -> None:
    assert traffic("c0-n1") == "1 stream"
    assert traffic("c32768-n8") == "8 streams, 32k context"
    assert traffic("c3000-n2") == "2 streams, 3,000 context"
    assert (traffic("all"), traffic("mixed"), traffic("prose")) == ("all workloads", "mixed traffic", "prose")


def test_series_differ_without_colour_and_the_two_widths_share_no_ids() -> None:
    (first, *_others) = pictures(sweep(row("2", SLOW), row("4", FAST)))
    assert "stroke-dasharray" in first["wide"]
    wide, narrow = (set(re.findall(r'id="([hmp][0-9a-f]{10})"', first[width])) for width in ("wide", "narrow"))
    assert wide and narrow and wide.isdisjoint(narrow)


def test_a_picture_has_a_title_a_description_and_colours_that_a_dark_page_replaces() -> None:
    drawn = pictures(sweep(row("2", SLOW, nodes=4), row("4", FAST, nodes=4)))
    assert len(drawn) == 2
    for picture in (svg for widths in drawn for svg in widths.values()):
        assert re.match('<svg [^>]+ role="img">\\s*<title>[^<]+</title><desc>[^<]+</desc>', picture)
        assert "steps 4, RoCE" in picture.partition("</desc>")[0]
        # Grey lines of the grid are seen on both grounds.
        plain = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", picture)) - {"#b0b0b0"}
        assert plain == set()


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw only the pictures for a page, which takes half the time."""
    monkeypatch.setattr(plots, "WIDTHS", {"wide": plots.WIDTHS["wide"]})


def drawn_reports() -> dict[str, Report]:
    """Return reports whose pictures have several rows, loads and contexts."""
    loads = {"c0-n1": 1.0, "c0-n8": 5.0, "c8192-n1": 0.9, "c8192-n8": 4.0}
    rows = []
    for place, (steps, transport) in enumerate(product(("none", "2", "4"), ("roce", "tcp"))):
        known = {load: factor * (20 + 7 * place) for load, factor in loads.items()}
        rates = {load: [rate, rate + 2, rate + 1] for load, rate in known.items()}
        figures = {(load, "ttft_s"): [3 / rate, 4 / rate] for load, rate in known.items()}
        figures |= {(load, "accept_length"): [1 + place / 4] for load in loads}
        each = {load: [rate, rate - 3] for load, rate in known.items() if load != "c0-n1" or place}
        rows.append(Row(f"r{place}", {"steps": steps, "transport": transport}, key=f"k{place}", nodes=4, rates=rates))
        rows[-1].figures, rows[-1].requests = figures, each
    rows[1].status = "garbage"
    return {
        "all": sweep(*rows),
        "one load": sweep(*(row(steps, {"c0-n8": [rate, rate + 9]}) for steps, rate in (("2", 150.0), ("4", 160.0)))),
        "many lines": sweep(*(row(str(steps), {**SLOW, "c8192-n8": [steps + 90.0]}) for steps in range(14))),
    }


@pytest.mark.usefixtures("wide")
def test_the_words_and_numbers_of_all_pictures() -> None:
    words = re.compile(r"<(?:text|title|desc|tspan)[^>]*>([^<]+)<")
    found = {
        name: [" | ".join(map(html.unescape, words.findall(svg["wide"]))) for svg in pictures(report)]
        for name, report in drawn_reports().items()
    }
    compare("report_pictures", found)


def numbers(values: Any) -> str:
    return " ".join(f"{value:.4g}" for value in np.asarray(values, dtype=float).ravel())


def contents(figure: Figure) -> list[str]:
    """Return what was put into a picture: lines, bars, texts, fields, their looks and places."""
    (axes,) = figure.axes
    said = [
        f"{axes.get_title(loc='left')!r}: {numbers(figure.get_size_inches())} inches, {axes.get_legend() is not None}"
    ]
    if legend := axes.get_legend():
        said.append(f"legend of {legend._ncols}: {[text.get_text() for text in legend.get_texts()]}")
    for line in axes.lines:
        if line.get_marker() == "|":  # an end of a range
            continue
        look = (line.get_color(), line.get_linestyle(), line.get_marker(), line.get_alpha(), line.get_linewidth())
        label, points = line.get_label().partition("_child")[0], map(numbers, (line.get_xdata(), line.get_ydata()))
        said.append(f"line {label!r} {look}: {' / '.join(points)}")
    for bar in axes.patches:
        place = (bar.get_x(), bar.get_y(), bar.get_width(), bar.get_height())
        said.append(f"bar {bar.get_hatch()} {to_hex(bar.get_facecolor())}: {numbers(place)}")
    for each in axes.collections:
        said.append(f"ranges: {'; '.join(numbers(one) for one in each.get_segments())}")
    for text in axes.texts:
        place = (getattr(text, "xy", ()), text.get_position())
        said.append(f"{text.get_text()!r} {text.get_ha()} {text.get_va()}: {'; '.join(map(numbers, place))}")
    for image in axes.images:
        said.append(f"fields: {numbers(np.ma.filled(image.get_array(), np.nan))}")
    low, high = axes.get_ylim()
    ticks = [text.get_text() for text in axes.get_yticklabels()]
    grid = [line.get_visible() for line in axes.get_xgridlines()[:1]]
    return [*said, f"{axes.get_xlabel()} / {axes.get_ylabel()}: {numbers((low, high))}, {ticks}, {grid}"]


@pytest.mark.parametrize("width", ["wide", "narrow"])
def test_what_is_drawn_is_stored(monkeypatch: pytest.MonkeyPatch, width: str) -> None:
    made: list[Figure] = []

    class Kept(Figure):
        def savefig(self, *words: Any, **more: Any) -> None:
            made.append(self)
            super().savefig(*words, **more)

    monkeypatch.setattr(plots, "WIDTHS", {width: plots.WIDTHS[width]})
    monkeypatch.setattr(plots, "Figure", Kept)
    said = {}
    for name, report in drawn_reports().items():
        made.clear()
        pictures(report)
        said[name] = [line for figure in made for line in contents(figure)]
    compare(f"report_figures_{width}", said)


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize(
    ("rates", "nodes", "best"),
    [
        (FAST, 4, "50"),
        (FAST, 0, None),
        ({"c0-n1": [30.0]}, 4, None),
        ({"c0-n8": [200.0], "c8192-n1": [30.0], "c8192-n8": [160.0]}, 2, "80"),
    ],
    ids=["each of four nodes", "unknown nodes", "one concurrency", "the shortest context with two"],
)
def test_the_frontier_compares_users_with_nodes(rates: dict[str, list[float]], nodes: int, best: str | None) -> None:
    drawn = [svgs["wide"] for svgs in pictures(sweep(row("4", rates, nodes=nodes))) if "Frontier" in svgs["wide"]]
    assert len(drawn) == (best is not None)
    if best:
        assert re.search(r"<desc>tok/s of one node, tok/s of one user\. [^<]+ to " + best + "</desc>", drawn[0])
        assert "8k context" in drawn[0] or "c8192-n1" not in rates
