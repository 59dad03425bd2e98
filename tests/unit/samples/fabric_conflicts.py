# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What can be wrong with the variables of a fabric, by the rule that has to report it."""

import copy
from collections.abc import Callable
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._common.terms import ROCE_HEADER_BYTES
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import plan_fabric
from fabric_samples import PFS, Variables, fabric

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
    # Leading zeros of IPv6 are no fault, and an IPv4 network here is wrong with or without them.
    ("network6.not_ula", rail(0, network6="0200::/48")),
    ("network6.invalid", rail(0, network6="010.1.0.0/16")),
]
# a collision needs another host on a PF whose name differs only in case
PARTNERS: dict[str, Break] = {
    "nad.collision": lambda v: v["spark1"].update(gb10_fabric_pfs={"rail0": "enp1s0f1np1"}),
}


def broken(count: int, *conflicts: tuple[str, Break]) -> list[Finding]:
    variables = fabric(count)
    for rule, change in conflicts:
        change(variables)
        PARTNERS.get(rule, lambda _: None)(variables)
    return plan_fabric(variables)[1]
