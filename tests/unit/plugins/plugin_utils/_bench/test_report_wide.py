# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test reports of a sweep that has two or more of everything: loads, repetitions, proofs, commits, reasons, ties."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.report import Answers, answers, data, markdown, page
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.rows import (
    Report,
    Row,
    comparison_lines,
    context_table,
    from_published,
    from_records,
    noise_floor,
    pooled,
    regressions,
    shape,
    traffic,
    winners,
    with_winners,
)
from stored import compare, flat

LOADS = {"c0-n1": 1.0, "c0-n8": 5.0, "c8192-n8": 4.0}


def repetition(rate: float | None, number: int, status: str = "ok", signs: Sequence[str] = ()) -> dict[str, Any]:
    """Return one repetition, of which each figure has a value of its own."""
    slow = 100 / (rate or 1)
    times = {"p50": slow, "p95": 2 * slow, "p99": 3 * slow}
    figures = {
        "peak_tok_s": rate,
        "wall_tok_s": rate and rate / 2 + number,
        "ttft_s": times,
        "itl_s": {key: value / 100 for key, value in times.items()},
        "prefill_tok_s": {"p50": 1000.0 + number},
        "ok": 7 + number,
        "failed": number,
        "finish_reasons": {"stop": 6, "length": number} if number else {"abort": 2},
    }
    requests = [{"tok_s": rate and rate / 8}, {"tok_s": None}, {"tok_s": (rate or 8) / 4}]
    server = {"running": 8.0 - number, "token_usage": 0.25, "accept_length": 2.5 + number / 4, "accept_rate": 0.5}
    garbage = [{"detail": sign} for sign in signs]
    return {"status": status, "figures": figures, "requests": requests, "server": server, "garbage": garbage}


def result(cell: str, base: float, *loads: str, spread: float = 0.01, runs: int = 3, **more: Any) -> dict[str, Any]:
    """Return the result of a cell whose rates grow with this base."""
    measurements = []
    for load in loads or LOADS:
        concurrency = int(load.rpartition("n")[2])
        rates = [base * LOADS[load] * (1 + spread * number) for number in range(runs)]
        runs_of = [repetition(rate, number) for number, rate in enumerate(rates)]
        work = {"name": load, "concurrency": concurrency, "context_tokens": shape(load)[0], "forced": False}
        measurements.append({"workload": work, "status": "ok", "judged": True, "runs": runs_of})
    return {"kind": "result", "cell": cell, "status": "ok", "measurements": measurements} | more


def served(number: int, transport: Mapping[str, Any] | None, *arguments: str, **more: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "nodes": ["spark1", "spark2"],
        "networks": ["a", "b"],
        "rdma_devices": ["rocep1s0f0"],
        "mtu": 9000,
        "sglang": "0.5.12",
        "kernels": [f"6.{number}"],
        "engine": f"e{number}",
        "inventory": ["lab.yml", f"more {number % 2}.yml"],
        "commit": f"abc{number % 2}",
        "arguments": ["python3", "--tp", "2", *arguments],
        "server": {"tp_size": 2, "steps": number, "moe": {"a": number % 2}, "flags": ["x", {"y": 1}]},
    }
    return facts | ({"transport": transport} if transport is not None else {}) | more


