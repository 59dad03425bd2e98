# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench import journal as sweep_journal
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.plots import pictures
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.record import identity, single_cell
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.report import data, markdown, page
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.rows import (
    Report,
    Row,
    comparison_lines,
    from_records,
    noise_floor,
    regressions,
    winners,
    with_winners,
)
from bench_report import examined, main, resolver
from script_runs import called
from stored import compare

ROOT = Path(__file__).resolve().parents[5]
PUBLISHED = sorted((ROOT / "plugins/sweeps/published").glob("*.yml"))


def published(name: str) -> Any:
    table = yaml.safe_load((ROOT / f"plugins/sweeps/published/{name}.yml").read_text())
    return examined(table, resolver(yaml.safe_load((ROOT / f"plugins/profiles/{table['profile']}.yml").read_text())))


def run(rate: float, status: str = "ok", garbage: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    figures = {
        "peak_tok_s": rate,
        "wall_tok_s": rate / 2,
        "ttft_s": {"p50": 0.5, "p95": 0.75, "p99": 0.875},
        "itl_s": {"p50": 0.025, "p95": 0.03, "p99": 0.0355},
        "ok": 7,
        "failed": 1,
        "finish_reasons": {"stop": 6, "length": 1},
    }
    requests = [{"index": 0, "tok_s": rate / 8, "ttft_s": 0.5, "finish_reason": "stop"}]
    server = {"running": 8.0, "token_usage": 0.25}
    return {"status": status, "garbage": garbage or [], "figures": figures, "server": server, "requests": requests}


def measured(cell: str, *rates: float, status: str = "ok", **more: Any) -> dict[str, Any]:
    signs = [{"kind": "single_token", "at": 0, "detail": "32 chunks in a row are '!'"}] if status == "garbage" else []
    measurement = {
        "workload": {"name": "c0-n8", "concurrency": 8, "max_tokens": 3072, "seed": 1},
        "status": status,
        "runs": [run(r, status, signs) for r in rates],
    }
    return {"kind": "result", "cell": cell, "status": "ok", "measurements": [measurement]} | more


PLAN = {
    "kind": "plan",
    "cells": [
        {"id": "a", "labels": {"depth": "3/4"}, "status": "run", "key": "k1"},
        {"id": "b", "labels": {"depth": "5/5"}, "status": "run", "key": "k2"},
        {"id": "c", "labels": {"depth": "5/7"}, "status": "duplicate", "duplicate_of": "b", "key": "k2"},
        {
            "id": "d",
            "labels": {"depth": "ep3"},
            "status": "invalid",
            "reasons": [{"severity": "error", "reason": "3 does not divide 4"}],
        },
        {"id": "e", "labels": {"depth": "eager"}, "status": "run"},
        {"id": "f", "labels": {"depth": "crash"}, "status": "run"},
    ],
}
RECORDS = [
    PLAN,
    measured("a", 199.0, 200.0, 201.0),
    measured("b", 151.0, 152.0, 153.0),
    measured("e", 900.0, status="garbage"),
    {"kind": "result", "cell": "f", "status": "crash", "failure": {"line": "an illegal instruction was encountered"}},
]


def test_only_the_last_plan_counts_and_what_was_measured_for_it() -> None:
    work = [{"concurrency": 1, "max_tokens": 64}]
    plan = PLAN | {"workloads": work}
    mine = identity("a", plan)
    a, b = measured("a", 200.0) | mine, measured("b", 150.0) | identity("b", plan) | {"key": "another engine"}
    report = from_records("again", [plan, a, b, plan])
    assert {row.id: row.status for row in report.rows if row.id in "ab"} == {"a": "ok", "b": "not run"}
    other = plan | {"workloads": [{"concurrency": 8}]}
    assert from_records("again", [plan, a, other]).ranked == []


def test_cells_that_the_image_resolves_to_one_engine_are_repetitions_of_each_other() -> None:
    a, b = (measured(cell, rate, environment={"engine": "e"}) for cell, rate in (("a", 200.0), ("b", 202.0)))
    cells = [{"id": name, "labels": {"depth": name}, "status": "run", "key": f"{name}|roce|i|{{}}"} for name in "abc"]
    report = from_records("depths", [PLAN | {"cells": cells}, a, b, measured("c", 100.0)])
    assert [row.key for row in report.rows] == ["e|roce|i|{}", "e|roce|i|{}", "c|roce|i|{}"]
    assert winners(report)[0].tok_s == 201.0
    again = {"kind": "result", "cell": "b", "status": "duplicate", "duplicate_of": "a", "environment": {"engine": "e"}}
    said = next(row for row in from_records("depths", [PLAN | {"cells": cells}, a, again]).rows if row.id == "b")
    assert (said.status, said.reason) == ("duplicate", "the image resolves it to the same engine as depth a")
    # Another transport is another engine.
    cells[1]["key"] = "b|socket|i|{}"
    assert len({row.key for row in from_records("depths", [PLAN | {"cells": cells}, a, b]).rows}) == 3


def twins(*cells: tuple[str, str, list[float]]) -> Report:
    """Return a report of (name, engine, rates at n = 8)."""
    rows = [Row(name, {"cell": name}, key=engine, rates={"c0-n8": rates}) for name, engine, rates in cells]
    return Report("twins", rows)


def test_cells_of_one_engine_win_or_lose_together() -> None:
    (best,) = winners(twins(("A", "x", [98.5, 98.4, 98.6]), ("A2", "x", [98.5]), ("B", "y", [50.0, 50.1, 49.9])))
    assert (best.row, best.tied, best.certain) == ("cell A", (), True)
    (best,) = winners(twins(("A", "x", [105.0]), ("A2", "x", [90.0]), ("B", "y", [100.0])))
    assert (best.row, best.tok_s, best.second) == ("cell B", 100.0, "cell A")


def test_a_cell_without_a_rival_is_no_certain_winner() -> None:
    (best,) = winners(twins(("A", "x", [98.5, 98.4, 98.6])))
    assert (best.certain, best.doubt) == (False, "no other cell to compare with")
    (best,) = winners(twins(("A", "x", [98.5]), ("B", "y", [50.0])))
    assert (best.certain, best.doubt) == (False, "fewer than three repetitions")


@pytest.mark.parametrize(
    ("at_one", "certain", "tied"),
    [([20.0, 20.1, 19.9], True, ()), ([29.0, 31.0, 30.0], False, ("cell B at 1 stream",))],
)
def test_mixed_traffic_has_a_certain_winner_where_every_shape_has(
    at_one: list[float], certain: bool, tied: tuple[str, ...]
) -> None:
    report = twins(("A", "x", [98.5, 98.4, 98.6]), ("B", "y", [50.0, 50.1, 49.9]))
    report.rows[0].rates["c0-n1"], report.rows[1].rates["c0-n1"] = [30.0, 30.5, 30.2], at_one
    mixed = winners(report)[-1]
    assert (mixed.workload, mixed.row, mixed.certain, mixed.tied) == ("mixed", "cell A", certain, tied)


def environment(transport: str, *arguments: str, **more: Any) -> dict[str, Any]:
    ranks = [{"rank": 0, "host": "spark1", "verdict": transport, "evidence": "channels", "channels": {}}]
    ranks[0]["channels"] = {"IB": {"0": 4, "1": 4}} if transport == "ib" else {"Socket": {"0": 2}}
    proof = {"satisfied": transport == "ib", "msg": f"4 ranks on {transport}", "verdict": transport, "ranks": ranks}
    common = {
        "nodes": ["spark1", "spark2"],
        "mtu": 9000,
        "sglang": "0.5.12",
        "inventory": ["lab.yml"],
        "commit": "abc1",
    }
    return common | {"arguments": ["python3", *arguments], "transport": proof} | more


SERVED = [
    PLAN | {"sweep": "mine"},
    measured("a", 199.0, 200.0, 201.0)
    | {"environment": environment("ib", "--tp", "4", "--steps=3", server={"steps": 3, "moe": {"a": 1}}, nccl=["2.29"])},
    measured("b", 151.0, 152.0, 153.0)
    | {
        "environment": environment(
            "socket", "--tp", "4", "--eager", server={"steps": 5, "moe": {"a": 1}}, nccl=["2.30"]
        )
    },
]


def test_markdown_and_page_say_the_same_of_fabric_transport_and_configuration() -> None:
    report = from_records("mine", SERVED)
    text, html = markdown(report), page([(report, [])])
    said = ["4 ranks on ib", "4 ranks on socket", "IB/0: 4, IB/1: 4", "spark1, spark2", "9000", "resolved steps: 3 → 5"]
    said += [
        "python3 --tp 4 --steps=3",
        "git checkout abc1",
        "ansible-playbook gb10.cluster.sweep -e sweep=mine -i lab.yml",
    ]
    said += ["# c0-n8: concurrency 8, max_tokens 3072, seed 1", "Fabric", "Environment", "How to reproduce"]
    for part in said:
        assert part in text
        assert part in html
    assert "{" not in text


def test_only_long_texts_at_the_end_of_a_line_of_a_table_are_broken() -> None:
    records = [PLAN, measured("a", 200.0) | {"environment": environment("ib", sglang="a release with a long name")}]
    ends = re.findall(r"<td( class=wide)?>([^<]*)</td></tr>", page([(from_records("mine", records), [])]))
    assert {(bool(wide), len(cell) > 24) for wide, cell in ends} == {(True, True), (False, False)}


def test_the_data_have_numbers_requests_arguments_and_how_to_measure_again() -> None:
    (row, *_others) = data(from_records("mine", SERVED))["rows"]
    assert row["figures"]["c0-n8"]["peak_tok_s"]["mean"] == 200.0
    assert row["figures"]["c0-n8"]["ttft_s"]["values"] == [0.5, 0.5, 0.5]
    assert row["measurements"][0]["runs"][2]["requests"][0]["tok_s"] == 201.0 / 8
    assert row["environment"]["arguments"] == ["python3", "--tp", "4", "--steps=3"]
    assert row["environment"]["transport"]["ranks"][0]["channels"] == {"IB": {"0": 4, "1": 4}}
    found = json.loads(json.dumps(data(from_records("mine", SERVED))))
    assert found["reproduce"][0] == "git checkout abc1"
    assert found["cells"][1]["differences"][-1] == "resolved steps: 3 → 5"
    assert found["winners"][0]["certain"] is True


def test_a_cell_whose_server_did_not_tell_its_settings_differs_only_in_its_arguments() -> None:
    plan, ours, theirs = SERVED
    silent = {"environment": environment("socket", "--tp", "4")}
    for records in ([plan, ours, theirs | silent], [plan, ours | silent, theirs]):
        differences = data(from_records("mine", records))["cells"][1]["differences"]
        assert differences == (["--steps: 3 → not set"] if records[1] is ours else ["--eager: not set → set"])


def test_the_command_that_measures_again_names_an_inventory() -> None:
    command = "ansible-playbook gb10.cluster.sweep -e sweep=mine -i"
    environment = {"arguments": [], "inventory": ["/srv/my inventory"]}
    served = [{**record, "environment": environment} if record["kind"] == "result" else record for record in SERVED]
    assert data(from_records("mine", served))["reproduce"][0] == f"{command} '/srv/my inventory'"
    failed = [{**record, "environment": {}} if record["kind"] == "result" else record for record in SERVED]
    assert data(from_records("mine", failed))["reproduce"][0] == f"{command} inventory/mine"


def test_a_measurement_without_a_sweep_is_repeated_by_playbook_bench() -> None:
    plan = {"kind": "plan", "workloads": [], "profile": "gemma-4-31b-it", **single_cell("gemma", "two-nodes")}
    assert from_records("bench-gemma", [plan]).reproduce == (
        "ansible-playbook gb10.cluster.bench -e profile=gemma-4-31b-it -e preset=two-nodes"
    )
    told = from_records("bench-host1", [{**plan, "profile": "", **single_cell("host1", "")}]).reproduce
    assert told == "ansible-playbook gb10.cluster.bench -e bench_url=URL"


def test_repetitions_that_overlap_make_no_certain_winner() -> None:
    report = from_records("n", [PLAN, measured("a", 150.0, 175.0, 160.0), measured("b", 158.0, 149.0, 171.0)])
    best = winners(report)[0]
    assert not best.certain
    assert best.tied == ("depth 5/5",)
    assert "not distinguishable from depth 5/5" in markdown(report)


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda p: p.stem)
def test_every_published_table_renders_with_its_remarks(path: Path) -> None:
    report = published(path.stem)
    text = markdown(report)
    assert report.source in text
    for row in report.rows:
        assert all(label in text for label in row.labels.values())
        for rates in row.rates.values():
            assert f"{rates[0]:.2f}" in text
    assert all(note in text for note in report.notes)


