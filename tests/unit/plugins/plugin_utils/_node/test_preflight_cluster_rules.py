# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that settings which a running cluster cannot change are refused."""

import copy
from typing import Any, cast

import pytest
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
MEMBER = USED | {"node-ip": "192.168.10.11"}
FIXED, MOVED = "preflight.kubernetes.fixed", "preflight.kubernetes.moved"


def found(variables: dict[str, Any], used: dict[str, str], *, server: bool = True) -> list[tuple[str, str, Any]]:
    """Return rule, key and value of what is found on a host whose K3s uses these settings."""
    facts = copy.deepcopy(GOOD)
    facts["kubernetes"]["settings"] = used
    host = Host("spark1", cast(Facts, facts), server=server, k3s=wanted_settings(variables))
    return [(finding.rule, finding.key, finding.value) for finding in check_node(host)]


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"k3s_config": "cluster-cidr=10.42.0.0/16"},
        {"k3s_secrets_encryption": "yes", "k3s_data_dir": "/var/lib/rancher/k3s/"},
        {"gb10_cluster_cidr": "10.42.0.0/16", "k3s_config": {"cluster-dns": "10.43.0.10"}},
        {"gb10_cluster_cidr": "10.52.0.0/16", "k3s_cluster_cidr": "10.42.0.0/16"},
        {"k3s_cluster_cidr": "10.52.0.0/16", "k3s_config": {"cluster-cidr": ["10.42.0.0/16"]}},
    ],
)
def test_the_same_settings_are_accepted(variables: dict[str, Any]) -> None:
    assert found(variables, USED) == []


@pytest.mark.parametrize(
    ("variables", "finding"),
    [
        ({"gb10_cluster_cidr": "10.52.0.0/16"}, (FIXED, "gb10_cluster_cidr", "10.52.0.0/16")),
        ({"k3s_config": {"cluster-cidr": "10.52.0.0/16"}}, (FIXED, "gb10_cluster_cidr", "10.52.0.0/16")),
        ({"gb10_service_cidr": "10.53.0.0/16"}, (FIXED, "gb10_service_cidr", "10.53.0.0/16")),
        ({"k3s_data_dir": "/srv/k3s"}, (FIXED, "k3s_data_dir", "/srv/k3s")),
        ({"k3s_config": {"cluster-dns": "10.43.0.20"}}, (FIXED, "k3s_config.cluster-dns", "10.43.0.20")),
        ({"k3s_secrets_encryption": False}, ("preflight.kubernetes.encryption", "k3s_secrets_encryption", False)),
    ],
)
def test_another_setting_is_refused_only_if_there_is_a_cluster(
    variables: dict[str, Any], finding: tuple[str, str, Any]
) -> None:
    assert found(variables, USED) == [finding]
    assert found(variables, {}) == []


def test_several_settings_are_refused_together() -> None:
    variables = {"k3s_data_dir": "/srv/k3s", "gb10_cluster_cidr": "10.52.0.0/16", "gb10_service_cidr": "10.53.0.0/16"}
    assert [key for _rule, key, _value in found(variables, USED)] == [
        "k3s_data_dir",
        "gb10_cluster_cidr",
        "gb10_service_cidr",
    ]


@pytest.mark.parametrize("cidr", ["10.53.0.0/30", "unknown"])
def test_a_network_without_a_tenth_address_has_no_usual_one_for_dns(cidr: str) -> None:
    assert found({"gb10_service_cidr": cidr}, USED) == [(FIXED, "gb10_service_cidr", cidr)]


THERE: dict[str, dict[str, Any]] = {
    "Docker's bridge": {"addresses": {"docker0": ["10.77.0.1"]}},
    "libvirt's bridge": {"routes": {"virbr0": ["10.77.128.0/24"]}},
    "a VPN": {"routes": {"tailscale0": ["10.77.3.9"]}},
    "the LAN": {"routes": {"enP7s7": ["10.77.0.0/16"]}},
    "a wider network": {"routes": {"tun0": ["10.0.0.0/8"]}},
    "all of a VPN": {"routes": {"tun0": ["0.0.0.0/1", "128.0.0.0/1"]}},
    "a name server": {"nameservers": ["10.77.0.10"]},
}
OURS = {
    "pods": {"k3s": {"cluster-cidr": "fd00::/56,10.77.0.0/16"}},
    "services": {"k3s": {"service-cidr": "10.77.0.0/16"}},
    "a rail": {"networks": {"rail0": "10.77.0.0/16"}},
}


