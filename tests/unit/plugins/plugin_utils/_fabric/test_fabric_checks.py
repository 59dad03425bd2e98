# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that every conflict is found in a valid fabric of any size, alone and together with others."""

import re
from collections.abc import Callable, Iterable
from ipaddress import ip_network
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, has_errors
from ansible_collections.gb10.cluster.plugins.module_utils._common.terms import ROCE_HEADER_BYTES
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.model import vf_mac
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import plan_fabric
from fabric_conflicts import CONFLICTS, Break, all_of, broken, group, host, rail, unset
from fabric_samples import PFS, Variables, fabric, ring
from hypothesis import given
from hypothesis import strategies as st


def rules(findings: Iterable[Finding]) -> set[str]:
    return {finding.rule.removeprefix("fabric.") for finding in findings}


@pytest.mark.parametrize(
    ("rule", "change"), CONFLICTS, ids=[f"{n}-{rule}" for n, (rule, _change) in enumerate(CONFLICTS)]
)
def test_a_conflict_is_reported_with_its_remedy(rule: str, change: Break) -> None:
    found = [f for f in broken(4, (rule, change)) if f.rule == f"fabric.{rule}"]
    assert found
    for finding in found:
        assert finding.key
        assert len(finding.reason) > 3
        assert finding.remedy.endswith((".", "]."))
        assert finding.source in {"inventory", "plan"}


@pytest.mark.parametrize("small", ["10.100.0.0/31", "10.100.0.0/30", "10.100.0.0/29", "10.100.0.0/24"])
def test_the_size_that_is_proposed_for_a_block_is_the_smallest_and_nothing_else_is_reported(small: str) -> None:
    (finding,) = broken(4, ("", rail(0, network=small)))
    assert (finding.rule, finding.key) == ("fabric.network.too_small", "gb10_fabric_rails.rail0.network")
    wanted = re.search(r"Give it a (/\d+) or larger", finding.remedy)
    assert wanted
    assert broken(4, ("", rail(0, network=f"10.100.0.0{wanted[1]}"))) == []
    assert broken(4, ("", rail(0, network=f"10.100.0.0/{int(wanted[1][1:]) + 1}"))) != []


@pytest.mark.parametrize(
    ("name", "meant"),
    [("rocep1s0f0", ", here enp1s0f0np0"), ("roceP2p1s0f1", ", here enP2p1s0f1np1"), ("mlx5_0", "")],
)
def test_an_rdma_device_in_place_of_a_pf_is_named_with_its_interface(name: str, meant: str) -> None:
    (finding,) = broken(4, ("", rail(0, pf=name)))
    assert (finding.rule, finding.key) == ("fabric.pf.is_rdma", "gb10_fabric_rails[0].pf")
    assert finding.remedy.startswith(f"Write the interface{meant}; `rdma link`")


@pytest.mark.parametrize("topology", ["switch", "direct", "ring"])
def test_a_host_without_a_node_id_says_nothing_about_the_topology(topology: str) -> None:
    changes = all_of(group("gb10_fabric_topology", topology), unset("gb10_node_id"))
    assert rules(broken(2, ("", changes))) <= {"node_id.missing"}


def test_firmware_without_vfs_comes_with_the_command_to_type() -> None:
    variables = fabric(2)
    variables["spark1"]["gb10_pf_totalvfs"] = {**PFS, "enp1s0f0np0": 0}
    variables["spark1"]["gb10_pf_pci"] = {"enp1s0f0np0": "0000:01:00.0"}
    (found,) = (finding for finding in plan_fabric(variables)[1] if finding.rule == "fabric.sriov.disabled")
    assert "sudo mstconfig -d 0000:01:00.0 set SRIOV_EN=1 NUM_OF_VFS=4." in found.remedy


def test_the_list_is_long_and_the_sample_is_right() -> None:
    assert len({rule for rule, _change in CONFLICTS}) >= 60
    assert broken(4) == []
    assert broken(4, ("", group("gb10_fabric_mtu", 4096 + ROCE_HEADER_BYTES))) == []


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


@pytest.mark.parametrize("network", ["fd00::zz/48", "fd00::", "10.200.0.0/16", "2a00:1450::/48"])
def test_the_remedy_of_an_ipv6_block_is_an_ipv6_block(network: str) -> None:
    found = [
        finding for finding in broken(3, ("", rail(0, network6=network))) if finding.rule.startswith("fabric.network6")
    ]
    assert [finding for finding in found if "fd00:" not in finding.remedy] == []
    assert found


def test_the_network_of_a_shared_laptop_connection_is_that_of_pods() -> None:
    conflict = all_of(group("gb10_management_networks", ["10.42.0.0/24"]), host("ansible_host", "10.42.0.18"))
    assert rules(broken(2, ("", conflict))) >= {"cluster.management", "cluster.management_address"}


def test_a_rail_with_an_error_is_no_unknown_rail_of_its_hosts() -> None:
    changes = (("pf.is_vlan", rail(0, pf="enp1s0f0np0.10")), ("", host("gb10_fabric_pfs", {"rail0": "enp1s0f1np1"})))
    found = rules(broken(4, *changes))
    assert "pf.is_vlan" in found
    assert "rail.unknown" not in found


def test_two_machines_behind_one_address_differ_by_their_port() -> None:
    variables = fabric(2, ansible_host="127.0.0.1")
    for port, values in enumerate(variables.values(), 2201):
        values["ansible_port"] = port
    assert plan_fabric(variables)[1] == []


def test_many_hosts_are_counted_instead_of_listed() -> None:
    variables = fabric(16)
    for values in list(variables.values())[1:]:
        del values["gb10_pf_totalvfs"]
        values["gb10_assumed_vf_count"] = 4
    (found,) = plan_fabric(variables)[1]
    assert "spark10 … spark9 (15 hosts)" in found.reason
    assert len(str(found)) < 300


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


def test_a_ring_with_a_gap_or_a_third_host_on_a_cable_is_found() -> None:
    assert plan_fabric(ring())[1] == []
    gap = ring()
    for values in gap.values():
        values["gb10_fabric_rails"] = values["gb10_fabric_rails"][:4]
        values.pop("gb10_fabric_pfs", None)
    gap["spark2"]["gb10_fabric_pfs"] = {"ring12a": "enp1s0f1np1", "ring12b": "enP2p1s0f1np1"}
    assert "topology.open_ring" in rules(plan_fabric(gap)[1])
    crowd = ring()
    for values in crowd.values():
        values["gb10_fabric_rails"][0]["hosts"] = ["spark1", "spark2", "spark3"]
    assert "topology.cable" in rules(plan_fabric(crowd)[1])


def test_a_fabric_without_hosts_is_reported() -> None:
    assert "hosts.none" in rules(plan_fabric({})[1])


def test_a_host_outside_a_limited_run_is_assumed_and_not_refused() -> None:
    variables = fabric(4)
    del variables["spark4"]["gb10_pf_totalvfs"]
    variables["spark4"]["gb10_assumed_vf_count"] = 4
    planned, findings = plan_fabric(variables)
    assert rules(findings) == {"vf_count.assumed"}
    assert planned == plan_fabric(fabric(4))[0]


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
