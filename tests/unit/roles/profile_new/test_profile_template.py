# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a new profile is valid, also with all its commented settings."""

import json
import os
import re
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.action.profile_draft import ActionModule
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile import resolve
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile_files import read_profile
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.schema import load_schema
from ansible_plays import ansible
from sglang_cases import ROOT

PLAYBOOK = ROOT / "playbooks" / "profile_new.yml"
_OFFERED = re.compile(r"^( *)# ([a-z_-]+: )", re.MULTILINE)
OPTIONS = {"name": "mine", "command": "", "recipe": "", "config": "", "repo": "org/Mine", "nodes": 4}
OPTIONS |= {"sglang_version": "", "image": "", "profile_dirs": []}


def written(tmp_path: Any, offered: bool) -> dict[str, Any]:
    """Write a new profile as the role does, with or without its commented settings, and load it."""
    text = ActionModule.act(None, OPTIONS, {})["profile"]
    path = tmp_path / "mine.yml"
    path.write_text(_OFFERED.sub(r"\1\2", text) if offered else text, encoding="utf-8")
    return read_profile(path)


@pytest.mark.parametrize("offered", [False, True])
def test_a_new_profile_can_be_served(tmp_path: Any, offered: bool) -> None:
    profile = written(tmp_path, offered)
    for preset in profile["presets"]:
        errors = [str(f) for f in resolve(profile, preset).findings if f.severity == "error"]
        assert not errors


def test_a_new_profile_offers_every_key_of_the_schema(tmp_path: Any) -> None:
    profile = written(tmp_path, offered=True)
    schema = load_schema("profile")
    presets = set().union(*profile["presets"].values())
    # `image` is not offered, because `images` is better
    assert set(schema["properties"]) - {"image"} <= set(profile) | presets
    model = schema["properties"]["model"]["properties"]
    assert {"revision", "arch", "quantization", "weights_gb"} <= set(profile["model"]) <= set(model)


def test_the_playbook_refuses_the_reserved_name(tmp_path: Any) -> None:
    words = ["-i", "localhost,", str(PLAYBOOK), "-e", f"profile_new_dir={tmp_path}", "-e", "repo=org/Mine"]
    done = ansible("ansible-playbook", *words, "-e", "name=mine")
    assert (done.returncode, list(tmp_path.iterdir())) == (2, []), done.stdout + done.stderr
    assert "-e profile_name=NAME" in " ".join(done.stdout.split())


def test_a_profile_that_exists_is_kept_and_the_run_says_so(tmp_path: Any) -> None:
    (tmp_path / "mine.yml").write_text("mine\n")
    given = {"profile_name": "mine", "repo": "org/Mine", "profile_new_dir": str(tmp_path)}
    done = ansible("ansible-playbook", "-i", "localhost,", str(PLAYBOOK), "-e", json.dumps(given))
    assert (tmp_path / "mine.yml").read_text() == "mine\n"
    assert "existed and was not changed" in " ".join(done.stdout.split()), done.stdout + done.stderr


@pytest.mark.parametrize("where", [{"gb10_profile_dirs": ["own"]}, {"profile_new_dir": "own"}])
def test_the_playbook_writes_a_profile_and_facts_from_a_configuration(tmp_path: Any, where: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 48}')
    # A relative directory is below the directory in which the user runs the playbook.
    given = {"profile_name": "mine", "repo": "org/Mine", "config": str(tmp_path), **where}
    words = ["-i", "localhost,", str(PLAYBOOK), "-e", json.dumps(given)]
    env = os.environ | {"PWD": str(tmp_path)}
    done = ansible("ansible-playbook", *words, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_profile(tmp_path / "own/mine.yml")["model"] == {"repo": "org/Mine", "arch": "Qwen3MoeForCausalLM"}
    assert json.loads((tmp_path / "own/models/mine.json").read_text())["layers"] == 48
    said = " ".join(done.stdout.replace("\\\n", " ").split())
    assert "ansible-playbook -i localhost, gb10.cluster.serve" in said
    assert f"--reasons --sglang {read_profile(tmp_path / 'own/mine.yml')['sglang_version']} mine" in said
    (script,) = set(re.findall(r"python3 (\S+)", done.stdout))
    assert (tmp_path / script).resolve() == ROOT / "scripts/sglang_profiles.py"
