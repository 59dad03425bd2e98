# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that every conflict is found in a valid fabric of any size, alone and together with others."""

import re
from collections.abc import Callable, Iterable
from ipaddress import ip_network
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, has_errors
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.model import vf_mac
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import plan_fabric
from fabric_conflicts import CONFLICTS, Break, broken, group, host, rail
from fabric_samples import Variables, fabric
from hypothesis import given
from hypothesis import strategies as st


def rules(findings: Iterable[Finding]) -> set[str]:
    return {finding.rule.removeprefix("fabric.") for finding in findings}


@pytest.mark.parametrize("small", ["10.100.0.0/31", "10.100.0.0/30", "10.100.0.0/29", "10.100.0.0/24"])
def test_the_size_that_is_proposed_for_a_block_is_the_smallest_and_nothing_else_is_reported(small: str) -> None:
    (finding,) = broken(4, ("", rail(0, network=small)))
    assert (finding.rule, finding.key) == ("fabric.network.too_small", "gb10_fabric_rails.rail0.network")
    wanted = re.search(r"Give it a (/\d+) or larger", finding.remedy)
    assert wanted
    assert broken(4, ("", rail(0, network=f"10.100.0.0{wanted[1]}"))) == []
    assert broken(4, ("", rail(0, network=f"10.100.0.0/{int(wanted[1][1:]) + 1}"))) != []


@given(count=st.integers(4, 60), conflict=st.sampled_from(CONFLICTS))
def test_every_conflict_is_found_in_a_fabric_of_any_size(count: int, conflict: tuple[str, Break]) -> None:
    assert conflict[0] in rules(broken(count, conflict))


# none of these conflicts hides another one, so several at once must all be found in one run
INDEPENDENT = [
    ("node_id.duplicate", host("gb10_node_id", 1)),
    ("pf.management", group("gb10_management_interface", "enP2p1s0f0np0")),
    ("vf_count.hardware", group("gb10_fabric_vf_count", 9)),
    ("mtu.port", group("gb10_fabric_mtu", 9990)),
    ("network.cluster", rail(0, network="10.42.0.0/16")),
    ("network.management", rail(1, network="192.168.0.0/16")),
    ("rail.unknown", host("gb10_fabric_pfs", {"rail9": "enp1s0f0np0"})),
    ("scheme.unknown", group("gb10_fabric_scheme", "flat")),
    ("topology.direct", group("gb10_fabric_topology", "direct")),
    ("reserved.invalid", group("gb10_fabric_reserved_addresses", ["here"])),
]


@given(chosen=st.sets(st.integers(0, len(INDEPENDENT) - 1), min_size=2))
def test_all_conflicts_come_at_once(chosen: set[int]) -> None:
    conflicts = [INDEPENDENT[number] for number in chosen]
    assert {rule for rule, _change in conflicts} <= rules(broken(6, *conflicts))


# Each network of a cluster: how to place it, and the rule that names an overlap with each network before it.
PLACES: dict[str, Callable[[str], Break]] = {
    "rail": lambda network: rail(0, network=network),
    "rail6": lambda network: rail(0, network6=network),
    "rail of another cable": lambda network: rail(1, network=network),
    "management": lambda network: group("gb10_management_networks", [network]),
    "address": lambda network: host("ansible_host", str(next(ip_network(network).hosts()))),
    "pods": lambda network: group("gb10_cluster_cidr", network),
    "services": lambda network: group("gb10_service_cidr", network),
    # Only a server may have them, so not all hosts need the same value.
    "pods of role k3s": lambda network: host("k3s_cluster_cidr", network),
    "pods of K3s": lambda network: host("k3s_config", {"cluster-cidr": [network]}),
    "services of K3s": lambda network: group("k3s_config", {"service-cidr": network}),
}
PAIRS = {
    ("rail", "rail of another cable"): "network.same",
    ("rail", "management"): "network.management",
    ("rail", "address"): "network.management_address",
    ("rail", "pods"): "network.cluster",
    ("rail", "services"): "network.cluster",
    ("rail6", "management"): "network.management",
    ("rail6", "address"): "network.management_address",
    ("rail6", "pods"): "network.cluster",
    ("rail6", "services"): "network.cluster",
    ("management", "pods"): "cluster.management",
    ("management", "services"): "cluster.management",
    ("address", "pods"): "cluster.management_address",
    ("address", "services"): "cluster.management_address",
    ("pods", "services"): "cluster.overlap",
    ("rail", "pods of role k3s"): "network.cluster",
    ("management", "pods of K3s"): "cluster.management",
    ("pods", "services of K3s"): "cluster.overlap",
}


@pytest.mark.parametrize(("pair", "rule"), PAIRS.items(), ids=[" and ".join(pair) for pair in PAIRS])
def test_two_networks_of_one_cluster_never_share_addresses(pair: tuple[str, str], rule: str) -> None:
    block = "fd00:77::/48" if "rail6" in pair else "10.77.0.0/16"
    found = rules(broken(4, *((name, PLACES[name](block)) for name in pair)))
    assert rule in found
    apart = rules(broken(4, (pair[0], PLACES[pair[0]](block))))
    assert rule not in apart


def test_a_mac_collision_of_two_rails_is_found() -> None:
    # two bytes of the hash are the same for these rail names under the default seed
    names = colliding_names()
    variables = fabric(2)
    for values in variables.values():
        for spec, name in zip(values["gb10_fabric_rails"], names, strict=True):
            spec["name"] = name
    assert "mac.duplicate" in rules(plan_fabric(variables)[1])


def colliding_names() -> tuple[str, str]:
    seen: dict[str, str] = {}
    for number in range(1 << 16):
        name = f"rail{number}"
        mac = vf_mac("gb10", name, 1, 0)
        if mac in seen:
            return seen[mac], name
        seen[mac] = name
    raise AssertionError("no collision among 65536 names")


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def assert_answered(variables: Variables) -> None:
    """Plan the fabric: there must be a complete plan, or an error that explains itself."""
    planned, findings = plan_fabric(variables)
    assert all(finding.reason and finding.remedy for finding in findings)
    assert has_errors(findings) or len(planned.hosts) == len(variables)


KEYS = sorted({key for values in fabric(1).values() for key in values})


@given(key=st.sampled_from([*KEYS, "gb10_fabric_pfs", "gb10_fabric_vf_count", "gb10_fabric_mtu"]), value=JUNK)
def test_invalid_values_give_findings_and_never_a_traceback(key: str, value: Any) -> None:
    variables = fabric(4)
    host(key, value)(variables)
    assert_answered(variables)


@given(key=st.sampled_from(["name", "pf", "network", "network6", "pf_rdma", "hosts"]), value=JUNK)
def test_invalid_values_in_a_rail_never_give_a_traceback(key: str, value: Any) -> None:
    variables = fabric(4)
    rail(0, **{key: value})(variables)
    assert_answered(variables)
