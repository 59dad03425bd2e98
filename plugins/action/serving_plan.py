# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan a serving group on the controller, because profiles, catalogues and rules are files there."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, has_errors
from ansible_collections.gb10.cluster.plugins.module_utils._common.plain import load
from ansible_collections.gb10.cluster.plugins.module_utils._node.model import Facts, Taken
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction, plan_result
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.command import again
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.data import COLLECTION
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.screen import counted
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.parse import plain
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.host import shape_facts
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.options import plan_serving


class ActionModule(ControllerAction):
    """Combines a fabric plan and a profile; the plan becomes a fact of every host of the play."""

    ROLE = "serving_plan"

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return plan and findings; if a finding is an error, fail without setting the fact."""
        known, nodes = task_vars.get("hostvars", {}), options["nodes"] or options["candidates"]
        hosts = [_read(known[name]) if name in known else None for name in nodes]
        found = {name: facts for name, facts in zip(nodes, hosts, strict=True) if facts}
        given = {
            **options,
            "readings": [_memory(facts) for facts in hosts],
            "loads": {name: _loads(known[name]) for name in nodes if name in known},
            "held": {name: _held(facts) for name, facts in found.items()},
        }
        fact, findings, done = plan_serving(given, full=Display().verbosity > 0)
        failed = has_errors(findings) or not fact["ranks"]
        result = plan_result("The group", failed, findings, {"gb10_serving_plan": fact}, "\n".join(done))
        if failed:
            return result
        of_fabric = [load(Finding, finding) for finding in options["fabric"].get("findings") or ()]
        checked = task_vars.get("gb10_inventory_check", {}).get("findings") or ()
        both = {str(f): f for f in [*(load(Finding, finding) for finding in checked), *of_fabric, *findings]}
        verdict = f"{counted(both.values(), zero=True)}. Next: {again('preflight')}"
        return result | {"plan": fact, "verdict": verdict, "deep": _deep(fact)}


def _deep(plan: Mapping[str, Any], collection: Path = COLLECTION) -> list[str]:
    """Return the command that asks the release's own resolver about the head, or nothing without its environment."""
    if not plan["gpu"] or not any((collection / ".cache" / "sglang").glob("torch-*")):
        return []
    gpu, words = plan["gpu"], plan["ranks"][0]["argv"]
    name = gpu["name"].rpartition(" ")[2].lower()
    command = [sys.executable, str(collection / "scripts" / "sglang_check.py"), "--deep"]
    command += ["--sglang", plan["sglang_version"], "--gpu", name, "--gpus-per-node", str(gpu["count"])]
    return [*command, "--", *words]


def _read(host: Mapping[str, Any]) -> Facts | None:
    """Return the facts of a host that preflight has read."""
    read = host.get("ansible_facts") or {}
    return shape_facts(plain(read["gb10_preflight"]))[0] if "gb10_preflight" in read else None


def _loads(host: Mapping[str, Any]) -> list[Taken]:
    """Return what loads took on a host, the oldest first, as preflight and playbook serve have read it."""
    read = host.get("ansible_facts") or {}
    given = [read.get("gb10_preflight"), {"loads": read.get("gb10_loads")}]
    found = [taken for each in given for taken in shape_facts(plain(each))[0]["loads"]]
    return sorted(found, key=lambda taken: taken["at"])


def _memory(facts: Facts | None) -> float | None:
    """Return the GiB of a host, without what programs outside Kubernetes hold there."""
    return facts["memory_kib"] / 2**20 - _held(facts) if facts and facts["memory_kib"] else None


def _held(facts: Facts) -> float:
    """Return the GiB that programs outside Kubernetes hold on a host."""
    return sum(holder["kib"] for holder in facts["memory_holders"]) / 2**20