RANKS = [
    {"rank": 0, "host": "spark1", "verdict": "ib", "channels": {"IB": {"d0": 4, "d1": 4}, "Socket": {"0": 2}}},
    {"rank": 1, "host": "spark2", "verdict": "ib", "evidence": "channels"},
]
PROVEN = {"satisfied": True, "msg": "2 of 2 ranks on NET/IB", "ranks": RANKS, "counters": {"msg": "Counters agree."}}
LABELS = {
    "a": ("4", "roce"),
    "b": ("none", "roce"),
    "c": ("6", "roce"),
    "d": ("7", "roce"),
    "e": ("4", "socket"),
    "f": ("6", "socket"),
    "g": ("3", "roce"),
    "h": ("9", "roce"),
    "i": ("10", "roce"),
    "j": ("11", "roce"),
    "k": ("12", "roce"),
    "l": ("13", "roce"),
    "m": ("none", "socket"),
}
STATES: dict[str, dict[str, Any]] = {
    "d": {"status": "duplicate", "duplicate_of": "c"},
    "k": {"status": "duplicate", "duplicate_of": "of an earlier plan"},
    "g": {
        "status": "invalid",
        "reasons": [
            {"severity": "error", "reason": "3 does not divide 4"},
            {"severity": "warning", "reason": "slow"},
            {"severity": "error", "reason": "3 is odd"},
        ],
    },
}
PLAN: dict[str, Any] = {
    "kind": "plan",
    "sweep": "wide",
    "profile": "gemma",
    "workloads": [],
    "cells": [
        {"id": name, "labels": {"draft_steps": steps, "transport": transport}, "status": "run", "key": f"k{name}|x"}
        | STATES.get(name, {})
        for name, (steps, transport) in LABELS.items()
    ],
}


def broken(cell: str) -> dict[str, Any]:
    found = result(cell, 300.0, runs=2)
    for number, measurement in enumerate(found["measurements"]):
        signs = [f"sign {number}", f"other {number}", f"third {number}"]
        measurement["status"] = ("ok", "garbage", "failed")[number]
        measurement["runs"][1] = repetition(900.0, 1, "garbage", signs)
    return found


RECORDS = [
    PLAN,
    result("a", 30.0, environment=served(4, PROVEN, "--steps=4", "--fast"), overlay={}),
    result("b", 20.0, environment=served(0, PROVEN | {"msg": ""}, "--steps=0")),
    result(
        "c", 30.2, spread=0.02, environment=served(6, PROVEN | {"msg": "2 of 2 ranks on NET/IB/GDRDMA"}, "--steps=6")
    ),
    result("e", 24.0, "c0-n8", runs=1, environment=served(15, {"satisfied": False, "verdict": "socket"}, "--steps=4")),
    result("f", 22.0, "c0-n1", "c0-n8", environment=served(16, None, "--steps=6", nodes=["spark1", "spark2"])),
    broken("h") | {"environment": {"engine": "e9"}},
    {
        "kind": "result",
        "cell": "i",
        "status": "crash",
        "failure": {"line": "illegal instruction"},
        "reason": "no answer",
    },
    {"kind": "result", "cell": "j", "status": "failed", "failure": None, "reason": "no port is left"},
    {"kind": "result", "cell": "k", "reason": "it did not say how it ended"},
    result("m", 18.0, environment=served(1, None, nodes=["spark1", "spark1"], commit="", inventory=None)),
    {"kind": "result", "cell": "of an earlier plan", "status": "ok"},
]


def wide() -> Report:
    report = from_records("title", RECORDS)
    report.rows[1].remark = "The | baseline."
    return report


def ties() -> Report:
    """Return a report in which several engines win or cannot be told apart."""
    rates = {
        "one": {"c0-n1": [30.0, 31.0, 29.0], "c0-n2": [60.0, 60.1, 59.9], "c0-n4": [90.0, 90.1, 89.9]},
        "two": {"c0-n1": [30.0, 31.0, 30.0], "c0-n2": [50.0, 50.1, 49.9], "c0-n4": [91.0, 95.0, 87.0]},
        "three": {"c0-n1": [29.5, 31.0, 29.0], "c0-n2": [40.0, 40.1], "c0-n4": [10.0, 10.1, 10.2]},
        "four": {"c0-n1": [29.0, 30.5, 29.0]},
        "five": {"c0-n1": [29.0, 30.6, 28.0], "c0-n2": []},
    }
    return Report("ties", [Row(name, {"cell": name}, rates=each) for name, each in rates.items()])


