# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the rules with published launches: none that worked is refused, and none that failed passes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.check import log_of
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.models import load_models
from sglang_cases import KNOWLEDGE, PROFILES
from sglang_rows import Outcome, judge_row, load_rows, main, summarize, tidy, update_published, update_rules

ROWS = Path(__file__).resolve().parents[1] / "fixtures" / "sglang" / "spark-rows.json"

ROW = {"id": "a", "sglang": "0.5.16", "flags": ["--model-path", "m"], "truth": "works"}

# SGLang's own argument code refuses these two, so the image says it before the start.
IMAGE_SAYS = {"profile/qwen3.6-35b-kv-nvfp4-flashinfer", "profile/qwen3.6-35b-kv-nvfp4-trtllm"}


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    models = load_models(PROFILES / "models")
    return [judge_row(row, KNOWLEDGE, models) for row in load_rows(ROWS)]


def test_no_launch_that_worked_is_refused_except_for_a_fork(outcomes: list[Outcome]) -> None:
    refused = summarize(outcomes)["works_refused"]
    assert all(row["fork"] and row["rules"] == ("flag.choice",) for row in refused), refused
    assert len(refused) == 1


def test_warnings_tell_launches_that_failed_from_those_that_worked(outcomes: list[Outcome]) -> None:
    """A warning that most working launches get is a note: of 282 that worked, 201 were warned of before."""
    score = summarize(outcomes)
    assert score["fails"]["refused"] >= 84
    assert score["fails"]["warned"] >= 72
    assert {row["id"] for row in score["fails_silent"]} >= IMAGE_SAYS
    assert score["works"]["warned"] <= 80


def test_the_page_of_profiles_has_these_figures(outcomes: list[Outcome]) -> None:
    score, rows = summarize(outcomes), load_rows(ROWS)
    page = (ROWS.parents[4] / "docs/profiles.md").read_text(encoding="utf-8")
    told = page.partition("The rules are compared with")[2].partition("have nothing")[0]
    sparks = sum(row.get("gpu", "gb10") == "gb10" for row in rows)
    works, fails = (
        {kind: score[part].get(kind, 0) for kind in ("refused", "warned", "silent")} for part in ("works", "fails")
    )
    figures = [len(rows), sparks, sum(works.values()), works["warned"], sum(fails.values()), *fails.values()]
    assert [int(number) for number in re.findall(r"\b\d+\b", told)] == figures
    assert works["refused"] == 1 and "one is refused" in told


def test_the_score_is_that_of_each_set_apart(outcomes: list[Outcome]) -> None:
    """A set that rules were written for says less than "later", for which none was: published launches name two."""
    sets = summarize(outcomes)["sets"]
    assert list(sets) == ["recorded", "cases", "later"]
    assert all(part["warnings_per_launch"] <= 0.4 and part["refused"] == 0 for part in sets.values())
    # The release's own resolver refuses this one.
    assert (sets["cases"]["not_named"], sets["cases"]["causes"]) == (["sglang#39080"], 12)
    assert (sets["later"]["named"], sets["later"]["causes"]) == (2, 10)


def test_an_error_never_contradicts_a_launch_that_worked() -> None:
    certain = [rule for rule in KNOWLEDGE.rules.rules if rule.severity == "error" and rule.lifted_by is None]
    assert [rule.id for rule in certain if rule.tried[0]] == []


def test_the_published_launches_are_those_of_the_rows(tmp_path: Path, outcomes: list[Outcome]) -> None:
    path = tmp_path / "published.json"
    update_published(path, load_rows(ROWS), outcomes)
    shipped = (PROFILES / "published.json").read_text(encoding="utf-8")
    assert path.read_text(encoding="utf-8") == shipped, f"run scripts/sglang_rows.py --update {ROWS}"


@pytest.mark.parametrize(
    ("evidence", "told"),
    [
        (
            "row 13: FAIL† (bench_crash @ n=8): illegal instruction; n=1 tok/s 19.61",
            "FAIL (bench_crash @ n=8): illegal instruction",
        ),
        ("row 05: crash S; root cause `cuDNN`", "crash S; root cause `cuDNN`"),
        ("row 13: CRASH†; 1∥ tok/s 12.75", "CRASH"),
        ("garbage: GSM8K 0/128", "garbage: GSM8K 0/128"),
    ],
)
def test_what_happened_is_told_without_rates_and_footnotes(evidence: str, told: str) -> None:
    assert tidy(evidence) == told


def test_a_launch_is_judged_without_its_own_log(outcomes: list[Outcome]) -> None:
    for row, outcome in zip(load_rows(ROWS), outcomes, strict=True):
        assert not any(log_of(row["source"]) in line for line in outcome.report.published), row["id"]


def test_a_finding_names_evidence_and_launches(outcomes: list[Outcome]) -> None:
    sources = {finding.rule: finding.source for outcome in outcomes for finding in outcome.report.findings}
    assert sources["moe.fi_cutlass.quant"].startswith("measured: ")
    assert sources["moe.fi_cutlass.quant"].endswith("; of the published launches, 0 that worked and 18 that failed")


def write(path: Path, data: Any) -> str:
    path.write_text(json.dumps(data))
    return str(path)


def test_own_launches_are_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = {**ROW, "id": "b", "flags": [*ROW["flags"], "--attention-backend", "fa3"]}
    assert main([write(tmp_path / "rows.json", [ROW, bad, {**ROW, "id": "c", "truth": "fails"}])]) == 1
    printed = capsys.readouterr().out
    assert "launches with outcome 'works': 1 refused" in printed
    assert "worked, but is refused by attn.fa3_sm12x: b" in printed
    assert main(["--json", write(tmp_path / "rows.json", {"rows": [ROW]})]) == 0
    assert json.loads(capsys.readouterr().out)["works"] == {"silent": 1}
    main(["--rule", "attn.fa3_sm12x", write(tmp_path / "rows.json", [ROW, bad])])
    assert capsys.readouterr().out == "worked: b\n"


@pytest.mark.parametrize(
    "data",
    [
        ["a"],
        [{"id": "a"}],
        {"no": "rows"},
        [{**ROW, "truth": "?"}],
        [{**ROW, "sglang": "x"}],
        [{key: value for key, value in ROW.items() if key != "sglang"}],
        [{**ROW, "flags": "--model-path m"}],
        [{**ROW, "flags": ["--tp-size", 2]}],
        [{**ROW, "carries": "sglang#1"}],
        [{**ROW, "env": ["A=1"]}],
        [{**ROW, "arch": ["a"]}],
        [{**ROW, "quantization": 5}],
        [],
    ],
)
def test_unusable_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], data: Any) -> None:
    assert main([write(tmp_path / "rows.json", data)]) == 2
    assert capsys.readouterr().err


def test_counts_are_written_beside_the_rules(tmp_path: Path, outcomes: list[Outcome]) -> None:
    path = tmp_path / "rules.json"
    path.write_text((PROFILES / "rules.json").read_text(encoding="utf-8"))
    update_rules(path, KNOWLEDGE, outcomes)
    shipped = (PROFILES / "rules.json").read_text(encoding="utf-8")
    assert path.read_text(encoding="utf-8") == shipped, f"run scripts/sglang_rows.py --update {ROWS}"
