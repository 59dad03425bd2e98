# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that settings which a running cluster cannot change, and networks that others have, are refused."""

import copy
from typing import Any, cast

import stored
from ansible_collections.gb10.cluster.plugins.module_utils._node.facts import DEFAULTS
from ansible_collections.gb10.cluster.plugins.module_utils._node.model import Facts
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.data import ROLES, read_yaml
from ansible_collections.gb10.cluster.plugins.plugin_utils._inventory.variables import load_known
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.host import Host
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.node_rules import (
    DEFAULT_OF_ROLE,
    ENCRYPTION,
    VARIABLES,
    wanted_settings,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.report import check_node
from preflight_samples import GOOD

USED = DEFAULTS | {"secrets-encryption": "true"}
FOUR = {"lo": ["127.0.0.1"], "eth0": ["fd00::1", "10.0.0.1", "10.0.0.2"], "eth1": ["10.0.1.1"]}
DUAL = {"k3s_node_ip": "192.168.10.12,fd00::12"}
OTHERS = {"k3s_data_dir": "/srv/k3s", "gb10_cluster_cidr": "10.52.0.0/16", "gb10_service_cidr": "10.53.0.0/16"}
# Variables of a host, and the address with which a member of etcd was started, if it has another one than the others
SETTINGS: list[dict[str, Any]] = [
    {},
    {"k3s_config": "cluster-cidr=10.42.0.0/16"},
    {"k3s_secrets_encryption": "yes", "k3s_data_dir": "/var/lib/rancher/k3s/"},
    {"gb10_cluster_cidr": "10.42.0.0/16", "k3s_config": {"cluster-dns": "10.43.0.10"}},
    {"gb10_cluster_cidr": "10.52.0.0/16", "k3s_cluster_cidr": "10.42.0.0/16"},
    {"k3s_cluster_cidr": "10.52.0.0/16", "k3s_config": {"cluster-cidr": ["10.42.0.0/16"]}},
    {"gb10_cluster_cidr": "10.52.0.0/16"},
    {"k3s_config": {"cluster-cidr": "10.52.0.0/16"}},
    {"gb10_service_cidr": "10.53.0.0/16"},
    {"k3s_data_dir": "/srv/k3s"},
    {"k3s_config": {"cluster-dns": "10.43.0.20"}},
    {"k3s_secrets_encryption": False},
    OTHERS,
    # Networks without a tenth address, which the DNS server usually has
    {"gb10_service_cidr": "10.53.0.0/30"},
    {"gb10_service_cidr": "unknown"},
]
MEMBERS: list[tuple[dict[str, Any], str, dict[str, list[str]]]] = [
    (DUAL, "192.168.10.12,fd00::12", FOUR),
    (DUAL, "192.168.10.11", FOUR),
    ({"k3s_node_interface": "eth0"}, "10.0.0.1", FOUR),
    ({"k3s_node_interface": "eth0"}, "10.0.0.2", FOUR),
    ({}, "10.0.0.2", FOUR),
    ({}, "10.0.9.9", FOUR),
    ({}, "127.0.0.1", FOUR),
    ({"k3s_node_ip": "192.168.10.12"}, "192.168.10.11", GOOD["addresses"]),
    # The address of the interface has changed.
    ({"gb10_management_interface": "enP7s7"}, "192.168.10.10", GOOD["addresses"]),
    ({"gb10_management_interface": "enP7s7"}, "192.168.10.11", GOOD["addresses"]),
    ({}, "192.168.10.10", GOOD["addresses"]),
]
THERE: dict[str, dict[str, Any]] = {
    "Docker's bridge": {"addresses": {"docker0": ["10.77.0.1"]}},
    "libvirt's bridge": {"routes": {"virbr0": ["10.77.128.0/24"]}},
    "a VPN": {"routes": {"tailscale0": ["10.77.3.9"]}},
    "the LAN": {"routes": {"enP7s7": ["10.77.0.0/16"]}},
    "a wider network": {"routes": {"tun0": ["10.0.0.0/8"]}},
    "all of a VPN": {"routes": {"tun0": ["0.0.0.0/1", "128.0.0.0/1"]}},
    "a name server": {"nameservers": ["10.77.0.10"]},
}
APART = {"cluster-cidr": "172.20.0.0/16", "service-cidr": "172.21.0.0/16"}
OURS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "pods": {"k3s": APART | {"cluster-cidr": "fd00::/56,10.77.0.0/16"}},
    "services": {"k3s": APART | {"service-cidr": "10.77.0.0/16"}},
    "a rail": {"networks": {"rail0": "10.77.0.0/16"}},
}
BRIDGES: list[tuple[dict[str, Any], dict[str, list[str]]]] = [
    ({}, {"docker0": ["172.17.0.1", "10.42.0.1", "10.42.0.2"]}),
    ({}, {"docker0": ["10.42.0.1"], "virbr0": ["10.43.0.1"]}),
    ({"gb10_cluster_cidr": "10.42.0.1/16, fd00:42::/56"}, {"docker0": ["10.42.0.9", "fd00:42::1"]}),
]


