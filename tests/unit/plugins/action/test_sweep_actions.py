# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the actions of a sweep: plan, record, stop, resume, report, compare."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from action_runs import acted
from ansible_collections.gb10.cluster.plugins.action.sweep_plan import ActionModule
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench import sweep as sweep_plan
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.screen import render_findings
from ansible_plays import ansible
from bench_report import resolver
from stored import compare

ROOT = Path(__file__).resolve().parents[4]
SWEEP = str(ROOT / "tests/lab/fixtures/lab-six.yml")


def play(tmp_path: Path, *tasks: dict[str, Any], cwd: Path = ROOT) -> None:
    """Run tasks on localhost."""
    book = tmp_path / "book.yml"
    book.write_text(yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "tasks": list(tasks)}]))
    done = ansible("ansible-playbook", book, cwd=cwd, env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")})
    assert done.returncode == 0, done.stdout + done.stderr


def plan(tmp_path: Path) -> dict[str, Any]:
    return {"gb10.cluster.sweep_plan": {"sweep": SWEEP, "journal": str(tmp_path / "j.jsonl")}}


def record(tmp_path: Path, kind: str, **more: Any) -> dict[str, Any]:
    extra = {k: more.pop(k) for k in ("stop", "evidence") if k in more}
    options = {"journal": str(tmp_path / "j.jsonl"), "record": {"kind": kind, "run": "one", **more}, **extra}
    return {"gb10.cluster.sweep_record": options}


def measured(rate: float, status: str = "ok", **group: Any) -> dict[str, Any]:
    runs = [{"status": status, "garbage": [], "figures": {"peak_tok_s": rate + i / 10}} for i in range(3)]
    one = {"workload": {"name": "c0-n4"}, "status": status, "runs": runs, "peak_tok_s": {"mean": rate}}
    return {"server": {"server_info": {}}, "measured": {"cells": [one]}, "group": group}


def test_a_sweep_is_planned_recorded_resumed_reported_and_compared(tmp_path: Path) -> None:
    (planned,) = acted(plan(tmp_path))
    assert planned["msg"].startswith("6 cells: 5 to measure, 1 that SGLang refuses, 0 with the command line")
    assert planned["models"] == ["nvidia/MiniMax-M2.5-NVFP4"]
    assert planned["revisions"] == {"nvidia/MiniMax-M2.5-NVFP4": "main"}
    about = {part: planned[part] for part in ("profile", "cells", "workloads")}
    kept = record(tmp_path, "plan", sweep="lab-six", **about)
    first, second, third, *_unused = (cell["id"] for cell in planned["remaining"])
    dead = [{"rank": 0, "pod": "p-0", "restarts": 1, "trouble": ""}]
    line = "RuntimeError: CUDA error: an illegal instruction was encountered"
    broken = measured(0, "infrastructure")
    resolved = {"plan": {"ranks": [{"argv": [], "node": "a", "networks": []}], "image_verdict": {"engine": "e"}}}
    known = resolved | {"failure": {"task": "Verdict", "msg": "nothing was changed. [serving.verdict.known_engine]"}}
    answers = acted(
        kept,
        kept,
        record(tmp_path, "start", cell=first),
        record(tmp_path, "result", cell=first, evidence=measured(100) | resolved),
        record(tmp_path, "start", cell=second),
        record(
            tmp_path,
            "result",
            cell=second,
            evidence=measured(0, "infrastructure", ranks=dead, logs={"p-0": [line]}),
        ),
        record(tmp_path, "start", cell=third),
        record(tmp_path, "result", cell=third, evidence=broken),
        record(tmp_path, "start", cell=third, stop={"infrastructure": 1}),
        plan(tmp_path),
        record(tmp_path, "result", cell=third, evidence=known),
        plan(tmp_path),
    )
    assert [a["changed"] for a in answers[:2]] == [True, False]
    assert answers[2]["msg"].startswith("cell 1 of 5: attention triton; about ")
    assert (answers[2]["engines"], answers[4]["engines"]) == ({}, {"e": first})
    assert "best so far: c0-n4 100.0 tok/s (attention triton)" in answers[4]["msg"]
    assert (answers[5]["record"]["status"], answers[5]["record"]["failure"]["line"]) == ("illegal_instruction", line)
    assert answers[5]["record"]["took_s"] >= 0
    assert answers[7]["record"]["status"] == "infrastructure"
    assert (answers[8]["changed"], answers[8]["stop"].startswith("a cell ended with")) == (False, True)
    left = [cell["id"] for cell in answers[9]["remaining"]]
    assert third in left and first not in left and second not in left
    assert (answers[10]["record"]["status"], answers[10]["record"]["duplicate_of"]) == ("duplicate", first)
    assert [cell["id"] for cell in answers[11]["remaining"]] == [cell for cell in left if cell != third]

    report = {
        "journals": [str(tmp_path / "j.jsonl")],
        "dest": str(tmp_path / "r"),
        "presets_dir": str(tmp_path / "mine"),
    }
    both = {"before": str(tmp_path / "j.jsonl"), "after": str(tmp_path / "j.jsonl")}
    made, again, same = acted(*[{"gb10.cluster.bench_report": report}] * 2, {"gb10.cluster.bench_compare": both})
    assert (made["changed"], again["changed"]) == (True, False)
    assert sorted(Path(f).suffix for f in made["files"]) == [".html", ".json", ".md", ".yml"]
    (data,) = json.loads((tmp_path / "r.json").read_text())["reports"]
    assert data["rows"][0]["measurements"][0]["runs"][0]["figures"]["peak_tok_s"] == 100
    (command,) = (line for line in data["reproduce"] if line.startswith("ansible-playbook "))
    assert command.startswith("ansible-playbook gb10.cluster.sweep -e sweep=lab-six")
    for ending in ("md", "html"):
        assert command in (tmp_path / f"r.{ending}").read_text()
    mine = yaml.safe_load((tmp_path / "mine/minimax-m2.5.yml").read_text())
    assert mine["presets"]["tuned-n4"]["based_on"] == "two-nodes"
    assert [row["verdict"] for row in same["rows"]] == ["same"]


def sweep_file(tmp_path: Path, **keys: Any) -> dict[str, Any]:
    path = tmp_path / "mine.yml"
    path.write_text(yaml.safe_dump({"profile": "qwen3.5-397b", "workloads": [{"concurrency": 1}], **keys}))
    return {"gb10.cluster.sweep_plan": {"sweep": str(path), "journal": str(tmp_path / "j.jsonl")}}


def test_cells_with_different_environments_or_images_are_not_merged(tmp_path: Path) -> None:
    images = [f"a/b@sha256:{number:064}" for number in (1, 2)]
    axes = {"env": [{"NCCL_DEBUG": "INFO"}, {"NCCL_DEBUG": "WARN"}], "image": images}
    base = {"preset": "winner", "sglang_version": "0.5.10"}
    (answer,) = acted(sweep_file(tmp_path, base=base, axes=axes))
    assert [cell["status"] for cell in answer["cells"]] == ["run"] * 4


def test_other_workloads_are_measured_anew(tmp_path: Path) -> None:
    axes, base = {"page_size": [1, 16]}, {"preset": "winner", "sglang_version": "0.5.10"}
    (planned,) = acted(sweep_file(tmp_path, base=base, axes=axes))
    first = planned["remaining"][0]["id"]
    about = {part: planned[part] for part in ("cells", "workloads")}
    ended = record(tmp_path, "result", cell=first, evidence=measured(100))
    acted(record(tmp_path, "plan", **about), ended)
    again, longer = (
        acted(sweep_file(tmp_path, base=base, axes=axes, workloads=[{"concurrency": 1, **more}]))[0]
        for more in ({}, {"max_tokens": 64})
    )
    assert [len(answer["remaining"]) for answer in (again, longer)] == [1, 2]
    (anew,) = acted(record(tmp_path, "plan", cells=longer["cells"], workloads=longer["workloads"]))
    assert anew["changed"]


def test_a_cell_that_cannot_be_planned_is_recorded_with_its_task_and_the_sweep_goes_on(tmp_path: Path) -> None:
    file = sweep_file(tmp_path, base={"preset": "winner", "sglang_version": "0.5.10"}, axes={"page_size": [1, 16]})
    own = {"bench_sweep": file["gb10.cluster.sweep_plan"]["sweep"], "bench_results_dir": str(tmp_path / "results")}
    own |= {"bench_kubeconfig": str(tmp_path / "none"), "serving_plan_kubeconfig": str(tmp_path / "none")}
    play(tmp_path, {"include_role": {"name": "gb10.cluster.bench", "tasks_from": "sweep"}, "vars": own})
    records = [json.loads(line) for line in (tmp_path / "results/mine.jsonl").read_text().splitlines()]
    assert [r["kind"] for r in records] == ["plan", *["start", "result"] * 2]
    for ended in records[2::2]:
        assert (ended["status"], ended["stage"], ended["task"]) == ("failed", "serve", "Plan the group")
        assert "can't be planned" in ended["reason"]
    assert (tmp_path / "results/mine.html").is_file()


def test_results_go_below_the_current_directory_not_the_playbooks(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    options = {"journal": "results/j.jsonl", "record": {"kind": "plan", "server": "one", "workloads": []}}
    report = {"journals": ["results/j.jsonl"], "dest": "results/j"}
    play(tmp_path, {"gb10.cluster.sweep_record": options}, {"gb10.cluster.bench_report": report}, cwd=here)
    assert {path.name for path in (here / "results").iterdir()} == {"j.jsonl", "j.html", "j.md", "j.json"}


def test_the_journals_beside_one_that_is_missing_are_named(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "notes.txt"):
        (tmp_path / name).touch()
    task = {"gb10.cluster.bench_compare": {"before": str(tmp_path / "c.jsonl"), "after": str(tmp_path / "a.jsonl")}}
    assert "this directory has a.jsonl, b.jsonl." in acted(task)[0]["msg"]


def test_check_mode_plans_and_writes_nothing(tmp_path: Path) -> None:
    task = record(tmp_path, "start", cell="a") | {"check_mode": True}
    assert acted(task)[0]["changed"]
    assert not (tmp_path / "j.jsonl").exists()


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"gb10.cluster.sweep_plan": {"sweep": "nosuch", "journal": "j"}}, "with a path, or one of: gemma-4-26b-b300"),
        ({"gb10.cluster.sweep_plan": {"sweep": "", "journal": "j"}}, "no sweep is named"),
        ({"gb10.cluster.bench_compare": {"before": "/nowhere", "after": "/nowhere"}}, "this journal does not exist"),
        (
            {"gb10.cluster.bench_report": {"journals": ["tests/unit/nothere.jsonl"], "dest": "nothere"}},
            "nothere.jsonl: this journal does not exist. Name one that a sweep wrote; this directory has no journal.",
        ),
    ],
)
def test_a_missing_sweep_or_journal_is_named(task: dict[str, Any], said: str) -> None:
    (answer,) = acted(task)
    assert answer["failed"] and said in answer["msg"]