def far() -> Report:
    """Return a report in which one engine wins everywhere, and another one than the baseline is the next best."""
    rates = {"baseline": 10.0, "2": 14.0, "4": 20.0}
    rows = [Row(name, {"mode": name, "graphs": "on"}) for name in ("4", "2", "baseline", "baseline")]
    for number, row in enumerate(rows):
        row.rates = {
            f"c0-n{n}": [rates[row.labels["mode"]] * n * (1 + n / 50 * (number == 0))] * 2 for n in (1, 2, 4, 8)
        }
        row.key = row.labels["mode"]
        row.outcomes = {"c0-n1": {"ok": 5}, "c0-n2": {"failed": number}}
    rows.append(Row("last", {"mode": "8"}, rates={"c0-n1": [3.0]}))
    return Report("far", rows, ["One note.", "Another note."], "a forum", "one command\nanother -i mine command")


PUBLISHED = {
    "title": "table",
    "source": "somewhere",
    "notes": ["first", "second"],
    "sweeps": ["one", "two"],
    "rows": [
        {"labels": {"tp": 1}, "rates": {"n1": 10, "c4096-n2": 30}, "figures": {"n1.ttft_s": 1, "all.itl_s": 0.01}},
        {
            "labels": {"tp": 2},
            "status": "garbage",
            "reason": "test 2",
            "key": 7,
            "rates": {"n1": 12, "all": 9},
            "outcomes": {"n1": {"ok": 1, "failed": 2}, "all": {"ok": 3}},
            "figures": {"c4096-n2.ttft_s": 2, "n1.ttft_s": 3},
        },
    ],
}
REPORTS = {"wide": wide, "ties": ties, "far": far, "table": lambda: from_published(PUBLISHED)}


def test_the_text_of_a_wide_report_is_the_stored_one() -> None:
    compare("report_wide", {name: markdown(made()).splitlines() for name, made in REPORTS.items()})


def test_the_page_of_a_wide_report_is_the_stored_one() -> None:
    shown = {}
    for name, made in REPORTS.items():
        text = page([(made(), [{"wide": "<svg/>", "narrow": "<svg></svg>"}])]).partition("</style>")[2]
        lines = [re.sub(r"</?t[dhr]>", "|", line) for line in text.replace("<tr>", "\n<tr>").splitlines()]
        shown[name] = [re.sub(r"\|+", "|", line) for line in lines]
    both = page([(ties(), []), (far(), [])])
    shown["two"] = re.findall("<title>.*</title>|<h1>.*</h1>", both)
    shown["one"] = re.findall("<title>.*</title>", page([(ties(), [])]))
    compare("report_wide_pages", shown)


def test_the_data_of_a_wide_report_are_the_stored_ones() -> None:
    found = json.loads(json.dumps(data(wide())))
    for row in found["rows"]:
        row["measurements"] = len(row["measurements"])
        row["environment"] = len(row["environment"])
        for columns in row["figures"].values():
            for column, figure in columns.items():
                columns[column] = {key: figure[key] and round(figure[key], 4) for key in ("n", "mean", "max")}
    for winner in found["winners"]:
        winner["tok_s"], winner["second_tok_s"] = round(winner["tok_s"], 4), round(winner["second_tok_s"], 4)
    found["noise_floor"] = {load: round(floor, 6) for load, floor in found["noise_floor"].items()}
    rest = data(far())
    rest["winners"] = [winner | {"tok_s": round(winner["tok_s"], 4)} for winner in rest["winners"]]
    rest["noise_floor"] = sorted(rest["noise_floor"])
    said = {"wide": flat(found), "far": flat({key: rest[key] for key in ("winners", "noise_floor", "base", "cells")})}
    assert data(far())["base"] is None
    compare("report_wide_data", said)


def test_the_winners_of_wide_reports_become_the_stored_presets() -> None:
    said = {}
    for name, made in REPORTS.items():
        report = made()
        for number, row in enumerate(report.rows):
            row.overlay = {"server_args": {"n": number}, "env": {}, "topology": {"tp": 1}, "image": f"i{number}"}
            row.overlay |= {"transport": "roce"} if number % 2 else {}
        profile, lines = with_winners({"presets": None, "name": name}, report)
        said[name] = [*lines, *flat(profile)]
    compare("report_wide_presets", said)


