# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the findings of the plans come together, without those that only follow from another mistake."""

from pathlib import Path
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.data import ROLES
from ansible_collections.gb10.cluster.plugins.plugin_utils._inventory.variables import load_known
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.options import (
    fabric_findings,
    resolve_options,
    serving_findings,
    variable_of,
    wrong_variables,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang import profile_files, schema
from fabric_samples import fabric
from role_samples import role_values

DEFAULTS = DataLoader().load_from_file(str(ROLES / "serving_plan" / "defaults" / "main.yml"))
NODES = ["spark1", "spark2", "spark3", "spark4"]


def rules(findings: list[Finding]) -> list[str]:
    return sorted(finding.rule for finding in findings if finding.severity == "error")


def error(key: str, severity: Any = "error") -> Finding:
    return Finding(severity, "variables.unknown", key, None, "reason", "remedy")


def test_a_misspelt_name_makes_the_variable_wrong_that_it_means() -> None:
    keys = ("gb10_fabirc_mtu", "gb10_other", "transport", "-e prfile")
    found = wrong_variables(load_known(), [*map(error, keys), error("gb10_node_id", "warning")])
    assert {"gb10_fabric_mtu", "gb10_other", "serving_plan_transport", "serving_plan_profile"} <= found
    assert "gb10_node_id" not in found


@pytest.mark.parametrize(("key", "name"), [("a[0].network", "a"), ("a.rail0", "a"), ("-e a", "a"), ("a", "a")])
def test_the_variable_in_a_key(key: str, name: str) -> None:
    assert variable_of(key) == name


def test_the_fabric_is_planned_if_nothing_is_wrong() -> None:
    plan, findings = fabric_findings(fabric(), set())
    assert plan is not None and list(plan["hosts"]) == NODES
    assert rules(findings) == []


def test_what_follows_from_a_wrong_variable_is_not_reported() -> None:
    variables = fabric(gb10_fabric_rails=None, gb10_fabric_mtu=900)
    plan, findings = fabric_findings(variables, {"gb10_fabric_rails"})
    assert (plan, rules(findings)) == (None, ["fabric.mtu.low"])


def test_every_other_mistake_in_the_fabric_is_reported() -> None:
    variables = fabric(gb10_fabric_mtu="nine")
    variables["spark2"]["gb10_node_id"] = 1
    plan, findings = fabric_findings(variables, {"gb10_fabric_mtu"})
    assert (plan is None, set(rules(findings))) == (True, {"fabric.node_id.duplicate"})


@pytest.mark.parametrize("wrong", [set(), {"gb10_fabric_mtu"}, {"gb10_fabric_topology"}, {"gb10_node_id"}])
def test_node_ids_are_judged_whatever_else_is_wrong(wrong: set[str]) -> None:
    """A misspelt variable, an id out of range, the same id twice and an id whose name is misspelt are one run."""
    variables = fabric()
    variables["spark2"]["gb10_node_id"] = 1
    variables["spark3"]["gb10_node_id"] = 254
    for values in variables.values():
        values["gb10_fabric_subnet_prefix"] = 26
    del variables["spark4"]["gb10_node_id"]
    findings = [f for f in fabric_findings(variables, wrong)[1] if f.rule.startswith("fabric.node_id")]
    missing = [] if "gb10_node_id" in wrong else ["fabric.node_id.missing"]
    assert rules(findings) == ["fabric.node_id.duplicate", *missing, "fabric.node_id.range"]
    assert "rail0, rail1" in next(f.reason for f in findings if f.rule == "fabric.node_id.range")


def serving(wrong: set[str], plan: dict[str, Any] | None, **options: Any) -> list[str]:
    given = {**role_values("serving_plan", **options), "candidates": NODES, "taken": []}
    return rules(serving_findings(given, plan, wrong, DEFAULTS))


def test_the_group_is_checked_without_a_fabric() -> None:
    asked = {"models_dir": "/srv/models", "nodes": ["spark1"], "port": 80}
    assert serving(set(), None, **asked) == ["serving.nodes.count", "serving.port.range"]
    assert serving(set(), None, models_dir="/srv/models") == []


def test_the_group_is_checked_with_the_fabric() -> None:
    plan, _findings = fabric_findings(fabric(), set())
    assert serving(set(), plan, models_dir="/srv/models") == []
    assert serving(set(), plan, models_dir="/srv/models", vf_index=7) != []


def test_nodes_that_no_group_uses_are_named() -> None:
    asked = {"models_dir": "/srv/models", "profile": "qwen3.8-flash-next", "preset": "throughput"}
    given = {**role_values("serving_plan", **asked), "candidates": NODES, "taken": []}
    (idle,) = [f for f in serving_findings(given, None, set(), DEFAULTS) if f.rule == "serving.nodes.idle"]
    assert (idle.value, idle.severity) == (NODES[2:], "warning")
    taken = [{"instance": "other", "node": node, "vf_index": 1} for node in NODES[2:]]
    assert "serving.nodes.idle" not in rules(serving_findings({**given, "taken": taken}, None, set(), DEFAULTS))


@pytest.mark.parametrize("wrong", ["gb10_models_dir", "serving_plan_port", "gb10_namespace"])
def test_a_wrong_variable_of_the_group_leaves_the_profile_to_be_checked(wrong: str) -> None:
    assert serving({wrong}, None, nodes=["spark1"], preset="nothere") == ["serving.profile"]


@pytest.mark.parametrize("wrong", ["serving_plan_profile", "gb10_sglang_version", "gb10_profile_dirs"])
def test_a_profile_is_not_checked_if_it_is_not_known(wrong: str) -> None:
    assert serving({wrong}, None, preset="nothere") == []


@pytest.mark.parametrize(
    ("module", "name", "value", "remedy"),
    [
        (schema, "jsonschema", None, "-m pip install jsonschema"),
        (profile_files, "PROFILES", Path("/none"), "ansible-galaxy collection install gb10.cluster --force"),
    ],
)
def test_a_broken_installation_is_not_a_mistake_in_the_profile(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, value: Any, remedy: str
) -> None:
    monkeypatch.setattr(module, name, value)
    (finding,) = resolve_options(role_values("serving_plan"))[1]
    assert (finding.rule, finding.key) == ("serving.installation", "gb10.cluster")
    assert remedy in finding.remedy
