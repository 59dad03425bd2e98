# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what a new release of SGLang says about presets and launches, with two releases' answers as data."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "scripts"))

import sglang_catalogue
import sglang_newer
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.catalogue import load_history
from sglang_rows import load_rows

ROOT = Path(__file__).resolve().parents[3]
BEFORE, NEWEST = (str(each.version) for each in load_history(ROOT / "plugins/profiles/catalogue").catalogues[-2:])


def answer(verdict: str = "accepted", message: str = "", **changes: Any) -> dict[str, Any]:
    return {"verdict": verdict, "message": message, "changes": {key: ["", new] for key, new in changes.items()}}


def test_differences_are_told_once_with_those_that_have_them() -> None:
    before = {f"p{number}": answer(page_size=64) for number in range(7)}
    after = {name: answer("refused", "no\n  kernel") for name in before}
    same = {"same": answer(page_size=64)}
    assert sglang_newer.differences(before | same, after | same) == [
        "- accepted → refused no kernel: p0, p1, p2, p3, p4 and 2 others"
    ]
    assert sglang_newer.differences({"a": answer(page_size=64)}, {"a": answer()}) == [
        "- `page_size` becomes 64 → as given: a"
    ]
    graphs = [answer(graphs={"decode": {"max_bs": most, "backend": "full"}}) for most in (8, 16)]
    assert sglang_newer.differences({"a": graphs[0]}, {"a": graphs[1]}) == [
        "- `graphs.decode.max_bs` becomes 8 → 16: a"
    ]
    choices = [
        answer("refused", f"--runner: invalid choice: 'b12x' (choose from {some})") for some in ("auto", "auto, new")
    ]
    assert sglang_newer.differences({"a": choices[0]}, {"a": choices[1]}) == []


def test_each_preset_and_launch_is_asked_with_its_architecture_and_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("gemma-4-31b-it", "gemma-4-26b-a4b-it-b300")
    launches = {row.get("gpu"): row for row in load_rows(sglang_newer.LAUNCHES)}.values()
    monkeypatch.setattr(sglang_newer, "find_profiles", lambda: names)
    monkeypatch.setattr(sglang_newer, "load_rows", lambda _path: launches)
    questions = list(sglang_newer.questions(NEWEST))
    nodes = {name: node for name, node, _question in questions}
    asked = {name: question for name, _node, question in questions}
    assert len(asked) > len(launches) > 3
    assert nodes["gemma-4-31b-it mtp-2"] == ("gb10", 1)
    assert {node for name, node in nodes.items() if "b300" in name} == {("b300", 1)}
    assert {"b200", "h100", "h200"} <= {gpu for gpu, _count in nodes.values()}
    assert all(question["arch"] and {"--model-path", "--model"} & set(question["argv"]) for question in asked.values())
    assert asked["gemma-4-31b-it mtp-2"]["draft_arch"] == "Gemma4AssistantForCausalLM"


@pytest.mark.parametrize(
    ("said", "code", "expected"),
    [
        ("sglang (0.5.24)\nAvailable versions: 0.5.24, 0.5.23", 0, "0.5.24"),
        ("", 1, "can't be asked for sglang: no such host"),
        ("sglang (unknown)", 0, "can't be asked"),
    ],
)
def test_the_index_names_the_newest(monkeypatch: pytest.MonkeyPatch, said: str, code: int, expected: str) -> None:
    done = subprocess.CompletedProcess([], code, said, "no such host\n")
    monkeypatch.setattr(subprocess, "run", lambda *_words, **_options: done)
    try:
        assert sglang_newer.newest() == expected
    except sglang_catalogue.ReleaseError as problem:
        assert expected in str(problem)


def test_a_new_release_gets_a_catalogue_and_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = ROOT / "plugins/profiles/catalogue"
    shutil.copy(shipped / f"{BEFORE}.json", tmp_path)
    monkeypatch.setattr(sglang_catalogue, "CATALOGUE", tmp_path)
    monkeypatch.setattr(sglang_newer, "newest", lambda: NEWEST)
    monkeypatch.setattr(sglang_catalogue, "catalogue", lambda release: (shipped / f"{release}.json").read_text())
    monkeypatch.setattr(
        sglang_newer, "answers", lambda release: {"a": answer(page_size=release), "b": answer("unknown", "why")}
    )
    assert sglang_newer.main([]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"SGLang {NEWEST}, compared with {BEFORE}\n")
    assert "rules were not checked for it" in said
    assert f"`page_size` becomes '{BEFORE}' → '{NEWEST}': a" in said
    assert "2 presets and launches: 1 accepted, 1 unknown\n  - 1 unknown: why\n" in said
    assert (tmp_path / f"{NEWEST}.json").exists()


def test_a_known_release_and_an_old_one_change_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sglang_newer, "newest", lambda: NEWEST)
    assert sglang_newer.main([]) == 0 and "it has a catalogue" in capsys.readouterr().out
    assert sglang_newer.main(["0.0.1"]) == 2 and "0.0.1 is not newer" in capsys.readouterr().err
