# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the whole drawing, picture, verdict and suggestion of many cablings, and the whole plan of some fabrics."""

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric import cabling, plan
from cabling_samples import End, cable, facts, ring
from fabric_samples import PFS, Variables, fabric
from ring_samples import cabled
from stored import compare, flat, said, say_words

Facts = dict[str, list[dict[str, Any]]]


def switched(*hosts: int, cage: int = 0) -> list[tuple[End, ...]]:
    return [tuple((host, cage, half) for host in hosts) for half in (0, 1)]


def changed(found: Facts, **ports: dict[str, Any]) -> Facts:
    """Change facts of ports, which are named as spark1_0: the host and the number of its port."""
    for name, changes in ports.items():
        host, number = name.split("_")
        found[host][int(number)] |= changes
    return found


def named(*ports: tuple[str, str, list[str]]) -> list[dict[str, Any]]:
    return [{"name": name, "mac": mac, "carrier": True, "neighbours": seen} for name, mac, seen in ports]


def other_rails(variables: Variables, *rails: dict[str, Any]) -> Variables:
    return {host: {**own, "gb10_fabric_rails": list(rails)} for host, own in variables.items()}


RAIL = {"name": "a", "pf": "enp1s0f0np0", "network": "10.100.0.0/16"}
TAKEN = [
    {"name": "x", "pf": "enp1s0f1np1", "network": "10.50.0.0/16", "hosts": ["spark1", "spark2"]},
    {"name": "rail1", "pf": "enP2p1s0f1np1", "network": "10.60.0.0/16", "hosts": ["spark1", "spark2"]},
    {"name": "y", "pf": "enP2p1s0f0np0", "network": "10.100.0.0/16", "hosts": ["spark1", "spark2"]},
]
ENDS: list[tuple[End, ...]] = [*cable((1, 0), (2, 0)), *cable((1, 1), (2, 1))]
CABLINGS: dict[str, tuple[Facts, Variables]] = {
    "one host": (facts(1), fabric(1)),
    "one host, one port": ({"a": facts(1)["spark1"][3:]}, {}),
    "one host, its cages joined": (facts(1, *cable((1, 0), (1, 1))), fabric(1)),
    "one host, its halves on a switch": (facts(1, ((1, 0, 0), (1, 0, 1))), fabric(1)),
    "two hosts": (facts(2, *cable((1, 0), (2, 0))), fabric(2)),
    "two hosts, other cages": (facts(2, *cable((1, 1), (2, 0))), fabric(2)),
    "two hosts, both cages": (facts(2, *ENDS), fabric(2)),
    "two hosts, both cages crossed": (facts(2, *cable((1, 0), (2, 1)), *cable((1, 1), (2, 0))), fabric(2)),
    "two hosts, crossed halves": (facts(2, *cable((1, 0), (2, 0), crossed=True)), fabric(2)),
    "two hosts, one half": (facts(2, cable((1, 0), (2, 0))[1]), fabric(2)),
    "two hosts, both halves of one on a switch": (facts(2, ((1, 0, 0), (1, 0, 1), (2, 0, 0), (2, 0, 1))), fabric(2)),
    "two hosts, no cable": (facts(2), fabric(2)),
    "three hosts, no rails": (facts(3, *ring(3)), fabric(3, gb10_fabric_rails=[])),
    "ring of three": (facts(3, *ring(3)), cabled(3)),
    "ring of three, a host not read": ({h: own for h, own in facts(3, *ring(3)).items() if h != "spark3"}, cabled(3)),
    "ring of three, one cable elsewhere": (facts(3, *cable((1, 0), (3, 1)), *cable((2, 0), (1, 1))), cabled(3)),
    "ring of three, two cables in a pair": (facts(3, *cable((1, 0), (2, 1)), *cable((1, 1), (2, 0))), cabled(3)),
    "ring of three, a host to itself": (facts(3, *cable((1, 0), (1, 1)), *ring(3)[2:4]), cabled(3)),
    "ring of three, one half": (facts(3, *ring(3)[1:]), cabled(3)),
    "ring of four, alike": (
        facts(4, *cable((1, 0), (2, 0)), *cable((2, 1), (3, 1)), *cable((3, 0), (4, 0)), *cable((4, 1), (1, 1))),
        cabled(4),
    ),
    "ring of three, two cables alike": (facts(3, *cable((1, 0), (2, 0)), *cable((2, 1), (3, 1))), cabled(3)),
    "ring of three, two of three alike": (
        facts(3, *cable((1, 0), (2, 0)), *cable((2, 1), (3, 1)), *cable((3, 0), (1, 1))),
        cabled(3),
    ),
    "ring of three, halves of one on a switch": (
        facts(3, *cable((1, 0), (2, 0)), *cable((2, 1), (3, 1)), ((3, 0, 0), (3, 0, 1))),
        cabled(3),
    ),
    "ring of other names": (
        {
            "spark1": named(("mlx0", "1", ["2"]), ("mlx1", "6", [])),
            "spark2": named(("mlx0", "2", []), ("mlx1", "3", ["4"])),
            "spark3": named(("mlx0", "4", []), ("mlx1", "5", ["6"])),
        },
        cabled(3),
    ),
    "chain of three": (facts(3, *ring(3)[:-2]), cabled(3, closed=False)),
    "chain of three, but a ring": (facts(3, *ring(3)), cabled(3, closed=False)),
    "chain of eight": (facts(8, *ring(8)[:-2]), {}),
    "ring of nine": (facts(9, *ring(9)), {}),
    "two pairs": (facts(4, *cable((1, 0), (2, 1)), *cable((3, 0), (4, 1))), fabric(4)),
    "two rings": (facts(6, *ring(3), *[tuple((h + 3, c, x) for h, c, x in link) for link in ring(3)]), {}),
    "a switch and a pair": (
        facts(5, *switched(1, 2, 3), *cable((4, 0), (5, 1))),
        fabric(5, gb10_fabric_topology="mixed"),
    ),
    "a switch with a tail": (facts(4, *switched(1, 2, 3), *cable((3, 1), (4, 0))), fabric(4)),
    "a switch for four": (facts(4, *switched(1, 2, 3, 4), switch="crs812", switch_port="p1"), fabric(4)),
    "a switch for three of four": (facts(4, *switched(1, 2, 3), switch="crs812"), fabric(4)),
    "a switch for both halves": (facts(3, tuple((h, 0, x) for h in (1, 2, 3) for x in (0, 1))), fabric(3)),
    "a switch for both halves of one": (facts(3, ((1, 0, 0), (1, 0, 1), (2, 0, 0), (3, 0, 0))), fabric(3)),
    "two switches apart": (facts(4, *switched(1, 2), *switched(3, 4)), fabric(4)),
    "two switches apart, a blind port": (facts(4, *switched(1, 2), *switched(3, 4), link_local=False), fabric(4)),
    "two switches, one unplanned": (facts(3, *switched(1, 2, 3), *switched(1, 2, 3, cage=1)), fabric(3)),
    "weak ports": (
        changed(
            facts(2, *cable((1, 0), (2, 0))),
            spark1_0={"speed_mbps": 100000, "pcie_width": 2, "mtu_passes": 0, "mtu": 1500},
            spark1_1={"speed_mbps": None, "pcie_width": None, "mtu_passes": None},
            spark2_0={"pcie_max_width": 8, "mtu_passes": 8999},
            spark2_1={"pcie_width": 16, "pcie_max_width": None, "mtu": None, "mtu_passes": 9001, "speed_mbps": 200500},
        ),
        fabric(2),
    ),
    "unknown machines": (
        changed(
            facts(2, *cable((1, 0), (2, 0))),
            spark1_0={"carrier": False},
            spark1_2={"carrier": True, "neighbours": ["ee:ee", "ff:ff"]},
            spark1_3={"carrier": True, "neighbours": ["ee:ee"], "switch": "sw", "switch_port": "p7"},
            spark2_2={"carrier": True, "switch_port": "p8"},
            spark2_3={"carrier": True, "link_local": False},
        ),
        fabric(2),
    ),
    "names without a place": (
        {
            "b": named(("mlx0", "1", ["2"]), ("enp1s0f1np1", "3", ["4"]), ("zz9", "5", []), ("enP2p1s0f0np0", "7", [])),
            "a": named(("mlx1", "2", []), ("mlx0", "4", []), ("enp1s0f1np1", "6", []), ("enp1s0f0np0", "8", ["7"])),
        },
        {},
    ),
    "rails with other names": (
        facts(2, *ENDS),
        {
            host: {**own, "gb10_fabric_pfs": {"mixed": pf, "both": "enp1s0f1np1"}}
            for (host, own), pf in zip(
                other_rails(
                    fabric(2),
                    {"name": "mixed", "pf": "enp1s0f0np0", "network": "10.7.0.0/16", "network6": "fd00:7::/48"},
                    {"name": "both", "pf": "enp1s0f1np1", "network": "10.8.0.0/16"},
                ).items(),
                ("enp1s0f0np0", "enP2p1s0f0np0"),
                strict=True,
            )
        },
    ),
    "rails of other hosts": (facts(3, *switched(1, 2, 3), *cable((1, 1), (3, 1))), other_rails(fabric(3), *TAKEN)),
    "a rail of no host": (facts(2, *ENDS), other_rails(fabric(2), RAIL | {"hosts": ["spark9"]})),
    "a rail with IPv6": (facts(2, *ENDS), other_rails(fabric(2), RAIL | {"network6": "fd00:1::/48"})),
}


