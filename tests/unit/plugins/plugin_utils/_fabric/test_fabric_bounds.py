# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test all values of all findings about fabrics at and beside the bounds of what is allowed."""

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric import checks, parse, plan
from fabric_conflicts import CONFLICTS, Break, all_of, broken, extra_rail, group, host, rail
from fabric_samples import PFS, Variables, fabric
from ring_samples import cabled, many_rings
from stored import compare, said, say_words

# Fabrics at and beside the bounds of what is allowed. Not each of them has a finding.
BOUNDS: dict[str, Break] = {
    **{
        f"rail1 in {network}": rail(1, network=network)
        for network in (
            "100.64.0.0/16",
            "100.128.0.0/16",
            "172.16.0.0/16",
            "224.0.0.0/16",
            "240.0.0.0/16",
            "0.0.0.0/32",
            "10.101.0.0/22",
            "10.101.0.0/23",
            "10.101.0.0/25",
            "10.101.0.0/28",
            "10.101.0.0/32",
            "10.0.0.0/8",
            None,
            "",
            7,
        )
    },
    **{
        f"rail1 also in {network}": rail(1, network6=network)
        for network in (
            "fd00:1::/62",
            "fd00:1::/64",
            "fe80::/48",
            "ff00::/48",
            "::/128",
            "::1/128",
            "fd00:1::1:0/112",
            "4000::/48",
            "fd00:1::1/48",
            "fd00:0::01/48",
            "",
            None,
        )
    },
    **{
        f"VF count {count!r} of 2 or 4": all_of(
            group("gb10_fabric_vf_count", count), group("gb10_pf_totalvfs", {**PFS, "enp1s0f0np0": 2})
        )
        for count in (1, 2, "2", "3", 127, 128, -1, True, 1.5, None, "auto")
    },
    "small blocks and few VFs": all_of(
        group("gb10_pf_totalvfs", {**PFS, "enp1s0f0np0": 1}),
        rail(0, network="10.100.0.0/24"),
        rail(1, network="10.101.0.0/23"),
    ),
    "too many VFs on the last host": all_of(
        rail(0, network="10.100.0.0/22"), host("gb10_pf_totalvfs", dict.fromkeys(PFS, 5))
    ),
    "subnets of /30": group("gb10_fabric_subnet_prefix", 30),
    "a host on a rail that is none": group(
        "gb10_fabric_rails",
        [7, {"name": "rail0", "pf": "enp1s0f0np0", "network": "10.1.0.0/16", "hosts": ["spark1", "spark2"]}],
    ),
    "PFs of no rails": all_of(group("gb10_fabric_rails", []), host("gb10_fabric_pfs", {"rail0": "enp1s0f0np0"})),
    "a key like two others": group("gb10_fabric_rails", [{"name": "a", "pf": "enp1s0f0np0", "network66": "fd00::/48"}]),
    "two management networks in a block": group("gb10_management_networks", ["10.100.0.0/24", "10.100.9.0/24"]),
    "one VF in one /64": all_of(group("gb10_fabric_vf_count", 1), rail(0, network6="fd00:1::/64")),
    "a small block of nobody": rail(0, network="10.100.0.0/31", hosts=[]),
    "a small block for one VF": all_of(group("gb10_fabric_vf_count", 1), rail(0, network="10.100.0.0/30")),
    "the largest subnets, IDs and VF counts": all_of(
        group("gb10_fabric_subnet_prefix", 16), host("gb10_node_id", 65534), group("gb10_fabric_vf_count", 127)
    ),
    "a small block and no host": all_of(group("gb10_node_id", None), rail(0, network="10.100.0.0/32")),
    "too few addresses": all_of(rail(0, network="10.100.0.0/29"), host("gb10_node_id", 9)),
    "few addresses": all_of(
        group("gb10_fabric_vf_count", 1), rail(0, network="10.100.0.0/29"), host("gb10_node_id", 6)
    ),
    "one too few": all_of(group("gb10_fabric_vf_count", 1), rail(0, network="10.100.0.0/29"), host("gb10_node_id", 7)),
    "small subnets": group("gb10_fabric_subnet_prefix", 29),
    "small subnets, high id": all_of(group("gb10_fabric_subnet_prefix", 29), host("gb10_node_id", 7)),
    "large subnets": all_of(group("gb10_fabric_subnet_prefix", "16"), group("gb10_fabric_vf_count", 1)),
    "too large subnets": group("gb10_fabric_subnet_prefix", 15),
    "one subnet per rail": all_of(
        group("gb10_fabric_scheme", "subnet-per-rail"), rail(0, network="10.100.0.0/22", network6="fd00:1::/64")
    ),
    "node id 254": host("gb10_node_id", 254),
    "node id 65535": host("gb10_node_id", 65535),
    "node id 65536": host("gb10_node_id", 65536),
    "node id as text": host("gb10_node_id", "7"),
    "two of one id": all_of(
        host("gb10_node_id", 1),
        group("gb10_fabric_reserved_addresses", ["10.100.0.1", "fd00:1::1", "10.101.0.3", "x"]),
        rail(0, network6="fd00:1::/48"),
    ),
    "all of one id": group("gb10_node_id", 1),
    "one address for all": all_of(group("ansible_host", "fd00::1"), group("gb10_management_interface", "")),
    "MTU 1280": group("gb10_fabric_mtu", "1280"),
    "MTU 67": group("gb10_fabric_mtu", 67),
    "MTU 68": group("gb10_fabric_mtu", 68),
    "MTU 9978": group("gb10_fabric_mtu", 9978),
    "MTU 65535": group("gb10_fabric_mtu", 65535),
    "MTU 65536": group("gb10_fabric_mtu", 65536),
    "an unknown MTU": all_of(group("gb10_pf_max_mtu", None), group("gb10_fabric_mtu", 9979)),
    "odd facts": all_of(
        group("gb10_pf_max_mtu", [1]), group("gb10_pf_rdma", 5), group("gb10_pf_pci", {"enp1s0f0np0": 5})
    ),
    "PCI addresses": all_of(
        group("gb10_pf_pci", {"enp1s0f0np0": "0000:01:00.0"}),
        group("gb10_fabric_vf_count", 5),
        host("gb10_pf_totalvfs", {**PFS, "enp1s0f0np0": 0}),
    ),
    "VFs off": all_of(group("gb10_pf_totalvfs", {**PFS, "enp1s0f0np0": 0})),
    "no PFs": group("gb10_pf_totalvfs", {}),
    "facts of nobody": group("gb10_pf_totalvfs", None),
    "assumed": all_of(
        group("gb10_pf_totalvfs", None), group("gb10_assumed_vf_count", 2), host("gb10_assumed_vf_count", "3")
    ),
    "more VFs than firmware has": group("gb10_pf_totalvfs", dict.fromkeys(PFS, 500)),
    "RDMA devices": all_of(
        group("gb10_pf_rdma", {"enp1s0f0np0": "rocep1s0f0", "enP2p1s0f0np0": "mlx5_1"}),
        host("gb10_fabric_pfs", {"rail0": {"name": "enp1s0f1np1", "rdma_device": "rocep1s0f0"}, "rail1": {}}),
    ),
    "bad names of RDMA devices": all_of(
        rail(0, pf_rdma="0mlx"),
        rail(1, pf_rdma=""),
        host("gb10_fabric_pfs", {"rail1": {"name": "ens9", "rdma_device": "-"}}),
    ),
    "the RDMA device of a rail": all_of(rail(0, pf_rdma="mlx5_0"), host("gb10_fabric_pfs", {"rail0": "enp1s0f1np1"})),
    "one PF for two": host("gb10_fabric_pfs", {"rail0": "enP2p1s0f0np0"}),
    "no rail for one": host("gb10_fabric_pfs", {"rail0": None, "rail1": None}),
    "no PFs for one": host("gb10_fabric_pfs", {}),
    "rails of no such names": host("gb10_fabric_pfs", {"rail8": "a", "rail9": None, "rail0": "enp1s0f1np1"}),
    "rails that are none": group(
        "gb10_fabric_rails", [None, 7, {}, {"name": "a", "pf": "b"}, {"nam": "a", "pf": "", "colour": 1}]
    ),
    "a rail of two hosts": rail(0, hosts=["spark1", "spark2"]),
    "a rail of one host": rail(0, hosts="spark1"),
    "a rail of others": rail(0, hosts=["spark7", "spark1", "spark8"]),
    "a rail of nobody": rail(0, hosts=[]),
    "names of rails": all_of(rail(0, name="-a"), rail(1, name="r" * 42)),
    "three alike": all_of(extra_rail(name="rail0", pf="enp1s0f1np1", network="10.101.128.0/17")),
    "three rails in each other": all_of(
        rail(0, network6="fd00:1::/48"),
        rail(1, network6="fd00:1::/48", network="10.100.0.0/17"),
        extra_rail(name="rail2", pf="enp1s0f1np1", network="10.100.0.0/15", network6="fd00::/16"),
    ),
    "a long PF": all_of(rail(0, pf="enp101s0f0abcd"), group("gb10_pf_totalvfs", {**PFS, "enp101s0f0abcd": 1})),
    "a PF that is long with two digits": all_of(
        rail(0, pf="enp101s0f0abc"), group("gb10_pf_totalvfs", {**PFS, "enp101s0f0abc": 11})
    ),
    "networks of pods": all_of(
        group("gb10_cluster_cidr", ["10.42.0.0/16", "fd42::/48"]),
        group("gb10_service_cidr", "10.42.1.0/24, fd42::/112"),
    ),
    "networks of K3s": all_of(
        host("k3s_config", {"cluster-cidr": "10.100.1.0/24", "service-cidr": ""}),
        host("k3s_service_cidr", "10.101.1.0/24"),
        group("gb10_cluster_cidr", "10.101.0.0/24"),
    ),
    "no networks of K3s": all_of(
        group("k3s_config", [1]),
        group("gb10_service_cidr", "10.42.00.0/16"),
        group("gb10_cluster_cidr", "10.42.0.1/16"),
    ),
    "management networks": all_of(
        group("gb10_management_networks", ["10.100.0.0/24", "192.168.0.0/16", "fd00:1::/64", "10.42.0.0/16"]),
        rail(0, network6="fd00:1::/48"),
        host("ansible_host", "10.100.0.9"),
    ),
    "no management networks": all_of(group("gb10_management_networks", None), group("ansible_host", "spark.local")),
    "addresses in blocks": all_of(
        group("gb10_management_networks", ["192.168.10.0/24"]),
        group("ansible_host", "10.101.0.7"),
        host("ansible_host", "10.42.0.7"),
    ),
    "management elsewhere": all_of(
        host("ansible_host", "127.0.0.1"), group("gb10_management_networks", ["172.20.0.0/16", "fd00::/64"])
    ),
    "switch for two": group("gb10_fabric_topology", "mixed"),
    "other values of one": all_of(
        host("gb10_fabric_mtu", 8000), host("gb10_fabric_transit", "TRUE"), host("gb10_fabric_mac_seed", "")
    ),
    "no values of one": all_of(*(host(key, None) for key in ("gb10_fabric_rails", "gb10_node_id", "ansible_host"))),
}