def test_rows_of_one_engine_give_the_noise_floor() -> None:
    assert noise_floor(published("qwen3.5-397b"))["c0-n8"] == pytest.approx(2.4 / 97.3)


def test_broken_output_is_no_noise() -> None:
    plan = {"kind": "plan", "cells": [PLAN["cells"][1], {**PLAN["cells"][2], "status": "run"}]}
    report = from_records("n", [plan, measured("b", 100.0, 101.0), measured("c", 144.0, status="garbage")])
    assert noise_floor(report) == {"c0-n8": pytest.approx(1 / 100.5)}
    assert "c0-n8" not in noise_floor(published("nemotron-3-super-120b"))


def test_a_slower_second_set_is_a_regression() -> None:
    before = from_records("x", RECORDS)
    after = from_records("x", [PLAN, measured("a", 170.0, 171.0, 172.0), measured("b", 151.5, 152.5, 151.0)])
    found = {(r["row"], r["figure"]): r["verdict"] for r in regressions(before, after)}
    assert (found["depth 3/4", "peak_tok_s"], found["depth 3/4", "wall_tok_s"], found["depth 3/4", "ttft_s"]) == (
        "worse",
        "worse",
        "same",
    )
    assert {verdict for (row, _unused), verdict in found.items() if row == "depth 5/5"} == {"same"}
    missing = from_records("x", [PLAN, measured("a", 199.0, 200.0, 201.0)])
    assert [r["verdict"] for r in regressions(before, missing)] == ["same"] * 4 + ["missing"] * 4