def judged(settings: dict[str, str] | None = None, facts: dict[str, Any] | None = None, **host: Any) -> list[str]:
    """Return what is found on a host whose K3s uses these settings."""
    raw = copy.deepcopy(GOOD) | (facts or {})
    raw["kubernetes"]["settings"] = settings or {}
    found = check_node(Host("spark1", cast(Facts, raw), **{"server": True} | host))
    return [f"{one.severity} {one.rule.removeprefix('preflight.')}: {one.key} = {one.value}" for one in found]


def test_settings_of_a_cluster_and_networks_that_others_have_are_refused_as_stored() -> None:
    told: dict[str, list[str]] = {}
    for variables in SETTINGS:
        wanted = wanted_settings(variables)
        assert judged(k3s=wanted) == [], "without a cluster, nothing is fixed"
        agent = judged(USED, server=False, k3s=wanted)
        told[str(variables)] = [*judged(USED, k3s=wanted), *(f"agent: {line}" for line in agent)]
    for variables, member, addresses in MEMBERS:
        settings, wanted = USED | {"node-ip": member}, wanted_settings(variables)
        assert judged(settings, {"addresses": addresses}, k3s=wanted, server=False) == []
        told[f"a member at {member}, {variables}"] = judged(settings, {"addresses": addresses}, k3s=wanted)
    for there, facts in THERE.items():
        for ours, host in OURS.items():
            told[f"{there} and {ours}"] = judged(None, facts, **{"k3s": APART, "pfs": ("pf0np0",)} | host)
    for variables, addresses in BRIDGES:
        told[f"{variables}, {addresses}"] = judged(None, {"addresses": addresses}, k3s=wanted_settings(variables))
    stored.compare("preflight_cluster", told)


def test_the_message_says_what_to_do() -> None:
    facts = copy.deepcopy(GOOD)
    facts["kubernetes"]["settings"] = USED | {"node-ip": "192.168.10.11"}
    wanted = wanted_settings({"k3s_node_ip": "192.168.10.99", "gb10_service_cidr": "10.53.0.0/16"})
    fixed, moved = check_node(Host("spark1", cast(Facts, facts), server=True, k3s=wanted))
    assert "made with 10.43.0.0/16" in fixed.reason
    assert "Set it back to 10.43.0.0/16." in fixed.remedy
    assert "etcd has stored 192.168.10.11" in moved.reason
    assert "--limit spark1" in moved.remedy


def test_preflight_compares_what_the_role_compares_with_the_same_defaults() -> None:
    role = read_yaml(ROLES / "k3s" / "vars" / "main.yml")
    assert set(role["__k3s_fixed_settings"]) == set(VARIABLES)
    options = load_known().roles["k3s"]
    assert options["k3s_data_dir"]["default"] == DEFAULTS["data-dir"]
    assert options["k3s_secrets_encryption"]["default"] is DEFAULT_OF_ROLE[ENCRYPTION]
    assert {name for names in VARIABLES.values() for name in names if name.startswith("k3s_")} <= set(options)