def ports(count: int, *numbers: int) -> Variables:
    """Return hosts behind one address that differ by their port."""
    every = fabric(count, ansible_host="127.0.0.1").values()
    return {f"h{n}": {**own, "ansible_port": n} for own, n in zip(every, numbers, strict=True)}


def on_first_rail(variables: Variables, **changes: object) -> Variables:
    for own in variables.values():
        own["gb10_fabric_rails"][0].update(changes)
    return variables


def torn(variables: Variables, *rails: str) -> Variables:
    """Remove the cables of these names."""
    for own in variables.values():
        own["gb10_fabric_rails"] = [one for one in own["gb10_fabric_rails"] if one["name"][:-1] not in rails]
        own["gb10_fabric_pfs"] = {name: pf for name, pf in own["gb10_fabric_pfs"].items() if name[:-1] not in rails}
    return variables


def without_facts(count: int) -> Variables:
    """Return hosts of which only the first was asked."""
    _first, *others = (variables := fabric(count)).values()
    for own in others:
        own |= {"gb10_pf_totalvfs": None, "gb10_assumed_vf_count": 4}
    return variables


def with_vfs(variables: Variables, count: int, *first: int) -> Variables:
    """Set how many VFs the ports have, and those of the first ports of the first host."""
    for own in variables.values():
        own["gb10_pf_totalvfs"] = dict.fromkeys(own["gb10_pf_totalvfs"], count)
    one = variables["spark1"]
    one["gb10_pf_totalvfs"] |= dict(zip(one["gb10_fabric_pfs"].values(), first, strict=False))
    return variables


