# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the serving plan that a playbook gets: fallback, memory, revisions, waived rules, and what resolves it."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gb10.cluster.plugins.action.serving_plan import ActionModule, _deep
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.model import Plan
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.pods import launch_key
from ansible_plays import ansible
from preflight_samples import GOOD
from role_samples import role_values
from serving_samples import fabric
from stored import compare

NODES = ["spark1", "spark2", "spark3", "spark4"]


def planned(hostvars: Mapping[str, Any] | None = None, nodes: Sequence[str] = NODES, **options: Any) -> dict[str, Any]:
    """Return the result of the action for options of the role."""
    wanted = {"profile": "gemma-4-31b-it", "preset": "current", "fallback_preset": "two-nodes", "models_dir": "/srv"}
    values = role_values("serving_plan", **wanted | options)
    return ActionModule.act(
        None, values | {"fabric": fabric(), "candidates": list(nodes), "taken": []}, {"hostvars": hostvars or {}}
    )


def read(loads: Any = (), **facts: Any) -> dict[str, Any]:
    """Return the variables of a host that preflight has read."""
    return {"ansible_facts": {"gb10_preflight": {**GOOD, "memory_kib": 119 << 20, "loads": list(loads), **facts}}}


def holding(gib: int) -> dict[str, Any]:
    return {"memory_holders": [{"kind": "docker", "name": "ollama", "kib": gib << 20}]}


def test_memory_and_loads_that_hosts_tell_are_planned_as_stored() -> None:
    key = launch_key(Plan.from_dict(planned()["plan"]))
    told = {"key": key, "state": "ready", "phase": "graphs", "at": "2026-11-29T08:00:00Z"}
    told |= {"total_gib": 119.7, "before_gib": 9.8, "taken_gib": 101.5}
    newer, older = told | {"at": "2026-11-30T02:00:00Z", "taken_gib": 90.5}, told | {"at": "2026-11-28T02:00:00Z"}
    cases: dict[str, dict[str, Any]] = {
        "nothing read": {"spark1": {}},
        "memory of two hosts": {"spark1": read(), "spark2": read(**holding(20)), "spark3": {}},
        "a load and nonsense": {"spark2": read([told, {"key": key}, "text"]), "spark3": {}},
        "a load beside others": {"spark2": read([told], **holding(30))},
    }
    for name, loads in (("newer", [newer]), ("older", [older]), ("no", []), ("nonsense as", "x")):
        both = read([told])
        both["ansible_facts"]["gb10_loads"] = loads
        cases |= {f"{name} load of playbook serve": {"spark2": both}}
        cases |= {f"{name} load of playbook serve alone": {"spark2": {"ansible_facts": {"gb10_loads": loads}}}}
    found = {}
    for name, hosts in cases.items():
        result = planned(hosts)
        loaded = [line for line in result["msg"].splitlines() if line.startswith("load: ")]
        held = [
            f"{one['rule']} = {one['value']}" for one in result["findings"] if one["rule"].startswith("serving.load")
        ]
        found[name] = [result["plan"]["memory"][0], *loaded, *held]
    compare("planned_memory", found)


def test_a_plan_with_mistakes_is_no_fact() -> None:
    """The stored plans have the findings."""
    result = planned(fallback_preset="no-such", port=80)
    assert result["failed"]
    assert {"serving.profile", "serving.port.range"} <= {finding["rule"] for finding in result["findings"]}
    assert "ansible_facts" not in result


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