WRONG: dict[str, dict[str, Any]] = {
    "unknown presets": {"include": [{"labels": {"a": name}, "preset": name} for name in ("winer", "mpt")]},
    "an unknown flag": {"base": {"preset": "winner"}, "axes": {"attention_backand": ["triton"], "ep": [3, 5]}},
    "sizes that do not divide": {"base": {"preset": "winner"}, "axes": {"ep": [3, 5]}},
    "an unknown key": {"base": {"server_arg": {"page_size": 1}}},
    "an unknown size": {"axes": {"topology": [{"name": "two", "topology": {"tq": 2}}]}},
    "a number as a variable": {"base": {"env": {"OMP_NUM_THREADS": 8}}},
    "an unknown key of a cell": {"include": [{"labels": {}, "serverargs": {}}]},
}


def test_sweeps_that_cannot_run_are_refused_as_stored(tmp_path: Path) -> None:
    found = {}
    for name, keys in WRONG.items():
        task = sweep_file(tmp_path, **keys)["gb10.cluster.sweep_plan"]
        made = ActionModule.__new__(ActionModule).act(
            {"sweep_dirs": [], "profile_dirs": [], "sglang_version": "", **task}, {}
        )
        assert made["failed"] and made["findings"] and "nothing was measured" in made["msg"]
        shown = render_findings([Finding(**one) for one in made["findings"]], 120)
        found[name] = shown.replace(str(tmp_path), "").splitlines()
    compare("sweeps_refused", found)


