# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the check of a host before K3s is installed, on facts as ``preflight_info`` returns them."""

import copy
from types import SimpleNamespace
from typing import Any

from ansible_collections.gb10.cluster.plugins.action.k3s_preconditions import ActionModule
from ansible_collections.gb10.cluster.plugins.module_utils._node.facts import DEFAULTS
from preflight_samples import GOOD
from stored import compare

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

PATH = "/var/lib/rancher/k3s"
DISK = {"path": PATH, "device": 1, "total_gib": 100.0, "free_gib": 50.0}
STARTED = {"settings": DEFAULTS | {"secrets-encryption": "true"}, "kubeconfig": True}
INSTALLED = {"kubernetes": GOOD["kubernetes"] | STARTED}


def listening(port: int) -> dict[str, Any]:
    return {"listeners": [{"port": port, "process": "x"}]}


# Facts that differ from good ones, and options
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "good": ({}, {}),
    "a small disk": ({"disks": [DISK]}, {}),
    "read before": ({}, {"facts": GOOD | {"disks": [DISK]}}),
    "read before, another disk": ({}, {"facts": GOOD | {"disks": [DISK | {"path": "/srv"}]}}),
    "no time of the controller": ({}, {"controller_time": None}),
    "started": (INSTALLED, {"settings": {"cluster-cidr": "10.42.0.0/16"}}),
    "started, another network": (INSTALLED, {"settings": {"cluster-cidr": "10.52.0.0/16"}}),
    "not root": ({"user": {"uid": 1000, "name": "nvidia", "sudo_from": None}}, {}),
    "a name for the API": ({}, {"api_host": "spark1.local"}),
    "no version": ({}, {"version": "latest"}),
    "a port of etcd is taken": (listening(2379), {"embedded_etcd": True}),
    "a port of etcd is taken on an agent": (listening(2379), {"role": "agent", "embedded_etcd": True}),
    "a port of the registry is taken": (listening(5001), {"embedded_registry": True}),
    "cgroup v1": ({"cgroup_version": 1}, {}),
    "cgroup v1, only told": ({"cgroup_version": 1}, {"severities": {"preflight.cgroup.v1": "info"}}),
}


def checked(changed: dict[str, Any], **options: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return the result for a host whose facts are good except for ``changed``, and how the module was asked."""
    asked: list[Any] = []

    def execute(name: str, arguments: dict[str, Any], task_vars: Any) -> dict[str, Any]:
        asked.append((name, arguments))
        return {"ansible_facts": {"gb10_preflight": copy.deepcopy(GOOD) | changed}}

    action: Any = SimpleNamespace(_execute_module=execute)
    return ActionModule.act(action, copy.deepcopy(OPTIONS | options), {"inventory_hostname": "spark1"}), asked


def test_the_checks_of_hosts_are_those_that_are_stored() -> None:
    found = {}
    for name, (changed, options) in CASES.items():
        result, asked = checked(changed, **options)
        known = ("failed", "installed", "started", "installed_version", "ansible_facts", "kubelet_args", "addresses")
        found[name] = [
            f"asks {asked}",
            *(f"{key}: {result[key]}" for key in known if key in result and (result[key] or name == "good")),
            result["msg"].splitlines()[0],
            *(f"{one['severity']} {one['rule']} {one['key']} = {one['value']!r}" for one in result["findings"]),
        ]
    usual = found["good"]
    found |= {name: [line for line in lines if line not in usual] for name, lines in found.items() if name != "good"}
    compare("k3s_preconditions", found)


def test_a_host_that_cannot_be_read_fails_with_its_own_message() -> None:
    action: Any = SimpleNamespace(_execute_module=lambda *_arguments, **_options: {"failed": True, "msg": "no python"})
    assert ActionModule.act(action, OPTIONS, {}) == {"failed": True, "msg": "no python"}
