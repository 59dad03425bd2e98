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


def reported(hostvars: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """Return the result for a play over ``control``, whose facts are good except for ``facts``."""
    read = {"gb10_preflight": copy.deepcopy(GOOD) | facts}
    variables = {"control": {"ansible_facts": read, "ansible_host": "192.168.10.1"} | hostvars}
    result: dict[str, Any] = ActionModule.act(
        ACTION, OPTIONS, {"hostvars": variables, "ansible_play_hosts_all": ["control"], "groups": {}}
    )
    return result


def rules(result: dict[str, Any]) -> list[str]:
    return [finding["rule"] for finding in result["findings"] if finding["where"] == "control"]


def test_errors_are_returned_without_a_failure_where_they_are_only_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    unread: dict[str, Any] = {"ansible_facts": {}}
    assert reported(unread)["failed"]
    monkeypatch.setitem(OPTIONS, "refuse", False)
    assert (reported(unread)["failed"], rules(reported(unread))) == (False, ["preflight.host.unread"])


def test_a_server_that_was_read() -> None:
    assert rules(reported({})) == []


@pytest.mark.parametrize(
    ("hostvars", "facts", "rule"),
    [
        ({"ansible_facts": {}}, {}, "preflight.host.unread"),
        ({}, {"user": {"uid": 1000, "name": "nvidia", "sudo_from": None}}, "preflight.user.not_root"),
        ({"ansible_host": "control.local"}, {}, "preflight.kubernetes.api_name"),
        ({"k3s_api_host": "api.local"}, {}, "preflight.kubernetes.api_name"),
        ({"k3s_version": "latest"}, {}, "preflight.kubernetes.version_invalid"),
        ({"gb10_management_interface": "eth7"}, {}, "preflight.network.management_missing"),
        ({}, {"cgroup_version": 1}, "preflight.cgroup.v1"),
        ({"gb10_cluster_cidr": "10.52.0.0/16"}, {"kubernetes": MADE}, "preflight.kubernetes.fixed"),
    ],
)
def test_what_stops_the_run(hostvars: dict[str, Any], facts: dict[str, Any], rule: str) -> None:
    result = reported(hostvars, **facts)
    assert (rules(result), result["failed"]) == ([rule], True)
    assert result["msg"].startswith("Not ready; nothing was changed.")
    assert f"[{rule}]" in held(refusal(result))
    assert {finding["layer"] for finding in result["findings"]} >= {rule.split(".")[1]}


@pytest.mark.parametrize("path", ["file/config", "directory/config", "directory/new/config"])
def test_a_kubeconfig_that_cannot_be_written_is_found_before_k3s_is_started(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "directory").mkdir()
    monkeypatch.setitem(OPTIONS, "kubeconfig", str(tmp_path / path))

    def found() -> list[str]:
        return [finding["rule"] for finding in reported({})["findings"] if finding["key"] == "gb10_kubeconfig"]

    if path.startswith("directory"):
        assert found() == []
        # Root may do everything.
        monkeypatch.setattr(preflight_report.os, "access", lambda place, mode: mode == os.F_OK and Path(place).exists())
    assert found() == ["preflight.controller.kubeconfig"]
    monkeypatch.setitem(OPTIONS, "provider", "existing")
    assert found() == []


def test_the_name_of_the_first_server_is_the_api_if_it_has_no_address() -> None:
    read = {"gb10_preflight": copy.deepcopy(GOOD)}
    name, options = "control.local", OPTIONS | {"servers": ["control.local"]}
    variables = {name: {"ansible_facts": read}}
    task_vars = {"hostvars": variables, "ansible_play_hosts_all": [name], "groups": {}}
    result: dict[str, Any] = ActionModule.act(ACTION, options, task_vars)
    assert [finding["rule"] for finding in result["findings"] if finding["where"]] == ["preflight.kubernetes.api_name"]


def test_the_kubelet_s_arguments_of_the_host_count() -> None:
    assert rules(reported({"k3s_kubelet_args": ["fail-cgroupv1=false"]}, cgroup_version=1)) == []


@pytest.mark.parametrize(("registry", "found"), [("yes", ["preflight.port.in_use"]), ("no", [])])
def test_the_embedded_registry_needs_its_port(registry: str, found: list[str]) -> None:
    taken = [{"port": 5001, "process": "registry"}]
    assert rules(reported({"k3s_embedded_registry": registry}, listeners=taken)) == found


def test_rules_about_k3s_do_not_apply_to_an_existing_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"ansible_host": "control.local"}
    assert rules(reported(variables)) == ["preflight.kubernetes.api_name"]
    monkeypatch.setitem(OPTIONS, "provider", "existing")
    assert rules(reported(variables)) == []
    skewed = reported(variables, clock_offset_s=1000.0)
    assert rules(skewed) == ["preflight.time.skew"]


def test_the_facts_of_all_hosts_are_written_also_if_a_finding_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "doctor.yml"
    monkeypatch.setitem(OPTIONS, "doctor", str(file))
    result = reported({"k3s_version": "latest"})
    assert (rules(result), result["failed"]) == (["preflight.kubernetes.version_invalid"], False)
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