@pytest.mark.parametrize(("figure", "factor"), [("ttft_s", 10.0), ("itl_s", 1.5), ("wall_tok_s", 0.5)])
def test_each_figure_alone_can_be_a_regression_and_its_reverse_none(figure: str, factor: float) -> None:
    before, after = from_records("x", RECORDS), from_records("x", RECORDS)
    key = ("c0-n8", figure)
    after.rows[0].figures[key] = [factor * v for v in after.rows[0].figures[key]]
    assert [(r["row"], r["figure"]) for r in regressions(before, after) if r["verdict"] == "worse"] == [
        ("depth 3/4", figure)
    ]
    assert [r["figure"] for r in regressions(after, before) if r["verdict"] == "better"] == [figure]
    after.rows[0].figures[key] = [factor * v * n for n in (0.2, 1, 9) for v in before.rows[0].figures[key][:1]]
    assert {r["verdict"] for r in regressions(before, after)} == {"same"}


@pytest.mark.parametrize(("factor", "verdict"), [(0.95, "same"), (0.949, "worse"), (1.05, "same"), (1.051, "better")])
def test_a_change_of_exactly_the_tolerance_is_none(factor: float, verdict: str) -> None:
    before, after = from_records("x", RECORDS), from_records("x", RECORDS)
    key = ("c0-n8", "wall_tok_s")
    before.rows[0].figures[key], after.rows[0].figures[key] = [100.0] * 3, [100.0 * factor] * 3
    assert next(r["verdict"] for r in regressions(before, after) if r["figure"] == "wall_tok_s") == verdict


