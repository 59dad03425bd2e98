# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the check of a host before K3s is installed, on facts as ``preflight_info`` returns them."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.action.k3s_preconditions import ActionModule
from ansible_collections.gb10.cluster.plugins.module_utils._node.facts import DEFAULTS
from preflight_samples import GOOD

OPTIONS: dict[str, Any] = {
    "role": "server",
    "version": "v1.36.4+k3s1",
    "kubelet_args": [],
    "data_dir": "/var/lib/rancher/k3s",
    "embedded_etcd": False,
    "embedded_registry": False,
    "api_host": "192.168.10.1",
    "settings": {},
    "controller_time": 1000.0,
    "upgrading": False,
    "severities": {},
    "binary": "/usr/local/bin/k3s",
    "facts": {},
}

HOST = {"inventory_hostname": "spark1"}


def checked(changed: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """Return the result for a host whose facts are good except for ``changed``."""
    asked: list[tuple[Any, ...]] = []

    def execute(name: str, arguments: dict[str, Any], task_vars: Any) -> dict[str, Any]:
        asked.append((name, arguments))
        return {"ansible_facts": {"gb10_preflight": copy.deepcopy(GOOD) | (changed or {})}}

    action: Any = SimpleNamespace(_execute_module=execute)
    result: dict[str, Any] = ActionModule.act(action, OPTIONS | options, HOST)
    arguments = {"paths": ["/var/lib/rancher/k3s"], "k3s_binary": "/usr/local/bin/k3s", "controller_time": 1000.0}
    assert asked == [("gb10.cluster.preflight_info", arguments)]
    return result


def test_facts_that_this_run_has_read_already_are_used_if_they_are_about_the_same_disk() -> None:
    disk = {"path": "/var/lib/rancher/k3s", "device": 1, "total_gib": 100.0, "free_gib": 50.0}
    unread: Any = SimpleNamespace()
    result = ActionModule.act(unread, OPTIONS | {"facts": copy.deepcopy(GOOD) | {"disks": [disk]}}, HOST)
    assert (result["failed"], result["installed"]) == (False, False)
    # This reads the host again.
    checked(facts=copy.deepcopy(GOOD) | {"disks": [disk | {"path": "/srv"}]})


def test_a_host_may_get_k3s() -> None:
    disk = {"path": "/var/lib/rancher/k3s", "device": 1, "total_gib": 100.0, "free_gib": 50.0}
    result = checked({"disks": [disk]})
    assert (result["failed"], result["installed"], result["installed_version"]) == (False, False, "")
    assert result["ansible_facts"] == {"architecture": GOOD["arch"]}
    assert result["addresses"]["enP7s7"] == ["192.168.10.11"]
    assert "eviction-hard=imagefs.available<4096Mi,nodefs.available<4096Mi" in result["kubelet_args"]
    assert result["msg"] == "K3s can be installed here."


def test_a_server_that_was_started() -> None:
    used = DEFAULTS | {"secrets-encryption": "true"}
    kubernetes = GOOD["kubernetes"] | {"settings": used, "kubeconfig": True}
    result = checked({"kubernetes": kubernetes}, settings={"cluster-cidr": "10.42.0.0/16"})
    assert (result["failed"], result["started"]) == (False, True)
    result = checked({"kubernetes": kubernetes}, settings={"cluster-cidr": "10.52.0.0/16"})
    assert "K3s, which was not changed" in result["msg"]
    assert [finding["rule"] for finding in result["findings"]] == ["preflight.kubernetes.fixed"]


@pytest.mark.parametrize(
    ("changed", "options", "rule"),
    [
        ({"user": {"uid": 1000, "name": "nvidia", "sudo_from": None}}, {}, "preflight.user.not_root"),
        ({}, {"api_host": "spark1.local"}, "preflight.kubernetes.api_name"),
        ({}, {"version": "latest"}, "preflight.kubernetes.version_invalid"),
        ({"listeners": [{"port": 2379, "process": "x"}]}, {"embedded_etcd": True}, "preflight.port.in_use"),
        ({"listeners": [{"port": 5001, "process": "x"}]}, {"embedded_registry": True}, "preflight.port.in_use"),
    ],
)
def test_a_host_may_not_get_k3s(changed: dict[str, Any], options: dict[str, Any], rule: str) -> None:
    result = checked(changed, **options)
    assert (result["failed"], [finding["rule"] for finding in result["findings"]]) == (True, [rule])


def test_an_agent_needs_no_port_of_etcd() -> None:
    assert checked({"listeners": [{"port": 2379, "process": "x"}]}, role="agent", embedded_etcd=True)["findings"] == []


def test_severities_of_the_host_check() -> None:
    told = {"preflight.cgroup.v1": "info"}
    assert checked({"cgroup_version": 1})["failed"]
    assert not checked({"cgroup_version": 1}, severities=told)["failed"]


def test_a_host_that_cannot_be_read_fails_with_its_own_message() -> None:
    action: Any = SimpleNamespace(_execute_module=lambda *_arguments, **_options: {"failed": True, "msg": "no python"})
    assert ActionModule.act(action, OPTIONS, HOST) == {"failed": True, "msg": "no python"}


def test_clocks_are_compared_only_with_the_controller_s_time() -> None:
    seen: list[dict[str, Any]] = []

    def execute(_name: str, arguments: dict[str, Any], task_vars: Any) -> dict[str, Any]:
        seen.append(arguments)
        return {"ansible_facts": {"gb10_preflight": copy.deepcopy(GOOD)}}

    action: Any = SimpleNamespace(_execute_module=execute)
    ActionModule.act(action, OPTIONS | {"controller_time": None}, HOST)
    assert "controller_time" not in seen[0]