@pytest.mark.parametrize(("there", "ours"), [(there, ours) for there in THERE for ours in OURS])
def test_what_the_host_has_and_what_is_planned_never_share_addresses(there: str, ours: str) -> None:
    def told(**wanted: Any) -> list[tuple[str, str]]:
        host = Host("spark1", cast(Facts, copy.deepcopy(GOOD) | THERE[there]), server=True, pfs=("pf0np0",), **wanted)
        return [(one.rule, one.severity) for one in check_node(host)]

    rule = "dns" if there == "a name server" else "rail" if ours == "a rail" else "cluster"
    severity = "warning" if there == "a wider network" else "error"
    apart = {"k3s": {"cluster-cidr": "172.20.0.0/16", "service-cidr": "172.21.0.0/16"}}
    assert told(**apart) == []
    found = told(**apart | OURS[ours] | ({"k3s": apart["k3s"] | OURS[ours]["k3s"]} if "k3s" in OURS[ours] else {}))
    assert found == ([] if there == "all of a VPN" else [(f"preflight.network.{rule}", severity)])


@pytest.mark.parametrize(
    ("variables", "interfaces", "expected"),
    [
        ({}, {"docker0": ["172.17.0.1", "10.42.0.1", "10.42.0.2"]}, [("gb10_cluster_cidr", "10.42.0.1, 10.42.0.2")]),
        (
            {},
            {"docker0": ["10.42.0.1"], "virbr0": ["10.43.0.1"]},
            [("gb10_cluster_cidr", "10.42.0.1"), ("gb10_service_cidr", "10.43.0.1")],
        ),
        (
            {"gb10_cluster_cidr": "10.42.0.1/16, fd00:42::/56"},
            {"docker0": ["10.42.0.9", "fd00:42::1"]},
            [("gb10_cluster_cidr", "10.42.0.9, fd00:42::1")],
        ),
    ],
)
def test_each_address_in_a_network_of_the_cluster_is_found(
    variables: dict[str, Any], interfaces: dict[str, list[str]], expected: list[tuple[str, str]]
) -> None:
    facts = copy.deepcopy(GOOD) | {"addresses": interfaces}
    host = Host("spark1", cast(Facts, facts), server=True, k3s=wanted_settings(variables))
    findings = [one for one in check_node(host) if one.rule == "preflight.network.cluster"]
    assert [one.value for one in findings] == [value for _key, value in expected]
    for one, (key, _value) in zip(findings, expected, strict=True):
        assert key in f"{one.key} {one.reason} {one.remedy}"


@pytest.mark.parametrize(
    ("variables", "member", "there"),
    [
        ({"k3s_node_ip": "192.168.10.12,fd00::12"}, "192.168.10.12,fd00::12", None),
        ({"k3s_node_ip": "192.168.10.12,fd00::12"}, "192.168.10.11", "192.168.10.12"),
        ({"k3s_node_interface": "eth0"}, "10.0.0.1", None),
        ({"k3s_node_interface": "eth0"}, "10.0.0.2", "10.0.0.1"),
        ({}, "10.0.0.2", None),
        ({}, "10.0.9.9", "fd00::1, 10.0.0.1, 10.0.0.2, 10.0.1.1"),
        ({}, "127.0.0.1", "fd00::1, 10.0.0.1, 10.0.0.2, 10.0.1.1"),
    ],
)
def test_the_address_of_a_member_is_that_which_k3s_takes(
    variables: dict[str, Any], member: str, there: str | None
) -> None:
    facts = copy.deepcopy(GOOD)
    facts["addresses"] = {"lo": ["127.0.0.1"], "eth0": ["fd00::1", "10.0.0.1", "10.0.0.2"], "eth1": ["10.0.1.1"]}
    facts["kubernetes"]["settings"] = USED | {"node-ip": member}
    host = Host("spark1", cast(Facts, facts), server=True, k3s=wanted_settings(variables))
    findings = [one.value for one in check_node(host) if one.rule == MOVED]
    assert findings == ([there] if there else [])


def test_an_agent_has_only_its_data_directory() -> None:
    variables = {"gb10_cluster_cidr": "10.52.0.0/16", "k3s_secrets_encryption": False}
    assert found(variables, USED, server=False) == []
    assert found({"k3s_data_dir": "/srv/k3s"}, USED, server=False) == [(FIXED, "k3s_data_dir", "/srv/k3s")]


@pytest.mark.parametrize(
    ("variables", "used", "there"),
    [
        ({"k3s_node_ip": "192.168.10.12"}, "192.168.10.11", "192.168.10.12"),
        # The address of the interface has changed.
        ({"gb10_management_interface": "enP7s7"}, "192.168.10.10", "192.168.10.11"),
        ({}, "192.168.10.10", "192.168.10.11"),
    ],
)
def test_a_member_of_etcd_keeps_its_address(variables: dict[str, Any], used: str, there: str) -> None:
    assert found(variables, USED | {"node-ip": used}) == [(MOVED, "address of the server", there)]
    assert found(variables, USED | {"node-ip": there}) == []
    assert found(variables, USED | {"node-ip": used}, server=False) == []


def test_the_message_says_what_to_do() -> None:
    facts = copy.deepcopy(GOOD)
    facts["kubernetes"]["settings"] = MEMBER
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