@pytest.mark.parametrize("text", ["drawn", "judged", "suggested"])
def test_what_is_said_of_all_cablings_is_what_is_stored(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    say_words(monkeypatch, cabling._RULES, cabling._finding.__self__)  # type: ignore[attr-defined]
    found: dict[str, list[str]] = {}
    for name, (seen, variables) in CABLINGS.items():
        ports, planned = cabling.ports_of(seen), plan.plan_fabric(variables)[0]
        if text == "drawn":
            found[name] = cabling.draw(ports)
        elif text == "judged":
            found[name] = said(cabling.judge(ports, planned)) + [
                f"moved: {line}" for line in said(cabling.moved(ports, planned))
            ]
        else:
            alone, fitting = cabling.suggest(ports), cabling.suggest(ports, planned)
            found[name] = flat(alone) + (["with the plan", *flat(fitting)] if fitting != alone else [])
    compare(f"cabling_{text}", found)


PICTURES: dict[str, Facts] = {
    "none": {},
    "one": facts(1, *cable((1, 0), (1, 1))),
    "five": facts(5, *cable((1, 0), (2, 1)), *cable((1, 1), (3, 0)), *cable((2, 0), (4, 1)), *switched(3, 4, 5)[:1]),
    "escaped": {"a<b&c": named(("<&>", "1", []), ("enp1s0f0np0", "2", [])), "d": named(("e", "3", []))[:1]},
}


def test_pictures_and_maps_are_those_that_are_stored() -> None:
    found = {name: cabling.draw_svg(cabling.ports_of(seen)).splitlines() for name, seen in PICTURES.items()}
    for name in ("two hosts, other cages", "ring of three, one cable elsewhere", "one host", "two hosts, no cable"):
        seen, variables = CABLINGS[name]
        found[f"map: {name}"] = cabling.write_map(cabling.ports_of(seen), plan.plan_fabric(variables)[0]).splitlines()
    compare("cabling_pictures", found)


LAN = {"lo": [], "wlP9s9": ["192.168.20.7/24"], "enP7s7": ["fe80::1/64", "192.168.10.11/24"]}
VFS = {
    f"en{half}1s0f0v{index}": [f"10.{100 + rail}.{index}.1/24"]
    for rail, half in enumerate(("p", "P2p"))
    for index in range(4)
}
FIRST, *_REST, LAST = VFS
INVENTORY = {"ansible_host": "192.168.10.11", "gb10_management_interface": "enP7s7"}
DIFFERENCES: dict[str, tuple[dict[str, list[str]], dict[str, Any]]] = {
    "as planned": (LAN | VFS, {}),
    "undeclared": (LAN, {"gb10_management_interface": None}),
    "another interface": (LAN, {"gb10_management_interface": "wlP9s9"}),
    "no such interface": (LAN, {"gb10_management_interface": "eth0"}),
    "no such interface, by name": (LAN, {"gb10_management_interface": "eth0", "ansible_host": "spark1"}),
    "two holders": (LAN | {"br0": ["192.168.10.11/24"]}, {}),
    "two other holders": ({"br0": ["192.168.10.11/16"], "br1": ["192.168.10.11/24"], "enP7s7": []}, {}),
    "by name": (LAN, {"ansible_host": "spark1"}),
    "no address": (LAN, {"ansible_host": None}),
    "another prefix": (LAN | {FIRST: ["10.100.0.1/16"]}, {}),
    "IPv6 alone": (LAN | {FIRST: ["fe80::1/64"]}, {}),
    "IPv6 too": (LAN | VFS | {FIRST: ["fe80::1/64", *VFS[FIRST]]}, {}),
    "more addresses": (LAN | VFS | {LAST: ["fe80::1/64", "10.0.0.9/8", "10.0.0.8/8"]}, {}),
    "another id": (LAN | {name: [own[0].replace(".1/", ".7/")] for name, own in VFS.items()}, {}),
    "other ids": (LAN | {FIRST: ["10.100.0.7/24"], LAST: ["10.101.3.8/24"]}, {}),
    "some of another id": (LAN | VFS | {LAST: ["10.101.3.8/24"]}, {}),
}


def test_all_differences_of_a_host_from_the_inventory_are_those_that_are_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    say_words(monkeypatch, cabling._RULES)
    planned = plan.plan_fabric(fabric(1))[0]
    found = {
        name: said(cabling.check_hosts(planned, {"spark1": INVENTORY | changes}, {"stranger": LAN, "spark1": known}))
        for name, (known, changes) in DIFFERENCES.items()
    }
    compare("cabling_differences", found)


def with_rail(variables: Variables, index: int, **changes: Any) -> Variables:
    rails = [dict(rail) for rail in variables["spark1"]["gb10_fabric_rails"]]
    rails[index] |= changes
    return other_rails(variables, *rails)


PLANS: dict[str, Variables] = {
    "nothing": {},
    "two hosts, one without facts": {
        **fabric(2, gb10_fabric_vf_count=1),
        "spark2": {**fabric(2)["spark2"], "gb10_fabric_vf_count": "2", "gb10_pf_totalvfs": None},
    },
    "IPv6": with_rail(
        with_rail(fabric(2, gb10_fabric_vf_count=2), 0, network6="fd00:1::/48"), 1, network6="fd00:2::/64"
    ),
    "IPv6, one subnet": with_rail(
        fabric(2, gb10_fabric_vf_count=2, gb10_fabric_scheme="subnet-per-rail"), 1, network6="fd00:2::/64"
    ),
    "small blocks": with_rail(fabric(2, gb10_fabric_vf_count=3), 0, network="10.100.0.0/23"),
    "the last address": with_rail(fabric(1, gb10_fabric_vf_count=2, gb10_node_id=255), 0, network="10.100.0.0/24"),
    "behind the last": with_rail(fabric(1, gb10_fabric_vf_count=2, gb10_node_id=256), 0, network="10.100.0.0/24"),
    "small subnets": fabric(2, gb10_fabric_vf_count=2, gb10_fabric_subnet_prefix=29, gb10_fabric_mac_seed="other"),
    "ports of its own": {
        **fabric(2, gb10_fabric_vf_count=1),
        "spark2": {
            **fabric(2, gb10_fabric_vf_count=1)["spark2"],
            "gb10_fabric_pfs": {"rail0": {"name": "enp1s0f1np1", "rdma_device": "mlx5_3"}, "rail1": None},
        },
    },
    "chain with transit": cabled(4, closed=False, gb10_fabric_vf_count=1, gb10_fabric_transit=True),
    "ring of five with transit": cabled(5, gb10_fabric_vf_count=1, gb10_fabric_transit=True),
    "transit with room for one": with_rail(
        cabled(4, gb10_fabric_vf_count=2, gb10_fabric_transit=True), 1, network="10.151.0.0/23"
    ),
    "ids in another order": {host: {**own, "gb10_node_id": 9 - own["gb10_node_id"]} for host, own in fabric(3).items()},
    "firmware with many": fabric(1, gb10_pf_totalvfs=dict.fromkeys(PFS, 500)),
    "management": fabric(
        2, gb10_management_interface="", gb10_pf_max_mtu={}, gb10_fabric_topology="direct", gb10_fabric_mtu=1500
    ),
}


def test_plans_are_those_that_are_stored() -> None:
    found = {}
    for name, variables in PLANS.items():
        planned = plan.plan_fabric(variables)[0]
        large = {"hosts": {}} if name == "firmware with many" else planned.as_dict()
        for host in large["hosts"].values():
            host["pfs"] = [pf | {"routes": [" ".join(route.values()) for route in pf["routes"]]} for pf in host["pfs"]]
        found[name] = [*plan.format_plan(planned).splitlines(), *flat(large)]
    for name, variables in {
        "eight in a ring": cabled(8),
        "nine in a ring": cabled(9),
        "five hosts, two kinds": {
            host: {**own, "gb10_fabric_pfs": {"rail0": "enp1s0f1np1"} if own["gb10_node_id"] > 4 else {}}
            for host, own in fabric(9).items()
        },
        "two hosts": fabric(2),
        "one host": fabric(1),
    }.items():
        found[f"shown: {name}"] = plan.format_plan(plan.plan_fabric(variables)[0]).splitlines()
    compare("fabric_plans", found)
