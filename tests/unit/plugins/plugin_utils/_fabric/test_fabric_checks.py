# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that every conflict is found in a valid fabric of any size, alone and together with others."""

import copy
import re
from collections.abc import Callable, Iterable
from ipaddress import ip_network
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, has_errors
from ansible_collections.gb10.cluster.plugins.module_utils._common.terms import ROCE_HEADER_BYTES
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.model import vf_mac
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import plan_fabric
from fabric_samples import PFS, Variables, fabric, ring
from hypothesis import given
from hypothesis import strategies as st

Break = Callable[[Variables], None]


def group(key: str, value: Any) -> Break:
    """Set a variable on all hosts."""

    def change(variables: Variables) -> None:
        for values in variables.values():
            values[key] = copy.deepcopy(value)

    return change


def host(key: str, value: Any) -> Break:
    """Set a variable on the last host only."""

    def change(variables: Variables) -> None:
        variables[max(variables, key=lambda name: variables[name].get("gb10_node_id") or 0)][key] = value

    return change


def unset(key: str) -> Break:
    def change(variables: Variables) -> None:
        del variables["spark1"][key]

    return change


def rail(index: int, **changes: Any) -> Break:
    """Change keys of one rail on all hosts."""

    def change(variables: Variables) -> None:
        for values in variables.values():
            values["gb10_fabric_rails"][index].update(changes)

    return change


def extra_rail(**keys: Any) -> Break:
    def change(variables: Variables) -> None:
        for values in variables.values():
            values["gb10_fabric_rails"].append(keys)

    return change


def reported(pf: str, **facts: int) -> Break:
    def change(variables: Variables) -> None:
        for fact, value in facts.items():
            variables["spark3"][f"gb10_pf_{fact}"][pf] = value

    return change


def all_of(*breaks: Break) -> Break:
    def change(variables: Variables) -> None:
        for one in breaks:
            one(variables)

    return change


def last_pf(pf: str, rail_name: str = "rail0") -> Break:
    """Set another PF on the last host, and report that the host has it."""
    return all_of(host("gb10_fabric_pfs", {rail_name: pf}), host("gb10_pf_totalvfs", {**PFS, pf: 4}))


LONG_PF = "enp1s0f0aaaanp0"  # 15 characters

