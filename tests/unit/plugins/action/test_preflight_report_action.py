# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the report on hosts that were read, not read, read without privileges, or have their own settings."""

import copy
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible_collections.gb10.cluster.plugins.action import preflight_report
from ansible_collections.gb10.cluster.plugins.action.preflight_report import ActionModule
from ansible_collections.gb10.cluster.plugins.module_utils._node.facts import DEFAULTS
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import held, refusal
from cabling_samples import cable, facts
from preflight_samples import GOOD
from ring_samples import cabled
from stored import compare

OPTIONS: dict[str, Any] = {
    "nodes": [],
    "servers": ["control"],
    "kubeconfig": os.devnull,
    "min_free_gib": -1.0,
    "min_rate_gbps": 200.0,
    "min_pcie_gbps": 100.0,
    "rdma_mode": "privileged",
    "provider": "k3s",
    "severities": {},
    "refuse": True,
    "doctor": "",
    "neighbours": "seen",
}
ACTION: Any = SimpleNamespace(_loader=DataLoader())
MADE = GOOD["kubernetes"] | {"settings": DEFAULTS | {"secrets-encryption": "true"}}


def reported(hostvars: dict[str, Any], facts: dict[str, Any], name: str = "control", **options: Any) -> dict[str, Any]:
    """Return the result for a play over one server, whose facts are good except for ``facts``."""
    variables = {name: {"ansible_facts": {"gb10_preflight": copy.deepcopy(GOOD) | facts}} | hostvars}
    task_vars = {"hostvars": variables, "ansible_play_hosts_all": [name], "groups": {}}
    result: dict[str, Any] = ActionModule.act(ACTION, OPTIONS | {"servers": [name]} | options, task_vars)
    return result


HERE = {"ansible_host": "192.168.10.1"}
UNREAD = HERE | {"ansible_facts": {}}
REGISTRY = {"listeners": [{"port": 5001, "process": "registry"}]}
# Variables of a host, its facts, and options
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "good": (HERE, {}, {}),
    "no server is named": (HERE, {}, {"servers": None}),
    "unread": (UNREAD, {}, {}),
    "unread, only compared": (UNREAD, {}, {"refuse": False}),
    "not root": (HERE, {"user": {"uid": 1000, "name": "nvidia", "sudo_from": None}}, {}),
    "a name instead of an address": ({"ansible_host": "control.local"}, {}, {}),
    "a name and no address": ({}, {}, {"name": "control.local"}),
    "a name for the API": (HERE | {"k3s_api_host": "api.local"}, {}, {}),
    "no version": (HERE | {"k3s_version": "latest"}, {}, {}),
    "no such interface": (HERE | {"gb10_management_interface": "eth7"}, {}, {}),
    "cgroup v1": (HERE, {"cgroup_version": 1}, {}),
    "cgroup v1, wanted": (HERE | {"k3s_kubelet_args": ["fail-cgroupv1=false"]}, {"cgroup_version": 1}, {}),
    "another network": (HERE | {"gb10_cluster_cidr": "10.52.0.0/16"}, {"kubernetes": MADE}, {}),
    "a registry in the way": (HERE | {"k3s_embedded_registry": "yes"}, REGISTRY, {}),
    "a registry beside": (HERE | {"k3s_embedded_registry": "no"}, REGISTRY, {}),
    "a name, existing cluster": ({"ansible_host": "control.local"}, {}, {"provider": "existing"}),
    "a wrong clock, existing cluster": (HERE, {"clock_offset_s": 1000.0}, {"provider": "existing"}),
}


def test_reports_are_those_that_are_stored() -> None:
    found = {}
    for name, (hostvars, read, options) in CASES.items():
        result = reported(hostvars, read, **options)
        errors = [one["rule"] for one in result["findings"] if one["severity"] == "error"]
        assert not result["failed"] or all(f"[{rule}]" in held(refusal(result)) for rule in errors)
        # Ansible would print the facts of a failed task above the report.
        assert result["failed"] is ("ansible_facts" not in result)
        layers = ", ".join(sorted({one["layer"] for one in result["findings"]}))
        found[name] = [
            f"{result['msg'].splitlines()[0]} failed: {result['failed']}, layers: {layers}",
            # What belongs to no host is the same for all.
            *(
                f"{one['severity']} {one['rule']} {one['where']}: {one['key']} = {one['value']!r}"
                for one in result["findings"]
                if one["where"] or not found
            ),
        ]
    compare("preflight_reports", found)


@pytest.mark.parametrize("path", ["file/config", "directory/config", "directory/new/config"])
def test_a_kubeconfig_that_cannot_be_written_is_found_before_k3s_is_started(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "directory").mkdir()

    def found(**options: Any) -> list[str]:
        findings = reported(HERE, {}, kubeconfig=str(tmp_path / path), **options)["findings"]
        return [finding["rule"] for finding in findings if finding["key"] == "gb10_kubeconfig"]

    if path.startswith("directory"):
        assert found() == []
        # Root may do everything.
        monkeypatch.setattr(preflight_report.os, "access", lambda place, mode: mode == os.F_OK and Path(place).exists())
    assert found() == ["preflight.controller.kubeconfig"]
    assert found(provider="existing") == []


def test_the_facts_of_all_hosts_are_written_also_if_a_finding_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "doctor.yml"
    result = reported(HERE | {"k3s_version": "latest"}, {}, doctor=str(file))
    assert not result["failed"]
    assert str(file) in result["msg"]
    text = file.read_text(encoding="utf-8")
    assert "preflight.kubernetes.version_invalid" in text
    assert "control" not in text


def test_a_moved_cable_and_nonsense_about_cables_are_named() -> None:
    found = facts(3, *cable((1, 0), (2, 0)))
    variables = {
        name: own | {"seen": {"ansible_facts": {"gb10_cabling": found[name]}}} for name, own in cabled(3).items()
    }
    variables["spark3"]["seen"]["ansible_facts"]["gb10_cabling"][0]["name"] = "{{ x }}"
    options = OPTIONS | {"servers": [], "nodes": list(variables), "refuse": False}
    task_vars = {"hostvars": variables, "ansible_play_hosts_all": list(variables), "groups": {"gb10_nodes": []}}
    rules = [finding["rule"] for finding in ActionModule.act(ACTION, options, task_vars)["findings"]]
    assert (rules.count("cabling.inventory"), rules.count("preflight.facts.shape")) == (2, 1)


def test_space_and_swap_are_those_of_the_group_that_would_be_planned() -> None:
    own = {"serving_plan_profile": "qwen3.8-flash-next", "gb10_models_dir": "/srv/models", "gb10_fabric_mtu": 9000}
    needs = preflight_report._needs(ACTION._loader, ["a", "b", "c"], {"a": own})
    assert (needs.nodes, needs.profile, needs.models_dir) == (("a", "b"), "qwen3.8-flash-next/mtp", "/srv/models")
    ((names, size),) = needs.models.items()
    assert (names, round(size)) == (("RadixArk--Qwen3.8-Flash-Next-NVFP4",), 126)
    assert [round(size) for size in needs.images.values()] == [21]
    for unknown in ({"serving_plan_profile": "no-such"}, {"serving_plan_port": "x"}):
        assert preflight_report._needs(ACTION._loader, ["a"], {"a": unknown}) is None
    more = own | {"serving_plan_preset": "mtp", "serving_plan_fallback_preset": "no-such"}
    assert preflight_report._needs(ACTION._loader, ["a"], {"a": more}) is None
