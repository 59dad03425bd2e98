# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils import _journal
from ansible_collections.gb10.cluster.plugins.module_utils._bench_html import page
from ansible_collections.gb10.cluster.plugins.module_utils._bench_plots import pictures
from ansible_collections.gb10.cluster.plugins.module_utils._bench_presets import with_winners
from ansible_collections.gb10.cluster.plugins.module_utils._bench_published import examined, resolver
from ansible_collections.gb10.cluster.plugins.module_utils._bench_rank import noise_floor, regressions, winners
from ansible_collections.gb10.cluster.plugins.module_utils._bench_report import from_records
from ansible_collections.gb10.cluster.plugins.module_utils._bench_table import markdown

ROOT = Path(__file__).resolve().parents[4]
PUBLISHED = sorted((ROOT / "sweeps/published").glob("*.yml"))


def published(name: str) -> Any:
    table = yaml.safe_load((ROOT / f"sweeps/published/{name}.yml").read_text())
    return examined(table, resolver(yaml.safe_load((ROOT / f"profiles/{table['profile']}.yml").read_text())))


def run(rate: float, status: str = "ok", garbage: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"status": status, "garbage": garbage or [], "figures": {"peak_tok_s": rate}}


def measured(cell: str, *rates: float, status: str = "ok", **more: Any) -> dict[str, Any]:
    signs = [{"kind": "single_token", "at": 0, "detail": "32 chunks in a row are '!'"}] if status == "garbage" else []
    measurement = {
        "workload": {"name": "c0-n8"},
        "status": status,
        "runs": [run(r, status, signs) for r in rates],
        "ttft_s": {"mean": 0.5},
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


def test_only_cells_that_count_are_ranked() -> None:
    report = from_records("nemotron", RECORDS)
    assert [r.id for r in report.ranked] == ["a", "b"]
    assert [(w.workload, w.row, w.certain) for w in winners(report)] == [("c0-n8", "3/4", True)]


def test_every_excluded_cell_says_why() -> None:
    rows = {r.id: (r.status, r.reason) for r in from_records("nemotron", RECORDS).rows}
    assert rows["c"] == ("duplicate", "SGLang makes the engine of 5/5 of it")
    assert rows["d"] == ("invalid", "3 does not divide 4")
    assert rows["e"] == ("garbage", "32 chunks in a row are '!'")
    assert rows["f"] == ("crash", "an illegal instruction was encountered")


def test_repetitions_that_overlap_make_no_certain_winner() -> None:
    report = from_records("n", [PLAN, measured("a", 150.0, 175.0, 160.0), measured("b", 158.0, 149.0, 171.0)])
    best = winners(report)[0]
    assert not best.certain
    assert best.tied == ("5/5",)
    assert "not distinguishable from 5/5" in markdown(report)


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


def test_the_published_winners_are_found_with_their_doubt() -> None:
    best = {w.workload: w for w in winners(published("nemotron-3-super-120b"))}
    assert best["c0-n1"].row == "3/4 / ep 4"
    assert best["c0-n1"].tok_s == 58.85
    assert not best["c0-n1"].certain


def test_rows_of_one_engine_give_the_noise_floor() -> None:
    floor = noise_floor(published("nemotron-3-super-120b"))
    assert floor["c0-n8"] == pytest.approx((175.1 - 152.7) / ((175.1 + 152.7) / 2))
    assert noise_floor(published("qwen3.5-397b"))["c0-n8"] == pytest.approx(2.4 / 97.3)


def test_a_slower_second_set_is_a_regression() -> None:
    before = from_records("x", RECORDS)
    after = from_records("x", [PLAN, measured("a", 170.0, 171.0, 172.0), measured("b", 151.5, 152.5, 151.0)])
    assert [(r["row"], r["verdict"]) for r in regressions(before, after)] == [("3/4", "worse"), ("5/5", "same")]
    missing = from_records("x", [PLAN, measured("a", 199.0, 200.0, 201.0)])
    assert [r["verdict"] for r in regressions(before, missing)] == ["same", "missing"]


def test_resolver_and_guards_say_what_they_make_of_published_rows() -> None:
    remarks = {r.name: r.remark for r in published("nemotron-3-super-120b").rows}
    assert remarks["5/7 / ep 1"] == "the resolver makes the engine of 5/5 / ep 1 of it"
    rows = published("qwen3.5-397b").rows
    (collapsed,) = [r for r in rows if r.status == "garbage"]
    assert "the resolver refuses it" in collapsed.remark
    assert "identical_statistics: all 8 requests" in collapsed.remark
    assert sum("makes the engine of" in r.remark for r in rows) == 2


def test_the_published_page_of_the_documentation_is_current() -> None:
    command = [sys.executable, str(ROOT / "scripts/bench_report.py"), *map(str, PUBLISHED)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (ROOT / "docs/published.md").read_text() == done.stdout, (
        "run: scripts/bench_report.py sweeps/published/*.yml"
    )


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
    assert "apart from every other cell" in lines[0]
    assert "transport=socket" in lines[0]
    assert "tuned-n1" in before["presets"]


def test_two_sets_are_compared_on_the_command_line(tmp_path: Path) -> None:
    script = str(ROOT / "scripts/bench_compare.py")
    slower = [PLAN, measured("a", 150.0, 151.0, 152.0), measured("b", 151.0, 152.0, 153.0)]
    for name, records in (("before", RECORDS), ("after", slower)):
        for record in records:
            _journal.append(tmp_path / f"{name}.jsonl", record)

    def compare(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=False)

    paths = [str(tmp_path / "before.jsonl"), str(tmp_path / "after.jsonl")]
    worse = compare(*paths)
    assert worse.returncode == 1
    assert worse.stdout.splitlines()[1].split()[-2:] == ["-24.5%", "worse"]
    assert compare(paths[0], paths[0]).returncode == 0
    assert compare(*paths, "--tolerance", "0.3").returncode == 0
    assert compare(paths[0], "/nowhere.jsonl").returncode == 2


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.outside += [v for k, v in attrs if k in ("src", "href") and v and not v.startswith("#")]


def test_the_page_stands_alone_and_escapes_what_it_shows() -> None:
    reports = [published(p.stem) for p in PUBLISHED]
    reports[0].rows[0].reason = "<script>alert(1)</script>"
    drawn = [(r, pictures(r)) for r in reports]
    assert all(svgs for _unused, svgs in drawn)
    transport = {
        "satisfied": True,
        "msg": "4 ranks on NET/IB",
        "ranks": [{"rank": 0, "verdict": "ib", "evidence": "channels", "channels": {"IB": {"0": 4, "1": 4}}}],
    }
    text = page(drawn, {"SGLang": "0.5.12"}, transport)
    links = Links()
    links.feed(text)
    assert links.outside == []
    assert "<script>" not in text
    assert "IB/0: 4, IB/1: 4" in text


def test_the_command_line_reads_tables_and_journals(tmp_path: Path) -> None:
    journal = tmp_path / "nemotron.jsonl"
    for record in RECORDS:
        _journal.append(journal, record)
    command = [sys.executable, str(ROOT / "scripts/bench_report.py"), str(journal), str(PUBLISHED[0])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "# nemotron" in done.stdout
    subprocess.run([*command, "--html", str(tmp_path / "out.html")], check=True)
    assert "<svg" in (tmp_path / "out.html").read_text()
    missing = subprocess.run([*command[:2], "/nowhere.yml"], capture_output=True, text=True, check=False)
    assert missing.returncode == 2
    assert "/nowhere.yml" in missing.stderr