def test_a_damaged_journal_is_neither_read_nor_written(tmp_path: Path) -> None:
    (tmp_path / "j.jsonl").write_text('{"kind": "plan"}\n')
    for task in (plan(tmp_path), record(tmp_path, "start", cell="a")):
        (answer,) = acted(task)
        assert "j.jsonl:1: not a record" in answer["msg"]
    assert (tmp_path / "j.jsonl").read_text() == '{"kind": "plan"}\n'


@pytest.mark.parametrize("path", sorted((ROOT / "plugins" / "sweeps").glob("*.yml")), ids=lambda p: p.stem)
def test_every_shipped_sweep_is_planned_can_have_a_certain_winner_and_comes_to_an_end(path: Path) -> None:
    sweep = yaml.safe_load(path.read_text())
    profile = yaml.safe_load((ROOT / f"plugins/profiles/{sweep['profile']}.yml").read_text())
    made = sweep_plan.plan(sweep, resolver(profile))
    assert not sweep_plan.check(sweep)
    assert {s: made.count(s) for s in ("run", "invalid", "duplicate")} == EXPECTED[path.stem]
    assert all(workload["repetitions"] >= 3 for workload in sweep["workloads"])
    planned = sweep["cell_minutes"] * EXPECTED[path.stem]["run"] / 60
    assert planned < sweep["stop"]["hours"] and set(sweep["stop"]) == {"hours", "infrastructure", "failures"}


EXPECTED = {
    "gemma-4-26b-b300": {"run": 2, "invalid": 0, "duplicate": 0},
    "gemma-4-26b-b300-long": {"run": 2, "invalid": 0, "duplicate": 0},
    "gemma-4-31b-steps": {"run": 6, "invalid": 0, "duplicate": 0},
    "glm-4.7": {"run": 26, "invalid": 12, "duplicate": 0},
    "nemotron-3-super-mtp": {"run": 8, "invalid": 0, "duplicate": 0},
    "qwen3.5-397b-ep1": {"run": 38, "invalid": 0, "duplicate": 0},
    "qwen3.5-397b-ep4": {"run": 16, "invalid": 20, "duplicate": 0},
}
