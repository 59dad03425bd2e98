# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Play ``serve`` in check mode for a group on two of four nodes: the others take no part after the plan.

No host is contacted, and there is no API. Without SSH that is so by itself. Otherwise another play takes the place of
the one that reads the hosts, and no directory of a host is used.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_plays import ansible

ROOT = Path(__file__).resolve().parents[2]
PLANNED = {"ansible.builtin.debug": {"msg": ""}, "register": "fabric_plan_result", "run_once": True}


NOTHING = dict.fromkeys(("gb10_models_dir", "sglang_cache_dir", "sglang_log_dir"), "")
WITHOUT_SSH = {"gb10_ssh": False, "gb10_networks": [{"name": "theirs/rail0"}], "gb10_models_dir": "/srv/models"}


@pytest.mark.parametrize(
    ("limit", "hosts", "own"),
    [
        ("all:!spark4", ["spark1", "spark3"], NOTHING),
        # The objects of a group are also applied where none of its nodes may be changed.
        ("spark2", ["spark2"], WITHOUT_SSH),
    ],
)
def test_only_nodes_of_the_group_and_the_first_host_take_part(
    tmp_path: Path, limit: str, hosts: list[str], own: dict[str, Any]
) -> None:
    book = [
        {"import_playbook": str(ROOT / "playbooks" / "plan.yml")},
        *([{"hosts": "gb10_nodes", "gather_facts": False, "tasks": [PLANNED]}] if own is NOTHING else []),
        {"import_playbook": str(ROOT / "playbooks" / "serve.yml")},
    ]
    (tmp_path / "play.yml").write_text(yaml.safe_dump(book), encoding="utf-8")
    values = {
        "serving_plan_nodes": ["spark3", "spark4"],
        "profile": "qwen3-235b",
        "preset": "current",
        "gb10_kubeconfig": str(tmp_path / "none"),
        **own,
    }
    words = ["-i", "inventory/4x-gb10-switch", "-e", json.dumps(values), "--check", "--limit", limit]
    done = ansible("ansible-playbook", *words, tmp_path / "play.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    task = done.stdout.partition("Read the architecture of every node of the group]")[2].partition("TASK")[0]
    assert sorted(re.findall(r"\[(\w+)\]", task)) == hosts
    assert done.stdout.count("Render the objects of the group]") == 1
    assert ("nobody checks whether the models in /srv/models" in " ".join(done.stdout.split())) is (own is WITHOUT_SSH)