CONFLICTS: list[tuple[str, Break]] = [
    ("node_id.missing", unset("gb10_node_id")),
    ("node_id.invalid", host("gb10_node_id", "one")),
    ("node_id.invalid", host("gb10_node_id", True)),
    ("node_id.invalid", host("gb10_node_id", "007")),
    ("node_id.range", host("gb10_node_id", 0)),
    ("node_id.range", host("gb10_node_id", 255)),
    (
        "node_id.range",
        all_of(group("gb10_fabric_vf_count", 1), host("gb10_node_id", 70), rail(1, network="10.101.0.0/26")),
    ),
    ("node_id.range", host("gb10_node_id", -3)),
    ("node_id.range", host("gb10_node_id", 1 << 20)),
    ("node_id.duplicate", host("gb10_node_id", 1)),
    ("management.duplicate", host("ansible_host", "192.168.10.11")),
    ("management.duplicate", all_of(host("ansible_host", "192.168.10.11"), host("ansible_port", 22))),
    ("management.duplicate", all_of(group("ansible_host", "Spark.example."), host("ansible_host", "spark.example"))),
    ("management.duplicate", all_of(group("ansible_host", "fd00:0::1"), host("ansible_host", "fd00::1"))),
    ("management.undeclared", unset("gb10_management_interface")),
    ("rails.none", group("gb10_fabric_rails", [])),
    ("rails.none", group("gb10_fabric_rails", {"name": "rail0"})),
    ("rail.invalid", group("gb10_fabric_rails", ["rail0"])),
    ("rail.incomplete", extra_rail(name="rail2", pf="enp1s0f1np1")),
    ("rail.unknown_key", rail(0, netwrok="10.1.0.0/16")),
    ("rail.name", rail(0, name="Rail_0")),
    ("rail.name", rail(0, name="r" * 43)),
    ("rail.duplicate", rail(1, name="rail0")),
    ("rail.unknown", host("gb10_fabric_pfs", {"rail9": "enp1s0f0np0"})),
    ("rail.unknown_host", rail(0, hosts=["spark1", "spark99"])),
    ("rail.alone", rail(0, hosts=["spark1"])),
    ("rail.absent", host("gb10_fabric_pfs", {"rail1": None})),
    ("host.no_rail", host("gb10_fabric_pfs", {"rail0": None, "rail1": None})),
    ("pfs.invalid", host("gb10_fabric_pfs", ["enp1s0f0np0"])),
    ("pf.name", rail(0, pf="enp1s0 f0")),
    ("pf.name", host("gb10_fabric_pfs", {"rail0": "an-interface-name"})),
    ("pf.is_vf", host("gb10_fabric_pfs", {"rail0": "enp1s0f0v0"})),
    ("pf.is_vlan", host("gb10_fabric_pfs", {"rail0": "enp1s0f0np0.10"})),
    ("pf.unknown", host("gb10_fabric_pfs", {"rail0": "enp9s0f0np0"})),
    ("pf.duplicate", host("gb10_fabric_pfs", {"rail1": "enp1s0f0np0"})),
    ("pf.management", host("gb10_management_interface", "enp1s0f0np0")),
    ("netdev.length", all_of(rail(0, pf=LONG_PF[:14] + "x"), reported(LONG_PF[:14] + "x", totalvfs=4))),
    ("rdma.unknown", host("gb10_fabric_pfs", {"rail0": "ib0"})),
    ("rdma.name", rail(0, pf_rdma="no such thing")),
    ("rdma.differs", host("gb10_pf_rdma", {"enp1s0f0np0": "mlx5_0"})),
    ("rdma.duplicate", host("gb10_fabric_pfs", {"rail1": {"name": "enP2p1s0f0np0", "rdma_device": "rocep1s0f0"}})),
    ("network.invalid", rail(0, network="10.100.0.0")),
    ("network.invalid", rail(0, network="10.300.0.0/16")),
    ("network.host_bits", rail(0, network="10.100.0.1/16")),
    ("network.leading_zero", rail(0, network="10.100.000.0/16")),
    ("network.leading_zero", rail(0, network="010.100.0.0/16")),
    ("network.family", rail(0, network="fd00:1::/48")),
    ("network.too_small", rail(0, network="10.100.0.0/24")),
    ("network.too_small", rail(0, network="10.100.0.0/31")),
    ("pf.is_rdma", rail(0, pf="rocep1s0f0")),
    ("pf.is_rdma", host("gb10_fabric_pfs", {"rail0": "mlx5_0"})),
    ("network.same", rail(1, network="10.100.0.0/16")),
    ("network.overlap", rail(1, network="10.100.128.0/17")),
    ("network.management", rail(1, network="192.168.0.0/16")),
    ("network.management_address", all_of(group("gb10_management_networks", []), rail(1, network="192.168.0.0/16"))),
    # The first and the last address of a block.
    ("network.management", group("gb10_management_networks", ["10.100.0.0/32"])),
    ("network.management", group("gb10_management_networks", ["10.100.255.255/32"])),
    ("network.cluster", rail(1, network="10.42.0.0/16")),
    ("network.cluster", rail(1, network="10.40.0.0/13")),
    ("network.cluster", group("gb10_service_cidr", "10.100.0.0/17,fd00:43::/112")),
    ("cluster.overlap", group("gb10_service_cidr", "10.42.128.0/20")),
    ("cluster.management", group("gb10_cluster_cidr", "192.168.0.0/16")),
    ("cluster.management_address", host("ansible_host", "10.42.0.7")),
    ("management.outside", host("ansible_host", "172.20.0.9")),
    ("network.special", rail(1, network="169.254.0.0/16")),
    ("network.special", rail(1, network="127.0.0.0/8")),
    ("network.public", rail(1, network="8.8.0.0/16")),
    ("network6.family", rail(0, network6="10.200.0.0/16")),
    ("network6.invalid", rail(0, network6="fd00::zz/48")),
    ("network6.not_ula", rail(0, network6="2a00:1450::/48")),
    ("network6.too_small", rail(0, network6="fd00:1::/63")),
    ("network6.too_small", rail(0, network6="fd00:1::/65")),
    ("network.same", all_of(rail(0, network6="fd00:1::/48"), rail(1, network6="fd00:1::/48"))),
    ("network.overlap", all_of(rail(0, network6="fd00:1::/32"), rail(1, network6="fd00:1:1::/48"))),
    ("management_network.invalid", host("gb10_management_networks", ["192.168.10"])),
    ("management_network.host_bits", host("gb10_management_networks", "192.168.10.1/24")),
    ("cluster_network.invalid", group("gb10_cluster_cidr", "pods")),
    ("address.in_use", group("gb10_fabric_reserved_addresses", ["10.100.0.1"])),
    ("network.management_address", host("ansible_host", "10.101.1.1")),
    ("reserved.invalid", group("gb10_fabric_reserved_addresses", ["10.100.0.254/24"])),
    ("vf_count.invalid", group("gb10_fabric_vf_count", 0)),
    ("vf_count.invalid", group("gb10_fabric_vf_count", "many")),
    ("vf_count.invalid", group("gb10_fabric_vf_count", 200)),
    ("vf_count.hardware", group("gb10_fabric_vf_count", 5)),
    ("vf_count.unknown", unset("gb10_pf_totalvfs")),
    ("vf_count.uneven", reported("enp1s0f0np0", totalvfs=2)),
    ("sriov.disabled", reported("enp1s0f0np0", totalvfs=0)),
    ("mtu.invalid", group("gb10_fabric_mtu", "jumbo")),
    ("mtu.low", group("gb10_fabric_mtu", 1279)),
    ("mtu.roce", group("gb10_fabric_mtu", 1280)),
    ("mtu.roce", group("gb10_fabric_mtu", 4096 + ROCE_HEADER_BYTES - 1)),
    ("mtu.port", reported("enp1s0f0np0", max_mtu=4096)),
    ("scheme.unknown", group("gb10_fabric_scheme", "flat")),
    ("topology.unknown", group("gb10_fabric_topology", "torus")),
    ("topology.single", group("gb10_fabric_topology", "single")),
    ("topology.direct", group("gb10_fabric_topology", "direct")),
    ("subnet_prefix.invalid", group("gb10_fabric_subnet_prefix", 31)),
    ("mac_seed.invalid", group("gb10_fabric_mac_seed", 7)),
    ("group_value.differs", host("gb10_fabric_mtu", 8000)),
    ("nad.collision", last_pf("enP1s0f1np0")),
    ("nad.name", last_pf("enp1_0f0np0")),
    ("nad.length", all_of(rail(0, name="r" * 42), last_pf("enp101s0f1abc", "r" * 42))),
]
# a collision needs another host on a PF whose name differs only in case
PARTNERS: dict[str, Break] = {
    "nad.collision": lambda v: v["spark1"].update(gb10_fabric_pfs={"rail0": "enp1s0f1np1"}),
}


def rules(findings: Iterable[Finding]) -> set[str]:
    return {finding.rule.removeprefix("fabric.") for finding in findings}


def broken(count: int, *conflicts: tuple[str, Break]) -> list[Finding]:
    variables = fabric(count)
    for rule, change in conflicts:
        change(variables)
        PARTNERS.get(rule, lambda _: None)(variables)
    return plan_fabric(variables)[1]


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