def test_the_findings_of_resolver_and_guards_are_shown_for_published_rows() -> None:
    remarks = {r.name: r.remark for r in published("nemotron-3-super-120b").rows}
    assert remarks["depth 5/7, ep 1"] == "It resolves to the same engine as depth 5/5, ep 1"
    rows = published("qwen3.5-397b").rows
    collapsed = [r for r in rows if r.status == "garbage"]
    tests = [int(r.reason.removeprefix("test ").partition(":")[0]) for r in collapsed]
    assert tests == [2, 5, 8, 11, 26, 29, 32, 35]
    assert all("The resolver refuses it" in r.remark for r in collapsed)
    assert all("The guards see no_content" in r.remark for r in collapsed[-3:])
    crashed = [r for r in rows if r.status == "crash"]
    assert len(crashed) == 12
    assert all("The resolver refuses it" in r.remark for r in crashed)
    assert sum("resolves to the same engine as" in r.remark for r in rows) == 2


def test_winners_become_presets_of_the_users_own_profile() -> None:
    report = from_records("mine", RECORDS)
    report.rows[0].overlay = {"preset": "mtp-3-4", "server_args": {"speculative_num_steps": 3}, "transport": "socket"}
    before = {"name": "p", "presets": {"mtp-3-4": {}, "tuned-n1": {"description": "of an earlier sweep"}}}
    profile, lines = with_winners(before, report)
    preset = profile["presets"]["tuned-n8"]
    assert set(profile["presets"]) == {"mtp-3-4", "tuned-n8"}
    assert preset["based_on"] == "mtp-3-4"
    assert preset["server_args"] == {"speculative_num_steps": 3}
    assert preset["expected"]["results"] == [{"concurrency": 8, "tokens_per_second": 200.0}]
    assert "differ from those of every other cell" in lines[0]
    assert "transport=socket" in lines[0]
    assert "tuned-n1" in before["presets"]