def test_what_changed_between_two_wide_reports_is_stored() -> None:
    before = wide()
    said = {"same": comparison_lines(regressions(before, wide()))[:3]}
    after = from_records(
        "title",
        [
            PLAN,
            result("b", 26.0, environment=RECORDS[2]["environment"]),
            result("a", 15.0, "c0-n1", "c0-n8", environment=RECORDS[1]["environment"]),
            result("c", 30.4, runs=2),
            result("e", 60.0, "c0-n8", runs=1),
            result("m", 12.0),
        ],
    )
    said["other"] = comparison_lines(regressions(before, after))
    said["reverse"] = comparison_lines(regressions(after, before))
    said["all missing"] = comparison_lines(regressions(before, Report("none", [])))[:3]
    one = Report("one", [Row("x", {"x": "1"}, rates={"c0-n1": [100.0]})])
    for rate in (75.0, 74.0, 125.0, 126.0):
        two = Report("two", [Row("x", {"x": "1"}, rates={"c0-n1": [rate]})])
        said[f"100 → {rate}"] = comparison_lines(regressions(one, two, 0.25))[:3]
    compare("report_wide_changes", said)


@pytest.mark.parametrize(
    ("checks", "lead", "trust"),
    [
        ([(True, "a"), (None, "b")], ["x"], "Yes."),
        ([(False, "a"), (None, "b")], ["x"], "In part: 1 doubt."),
        ([(False, "a"), (False, "b")], ["x"], "In part: 2 doubts."),
        ([(True, "a")], [], "No."),
    ],
)
def test_doubts_decide_how_far_a_result_can_be_trusted(checks: Any, lead: list[str], trust: str) -> None:
    found = Answers(["w"], lead, checks)
    assert found.trust == trust
    assert found.lines[2] == f"Can I trust it? {trust} {' '.join(text for _good, text in checks)}"


@pytest.mark.parametrize(
    ("rates", "lines"),
    [
        ({"c0-n1": [1.0]}, ["1 stream: 1.00 tok/s."]),
        ({"c0-n1": [1.0], "c0-n2": []}, ["1 stream: 1.00 tok/s."]),
        ({f"c0-n{n}": [1.0] for n in (1, 2, 3, 4)}, [f"{traffic(f'c0-n{n}')}: 1.00 tok/s." for n in (1, 2, 3, 4)]),
    ],
)
def test_a_single_cell_tells_each_of_its_loads(rates: dict[str, list[float]], lines: list[str]) -> None:
    assert answers(Report("one", [Row("x", {"x": "1"}, rates=rates)])).lead == lines


def test_figures_of_rows_with_few_values() -> None:
    rows = [Row("x", {"x": "1"}, rates={"c0-n1": [2.0]}), Row("y", {}, rates={"c0-n1": [4.0, 5.0]}, key="k")]
    rows += [
        Row("z", {"x": "3"}, "crash", rates={"c0-n1": [9.0]}, key="k"),
        Row("v", {"x": "4"}, rates={"c0-n1": [8.0]}, key="k"),
    ]
    report = Report("few", rows)
    assert pooled(report, rows[0], "c0-n1") == [2.0]
    assert pooled(report, rows[1], "c0-n1") == [4.0, 5.0, 8.0]
    assert noise_floor(report) == {"c0-n1": pytest.approx(4 / (17 / 3))}
    assert [winner.row for winner in winners(report)] == ["y"]
    assert context_table(report) == []
    rows[0].figures = {("c0-n1", "ttft_s"): [1.0], ("c9-n1", "itl_s"): [1.0]}
    assert context_table(report) == []
    rows[1].figures = {("c9-n1", "prefill_tok_s"): [7.0]}
    assert context_table(report) == [
        ["load", "cell", "TTFT s", "prefill tok/s"],
        ["1 stream", "x 1", "1.000", ""],
        ["1 stream, 9 context", "y", "", "7"],
    ]
