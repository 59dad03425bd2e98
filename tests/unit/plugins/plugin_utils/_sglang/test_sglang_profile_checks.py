# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test facts about models, rules, catalogues and patches in directories of the user."""

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.models import load_models
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile import Library, resolve
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.schema import load_schema, violations
from sglang_cases import PROFILES

MODEL = {
    "repo": "org/Mine",
    "architecture": "Qwen3MoeForCausalLM",
    "source": "config.json",
    "weights_gb": 30,
    "moe": True,
}
RULE = {
    "id": "mine.pages", "severity": "error", "when": "page_size == 16 and house", "key": "page_size",
    "reason": "we do not use it", "remedy": "Set page_size to 1", "source": "us", "evidence": "reported",
}  # fmt: skip
PATCH = {"name": "mine", "order": 1, "file": "mine.py", "reason": "we need it", "source": "us"}
PROFILE = {
    "name": "mine", "model": {"repo": "org/Mine"}, "sglang_version": "0.5.24", "image": "a/b@sha256:" + "1" * 64,
    "topology": {}, "server_args": {"page_size": 16, "mem_fraction_static": 0.8}, "status": "untested",
    "patches": ["mine"],
}  # fmt: skip


def write(path: Path, data: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data))


def test_everything_in_an_own_directory_is_used(tmp_path: Path) -> None:
    newest = json.loads((PROFILES / "catalogue" / "0.5.23.json").read_text(encoding="utf-8"))
    write(tmp_path / "catalogue" / "0.5.24.json", newest | {"sglang": "0.5.24"})
    write(tmp_path / "models" / "mine.json", MODEL)
    write(tmp_path / "rules.json", {"groups": {"house": ["Qwen3MoeForCausalLM"]}, "rules": [RULE]})
    write(tmp_path / "patches" / "patches.json", {"patches": [PATCH]})
    resolved = resolve(PROFILE, library=Library.load([tmp_path]))
    errors = [finding.rule for finding in resolved.findings if finding.severity == "error"]
    assert errors == ["mine.pages"]
    assert resolved.memory["weights_gib"] == 27.9
    assert resolved.model["arch"] == "Qwen3MoeForCausalLM"
    assert "version.nearest" not in {finding.rule for finding in resolved.findings}
    assert [(patch["path"], patch["needed"]) for patch in resolved.patches] == [(f"{tmp_path}/patches/mine.py", True)]
    assert "mine.pages" not in {finding.rule for finding in resolve(PROFILE).findings}


@pytest.mark.parametrize("path", sorted((PROFILES / "models").glob("*.json")), ids=lambda path: path.stem)
def test_shipped_facts_follow_the_schema(path: Path) -> None:
    facts = json.loads(path.read_text(encoding="utf-8"))
    assert list(violations(facts, load_schema("model"))) == []
    assert facts["evidence"], "shipped facts say with what they were compared"


def test_the_facts_of_the_first_directory_win(tmp_path: Path) -> None:
    write(tmp_path / "one" / "a.json", MODEL | {"repo": "nvidia/GLM-4.7-NVFP4"})
    write(tmp_path / "two" / "a.json", MODEL | {"repo": "nvidia/GLM-4.7-NVFP4", "weights_gb": 9})
    models = load_models(PROFILES / "models", tmp_path / "one", tmp_path / "two")
    assert models["nvidia/glm-4.7-nvfp4"].weights_gb == 30


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"architecture": None}, "architecture: None is not of type 'string'"),
        ({"weigths_gb": 1}, r"unknown key 'weigths_gb' \(did you mean weights_gb\?\)"),
        ({"layers": 0}, "layers: 0 is less than the minimum of 1"),
        ({"repo": "https://huggingface.co/a/b"}, "repo:"),
        ({"moe": "yes"}, "moe: 'yes' is not of type 'boolean'"),
    ],
)
def test_wrong_facts_are_refused_with_their_place(tmp_path: Path, wrong: dict[str, Any], words: str) -> None:
    write(tmp_path / "a.json", MODEL | wrong)
    with pytest.raises(ValueError, match=words):
        load_models(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *((name, []) for name in ("rules.json", "patches/patches.json", "catalogue/0.5.24.json", "models/a.json")),
        ("patches/patches.json", {}),
    ],
)
def test_a_malformed_file_is_named(tmp_path: Path, name: str, content: Any) -> None:
    write(tmp_path / name, content)
    with pytest.raises(ValueError, match=name.rpartition("/")[2]):
        Library.load([tmp_path])


SEEN = {"tokens": 200_000, "by": "somebody, 2026-09-08", "image": "x/y@sha256:" + "1" * 64}


@pytest.mark.parametrize(
    ("promised", "seen", "said"),
    [
        (262_144, SEEN, "not verified beyond 200000 tokens (somebody, 2026-09-08)"),
        (
            262_144,
            SEEN | {"image": "a/b@sha256:" + "2" * 64},
            "answers were verified up to 200000 tokens on another image",
        ),
        (262_144, None, "nobody is known to have verified the answers to long prompts"),
        (None, SEEN | {"image": "a/b"}, "answers were verified up to 200000 tokens on another image, a/b"),
        (200_000, SEEN, ""),
    ],
)
def test_a_plan_notes_the_context_that_nobody_verified(promised: int | None, seen: Any, said: str) -> None:
    args = {"page_size": 16} | ({"context_length": promised} if promised else {})
    model = {"repo": "org/Mine", "arch": "Qwen3MoeForCausalLM", "max_context": 262_144}
    found = resolve(PROFILE | {"model": model, "patches": [], "server_args": args, "verified": seen}).findings
    told = [(one.severity, one.reason) for one in found if one.rule == "profile.context"]
    assert [severity for severity, _reason in told] == ["info"] * bool(said)
    assert not said or told[0][1].startswith(said)