def test_the_comparison_says_what_changed_by_how_much_and_how_certain_it_is() -> None:
    before = from_records("before", RECORDS)
    after = from_records("after", [PLAN, measured("a", 150.0, 151.0, 152.0), measured("b", 151.0, 152.0, 153.0)])
    said = comparison_lines(regressions(before, after))
    assert said[:3] == [
        "What changed: of 8 figures 2 worse, 6 unchanged.",
        "By how much: the largest loss is peak tok/s of depth 3/4 at 8 streams, -24.5%.",
        "Can I trust it: each figure has 3 or more repetitions, so a difference counts only if it exceeds the spread.",
    ]
    assert said[4].split()[-2:] == ["-24.5%", "worse"]
    assert "peak tok/s" in said[4]
    assert {row["verdict"] for row in regressions(before, before)} == {"same"}
    assert {row["verdict"] for row in regressions(before, after, 0.3)} == {"same"}


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.outside += [v for k, v in attrs if k in ("src", "href") and v and not v.startswith("#")]


def test_the_reports_are_those_that_are_stored() -> None:
    reports = {"journal": from_records("nemotron", RECORDS), "served": from_records("nemotron", SERVED)}
    reports |= {name: published(name) for name in ("nemotron-3-super-120b", "gemma-4-26b-a4b-b300")}
    compare("report_texts", {name: markdown(report).splitlines() for name, report in reports.items()})


def test_the_page_stands_alone_and_escapes_what_it_shows() -> None:
    report = published("nemotron-3-super-120b")
    report.rows[0].reason = "<script>alert(1)</script>"
    drawn = pictures(report)
    assert drawn
    text = page([(report, drawn), (published("glm-4.7"), [])])
    links = Links()
    links.feed(text)
    assert links.outside == []
    assert "<script>" not in text and "&lt;script&gt;" in text


def test_the_command_line_reads_tables_and_journals(tmp_path: Path) -> None:
    journal = tmp_path / "nemotron.jsonl"
    for record in SERVED:
        sweep_journal.append(journal, record)
    done = called(main, str(journal), str(PUBLISHED[0]))
    assert done.returncode == 0
    assert "# nemotron" in done.stdout
    assert called(main, str(journal), "--html", str(tmp_path / "out.html")).returncode == 0
    made = (tmp_path / "out.html").read_text()
    assert "<svg" in made and "4 ranks on socket" in made and "spark1, spark2" in made
    missing = called(main, "/nowhere.yml")
    assert missing.returncode == 2
    assert "/nowhere.yml" in missing.stderr
