# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the serving plan that a playbook gets."""

import json
import sys
from pathlib import Path

import yaml
from ansible_collections.gb10.cluster.plugins.action.serving_plan import _deep
from ansible_plays import ansible

ROOT = Path(__file__).resolve().parents[4]
DEFAULTS = ROOT / "roles" / "serving_plan" / "defaults" / "main.yml"


def test_the_plan_shows_the_memory_of_a_gpu(tmp_path: Path) -> None:
    wanted = {
        "serving_plan_profile": "gemma-4-26b-a4b-it-b300",
        "serving_plan_platform": "b300",
        "serving_plan_preset": "mtp",
    }
    options = {"fabric": {}, "candidates": ["b300"]}
    kept = {"content": "{{ planned.plan | to_json }}", "dest": str(tmp_path / "plan.json")}
    tasks = [
        {"name": "Plan", "gb10.cluster.serving_plan": options, "register": "planned"},
        {"name": "Keep", "ansible.builtin.copy": kept},
    ]
    book = tmp_path / "book.yml"
    play = {"hosts": "localhost", "gather_facts": False, "vars_files": [str(DEFAULTS)], "tasks": tasks}
    book.write_text(yaml.safe_dump([play]))
    done = ansible("ansible-playbook", book, "-e", json.dumps(wanted))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = json.loads((tmp_path / "plan.json").read_text())["memory"]
    assert lines[0] == "weights and caches may take 268.6 GiB x 0.85 = 228.3 GiB"
    assert lines[-1].startswith("left free: 268.6 - 228.3 - 0.9 of the draft = 39.4 GiB for CUDA graphs")


def test_the_resolver_is_asked_where_its_environment_exists(tmp_path: Path) -> None:
    gpu = {"name": "NVIDIA B300", "count": 4}
    plan = {
        "gpu": gpu,
        "sglang_version": "0.5.23",
        "ranks": [{"argv": ["python3", "-m", "sglang.launch_server", "--a"]}],
    }
    assert _deep(plan, tmp_path) == []
    (tmp_path / ".cache" / "sglang" / "torch-1").mkdir(parents=True)
    program, script, *words = _deep(plan, tmp_path)
    assert (program, script) == (sys.executable, str(tmp_path / "scripts" / "sglang_check.py"))
    given = "--deep --sglang 0.5.23 --gpu b300 --gpus-per-node 4 -- python3 -m sglang.launch_server --a"
    assert words == given.split()
    assert _deep({**plan, "gpu": {}}, tmp_path) == []
