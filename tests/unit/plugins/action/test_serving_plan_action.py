# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the serving plan that a playbook gets: fallback, memory, revisions, waived rules, and what resolves it."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.action.serving_plan import ActionModule, _deep
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.model import Plan
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.pods import launch_key
from ansible_plays import ansible
from preflight_samples import GOOD
from role_samples import role_values
from serving_samples import fabric

NODES = ["spark1", "spark2", "spark3", "spark4"]


def planned(hostvars: Mapping[str, Any] | None = None, nodes: Sequence[str] = NODES, **options: Any) -> dict[str, Any]:
    """Return the result of the action for options of the role."""
    wanted = {"profile": "gemma-4-31b-it", "preset": "current", "fallback_preset": "two-nodes", "models_dir": "/srv"}
    values = role_values("serving_plan", **wanted | options)
    return ActionModule.act(
        None, values | {"fabric": fabric(), "candidates": list(nodes), "taken": []}, {"hostvars": hostvars or {}}
    )


def test_the_memory_is_that_of_the_smallest_host_that_preflight_read() -> None:
    def host(kib: int, held: int = 0) -> dict[str, Any]:
        holders = [{"kind": "docker", "name": "ollama", "kib": held}] if held else []
        return {"ansible_facts": {"gb10_preflight": {**GOOD, "memory_kib": kib, "memory_holders": holders}}}

    full = 119 << 20
    hosts = {"spark1": host(full), "spark2": host(full, held=20 << 20), "spark3": {}}
    assert planned(hosts)["plan"]["memory"][0].startswith("available before the load: 83 to 89 GiB (read from")
    assert planned({"spark1": {}})["plan"]["memory"][0].startswith("available before the load: 103 to 109 GiB (public")


def test_what_loads_took_comes_from_the_hosts_that_preflight_read() -> None:
    key = launch_key(Plan.from_dict(planned()["plan"]))
    told = {"key": key, "state": "ready", "phase": "graphs", "at": "2026-11-29T08:00:00Z"}
    loads = [{**told, "total_gib": 119.7, "before_gib": 9.8, "taken_gib": 101.5}, {"key": key}, "text"]
    held = [{"kind": "docker", "name": "ollama", "kib": 30 << 20}]
    read = {**GOOD, "loads": loads, "memory_holders": held}
    result = planned({"spark2": {"ansible_facts": {"gb10_preflight": read}}, "spark3": {}})
    assert "load: as counted on spark2 (2026-11-29T08:00:00Z, 1 of 4 nodes known), up to 101.5" in result["msg"]
    assert [one["value"] for one in result["findings"] if one["rule"] == "serving.load.held"] == ["30.0"]


@pytest.mark.parametrize(
    ("newer", "shown"),
    [
        ([{"at": "2026-11-30T02:00:00Z", "taken_gib": 90.5}], "90.5"),
        ([{"at": "2026-11-28T02:00:00Z"}], "101.5"),
        ([], "101.5"),
        ("x", "101.5"),
    ],
)
def test_the_newest_load_counts_whoever_read_it(newer: Any, shown: str) -> None:
    key = launch_key(Plan.from_dict(planned()["plan"]))
    told = {"key": key, "state": "ready", "phase": "graphs", "at": "2026-11-29T08:00:00Z"}
    told |= {"total_gib": 119.7, "before_gib": 9.8, "taken_gib": 101.5}
    facts = {"gb10_preflight": {**GOOD, "loads": [told]}}
    facts["gb10_loads"] = [told | one for one in newer] if isinstance(newer, list) else newer
    assert f"up to {shown} of 119.7" in planned({"spark2": {"ansible_facts": facts}, "spark3": {}})["msg"]
    del facts["gb10_preflight"]
    assert ("as counted on spark2" in planned({"spark2": {"ansible_facts": facts}})["msg"]) is bool(
        newer and newer != "x"
    )


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