SMALL = [{"name": "rail0", "pf": "enp1s0f0np0", "network": "10.100.0.0/29"}]
SHAPES: dict[str, Variables] = {
    "no hosts": {},
    "one host": fabric(1),
    "single": fabric(1, gb10_fabric_topology="single"),
    "direct, of one": fabric(1, gb10_fabric_topology="direct"),
    "single, of two": fabric(2, gb10_fabric_topology="single"),
    "ring of two": fabric(2, gb10_fabric_topology="ring"),
    "chain on a switch": fabric(3, gb10_fabric_topology="chain"),
    "ring of nine": cabled(9),
    "ring, as a chain": cabled(4, gb10_fabric_topology="chain"),
    "chain, as a ring": cabled(4, closed=False, gb10_fabric_topology="ring"),
    "chain of three": cabled(3, closed=False),
    "two rings, as a ring": {host: {**own, "gb10_fabric_topology": "ring"} for host, own in many_rings(2, 3).items()},
    "five of one id": fabric(5, gb10_node_id=1, ansible_host="h"),
    "15 hosts in small subnets": fabric(15, gb10_fabric_subnet_prefix=28),
    "14 hosts in small subnets": fabric(14, gb10_fabric_subnet_prefix=28),
    **{
        f"{count} hosts in a block for 6": fabric(count, gb10_fabric_subnet_prefix=29, gb10_fabric_rails=SMALL)
        for count in (6, 7, 14, 15)
    },
    "transit in a ring": cabled(4, gb10_fabric_transit=True, gb10_fabric_vf_count=1, gb10_fabric_subnet_prefix=17),
    "transit without room": cabled(4, gb10_fabric_transit=True, gb10_fabric_vf_count=2, gb10_fabric_subnet_prefix=17),
    "two behind one address": ports(2, 2201, 2202),
    "16 hosts, 15 without facts": without_facts(16),
    "ring with a gap": torn(cabled(5), "ring34"),
    "three on a cable": on_first_rail(cabled(3), hosts=["spark1", "spark2", "spark3"]),
    "transit perhaps": cabled(4, gb10_fabric_transit="perhaps"),
    "transit, addresses in use": cabled(
        4, gb10_fabric_transit=True, gb10_fabric_reserved_addresses=["10.101.255.1", "10.104.255.1"]
    ),
    "transit in two pairs": torn(cabled(4, gb10_fabric_transit=True, gb10_fabric_topology="mixed"), "ring23", "ring41"),
    "transit, one rail without room": with_vfs(cabled(4, gb10_fabric_transit=True, gb10_fabric_subnet_prefix=17), 1, 2),
    "transit in one subnet": cabled(4, gb10_fabric_transit="True", gb10_fabric_scheme="subnet-per-rail"),
    "transit in a ring of three": cabled(3, gb10_fabric_transit=True, gb10_fabric_vf_count=1),
    "transit on a switch": fabric(2, gb10_fabric_transit=True),
}


def test_all_findings_of_all_conflicts_have_the_values_that_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    say_words(monkeypatch, checks._RULES, parse._RULES, plan._RULES)
    found = {f"{number} {rule}": broken(4, (rule, change)) for number, (rule, change) in enumerate(CONFLICTS)}
    for name, change in BOUNDS.items():
        found[name] = broken(4, ("", change))
    for name, variables in SHAPES.items():
        found[name] = plan.plan_fabric(variables)[1]
    compare("fabric_findings", {name: said(findings) for name, findings in found.items()})
