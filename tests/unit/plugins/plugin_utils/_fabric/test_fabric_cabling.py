# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the cabling is drawn, and that every miswiring is named, from what the ports of all hosts see."""

import random
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from itertools import pairwise
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric import cabling
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.cabling import (
    about_ports,
    check_hosts,
    judge,
    ports_of,
    suggest,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import plan_fabric
from cabling_samples import End, cable, facts, ring
from fabric_samples import fabric
from ring_samples import cabled


def rules(found: dict[str, list[dict[str, Any]]], variables: dict[str, Any]) -> list[str]:
    findings = cabling.judge(cabling.ports_of(found), plan_fabric(variables)[0])
    return [finding.rule.removeprefix("cabling.") for finding in findings]


@pytest.mark.parametrize("count", [3, 4, 6, 8])
def test_a_ring_like_that_of_the_inventory_has_no_finding(count: int) -> None:
    found = facts(count, *ring(count))
    assert rules(found, cabled(count)) == []
    drawn = cabling.draw(cabling.ports_of(found))
    assert len(drawn) == count
    assert drawn[0] == (
        "spark1 cage 0 === spark2 cage 1 (enp1s0f0np0 - enp1s0f1np1, enP2p1s0f0np0 - enP2p1s0f1np1; 200 Gb/s;"
        " PCIe x4; MTU 9000 passes)"
    )


def test_a_switch_and_a_port_without_a_cable_are_drawn() -> None:
    rails = [tuple((host, 0, half) for host in (1, 2, 3, 4)) for half in (0, 1)]
    found = facts(4, *rails, switch="crs812", switch_port="qsfp56-1")
    assert rules(found, fabric(4)) == []
    drawn = cabling.draw(cabling.ports_of(found))
    assert drawn[0].startswith("switch: spark1 enp1s0f0np0 (crs812 port qsfp56-1), spark2 enp1s0f0np0, ")
    assert "spark4 enP2p1s0f1np1: no link" in drawn


def test_one_end_of_a_cable_suffices_and_the_order_of_ports_does_not_matter() -> None:
    found = facts(3, *ring(3))
    whole = cabling.segments(cabling.ports_of(found))
    for port in found["spark2"]:
        port["neighbours"] = []
    ports = [cabling.Port.of(host, fact) for host, ports in found.items() for fact in ports]
    random.Random(1).shuffle(ports)
    joined = [[(port.host, port.name) for port in segment] for segment in cabling.segments(ports)]
    assert joined == [[(port.host, port.name) for port in segment] for segment in whole]


def test_ports_that_one_port_sees_are_on_its_switch() -> None:
    found = facts(4, tuple((host, 0, 0) for host in (1, 2, 3, 4)))
    for name in ("spark2", "spark3", "spark4"):
        for port in found[name]:
            port["neighbours"] = []
    assert [len(segment) for segment in cabling.segments(cabling.ports_of(found))] == [4]


def test_two_halves_of_one_cage_that_meet_through_a_switch_are_no_loop() -> None:
    assert rules(facts(1, ((1, 0, 0), (1, 0, 1))), fabric(1)) == []


def alike(count: int) -> list[tuple[End, ...]]:
    """Return a ring from like to like cages; if ``count`` is odd, one cable has to join different ones."""
    ends = [(host, (host + 1) % 2) for host in range(1, count + 1)]
    last = cable((count, ends[-1][1]), (1, 1))
    return [link for host, cage in ends[:-1] for link in cable((host, cage), (host + 1, cage))] + last


MISWIRED: list[tuple[str, list[tuple[End, ...]], list[str]]] = [
    (
        "p0-p0",
        [*cable((1, 0), (2, 0)), *cable((2, 1), (3, 1)), *cable((3, 0), (1, 1))],
        ["same_cage"] * 2 + ["inventory"] * 4,
    ),
    ("crossed halves", [*cable((1, 0), (2, 1), True), *ring(3)[2:]], ["halves"] + ["inventory"] * 2),
    ("one half", [*ring(3)[1:]], ["half_missing", "inventory"]),
    (
        "other cage",
        [*cable((1, 1), (2, 1)), *cable((2, 0), (3, 1)), *cable((3, 0), (1, 0))],
        ["same_cage"] * 2 + ["inventory"] * 4,
    ),
    ("two cables", [*cable((1, 0), (2, 1)), *cable((1, 1), (2, 0))], ["double"] + ["inventory"] * 4),
    ("one host", [*cable((1, 0), (1, 1)), *ring(3)[2:4]], ["loop"] + ["inventory"] * 4),
    ("no cable", [], ["inventory"] * 6),
]


CABLINGS = [(count, links(count)) for count in (3, 4, 6) for links in (ring, alike)]


@pytest.mark.parametrize(("count", "links"), CABLINGS)
def test_rings_of_both_cablings_are_planned_from_their_map_and_each_exchange_of_cages_is_named(
    count: int, links: list[tuple[End, ...]]
) -> None:
    ports = ports_of(facts(count, *links))
    variables = mapped(fabric(count, gb10_fabric_rails=[]), ports)
    plan, findings = plan_fabric(variables)
    same = 0 if links == ring(count) else count - 1 if count % 2 else 1
    assert ([f for f in findings if f.severity == "error"], plan.topology) == ([], "ring")
    assert [f.rule for f in judge(ports, plan)] == ["cabling.same_cage"] * same
    assert {f.severity for f in judge(ports, plan)} <= ({"warning"} if count % 2 else {"info"})
    for host in range(1, count + 1):
        other = [tuple((h, 1 - c if h == host else c, half) for h, c, half in link) for link in links]
        moved = [*cabling.moved(ports_of(facts(count, *other)), plan)]
        assert len(moved) == 4
        assert all(f"spark{host} " in finding.reason for finding in moved)


def mapped(variables: dict[str, Any], ports: Sequence[cabling.Port]) -> dict[str, Any]:
    """Return the variables of hosts with those of the map of their cables, which come after them."""
    written = yaml.safe_load(cabling.write_map(ports, plan_fabric(variables)[0]))["gb10_nodes"]["hosts"]
    return {host: {**own, **written[host]} for host, own in variables.items()}


@pytest.mark.parametrize("count", [3, 4, 6])
def test_the_map_of_a_ring_that_was_cabled_in_another_way_moves_no_address(count: int) -> None:
    variables = cabled(count)
    before = plan_fabric(variables)[0]
    after, findings = plan_fabric(mapped(variables, ports_of(facts(count, *alike(count)))))
    assert [f for f in findings if f.severity == "error"] == []
    assert {host: {vf.address for vf in own.vfs} for host, own in after.hosts.items()} == {
        host: {vf.address for vf in own.vfs} for host, own in before.hosts.items()
    }
    assert judge(ports_of(facts(count, *alike(count))), after)[0].rule == "cabling.same_cage"


def test_new_cables_get_names_and_blocks_that_no_rail_has() -> None:
    variables = cabled(4)
    for own in variables.values():
        own["gb10_fabric_rails"][0]["name"], own["gb10_fabric_rails"][1]["network"] = "rail0", "10.100.0.0/15"
    links = [*cable((1, 0), (3, 1)), *cable((3, 0), (2, 1)), *cable((2, 0), (4, 1)), *cable((4, 0), (1, 1))]
    rails = suggest(ports_of(facts(4, *links)), plan_fabric(variables)[0])["group"]["gb10_fabric_rails"]
    assert [(rail["name"], rail["network"]) for rail in rails if rail["name"].startswith("rail")] == [
        (f"rail{index}", f"10.{100 + index}.0.0/16") for index in range(5, 9)
    ]


def test_no_text_of_a_host_reaches_the_map_as_a_template() -> None:
    found = facts(2, *cable((1, 0), (2, 0)))
    assert cabling.write_map(ports_of(found), plan_fabric(fabric(2))[0])
    for name in ("{{ lookup('pipe', 'id') }}", "enp1s0\n", ""):
        found["spark1"][0]["name"] = name
        assert cabling.write_map(ports_of(found), plan_fabric(fabric(2))[0]) == ""
    assert cabling.write_map([], plan_fabric(fabric(2))[0]) == ""


@pytest.mark.parametrize(("name", "links", "expected"), MISWIRED, ids=[name for name, *_rest in MISWIRED])
def test_each_miswiring_of_a_ring_is_named(name: str, links: list[tuple[End, ...]], expected: list[str]) -> None:
    assert rules(facts(3, *links), cabled(3)) == expected, name


def switched(*hosts: int) -> list[tuple[End, ...]]:
    return [tuple((host, 0, half) for host in hosts) for half in (0, 1)]


# What the ports see, of how many hosts the plan is a ring (else a switch), and how many planned links were moved.
MOVED: list[tuple[dict[str, list[dict[str, Any]]], bool, int]] = [
    (facts(3, *ring(3)), True, 0),
    (facts(3), True, 0),
    # A cable that is pulled is another finding, also next to one that was moved to the free cage.
    (facts(3, *ring(3)[2:]), True, 0),
    (facts(3, *cable((1, 0), (3, 1)), *cable((2, 0), (1, 1))), True, 6),
    (facts(3, *cable((1, 0), (2, 1), True), *ring(3)[2:]), True, 2),
    (facts(4, *switched(1, 2, 3)), False, 0),
    (facts(4, *switched(1, 2), *switched(3, 4)), False, 8),
    # Nobody sees the first port of the first host.
    (facts(4, *switched(1, 2), *switched(3, 4), link_local=False), False, 6),
]


@pytest.mark.parametrize(("found", "in_ring", "links"), MOVED, ids=range(len(MOVED)))
def test_only_a_port_that_sees_another_one_proves_that_a_cable_was_moved(
    found: dict[str, list[dict[str, Any]]], in_ring: bool, links: int
) -> None:
    count = len(found)
    plan = plan_fabric(cabled(count) if in_ring else fabric(count))[0]
    moved = list(cabling.moved(ports_of(found), plan))
    assert [finding.rule for finding in moved] == ["cabling.inventory"] * links
    assert all(finding in judge(ports_of(found), plan) for finding in moved)


def test_a_cable_between_the_same_cages_matters_only_in_a_ring() -> None:
    pair = cabling.ports_of(facts(2, *cable((1, 0), (2, 0))))
    ring_of_three = cabling.ports_of(facts(3, *cable((1, 0), (2, 0))))
    found = [*cabling.judge(pair, plan_fabric(fabric(2))[0]), *cabling.judge(ring_of_three, plan_fabric(cabled(3))[0])]
    assert [f.severity for f in found if f.rule == "cabling.same_cage"] == ["info", "warning"]


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"speed_mbps": 100000}, "slow"),
        ({"pcie_width": 2}, "pcie"),
        ({"mtu_passes": 1500}, "mtu"),
        ({"mtu_passes": 0}, "mtu"),
    ],
)
def test_a_weak_port_is_named(changes: dict[str, Any], rule: str) -> None:
    found = facts(3, *ring(3), **changes)
    (finding,) = cabling.judge(cabling.ports_of(found), plan_fabric(cabled(3))[0])
    assert (finding.rule, finding.where, finding.key) == (f"cabling.{rule}", "spark1", "enp1s0f0np0")


def test_an_mtu_that_was_not_tried_is_no_finding_and_a_blind_port_says_why() -> None:
    assert rules(facts(3, *ring(3), mtu_passes=None), cabled(3)) == []
    drawn = cabling.draw(cabling.ports_of(facts(1, ((1, 0, 0),), link_local=False)))
    assert drawn[0] == "spark1 enp1s0f0np0: sees nobody, as it has no IPv6 link-local address"


def test_the_finding_says_what_the_ports_of_a_rail_see_instead() -> None:
    links = [*cable((1, 0), (3, 1)), *cable((2, 0), (1, 1))]
    findings = cabling.judge(cabling.ports_of(facts(3, *links)), plan_fabric(cabled(3))[0])
    first = next(finding for finding in findings if finding.key == "rail ring12a")
    assert first.severity == "error"
    assert first.reason == (
        "the plan joins spark1 enp1s0f0np0 and spark2 enp1s0f1np1, but spark1 enp1s0f0np0 sees spark3 enp1s0f1np1, and"
        " spark2 enp1s0f1np1 has no link"
    )


def test_a_cable_that_no_rail_uses_is_a_note() -> None:
    links = [tuple((host, 0, half) for host in (1, 2)) for half in (0, 1)]
    assert rules(facts(2, *links, *cable((1, 1), (2, 1))), fabric(2)) == [
        "same_cage", "same_cage", "double", "unplanned", "unplanned",
    ]  # fmt: skip


def test_each_host_that_a_switch_lacks_is_named_and_one_without_facts_is_not() -> None:
    assert rules(facts(4, *switched(1, 2, 3)), fabric(4)) == ["inventory"] * 6
    found = facts(3, *ring(3))
    del found["spark3"]
    assert rules(found, cabled(3)) == []


def test_other_names_and_unknown_machines_are_drawn_without_a_cage() -> None:
    port = {"name": "mlx0", "mac": "a", "carrier": True, "neighbours": ["b", "c"], "speed_mbps": None}
    other = {**port, "mac": "b", "neighbours": []}
    stranger = {**port, "name": "mlx1", "mac": "d", "neighbours": ["ee:ee"]}
    ports = cabling.ports_of({"one": [port, stranger], "two": [other]})
    assert cabling.draw(ports) == [
        "one mlx0 === two mlx0 (mlx0 - mlx0)",
        "one mlx1: sees only unknown machines (ee:ee)",
    ]
    assert cabling.judge(ports, plan_fabric({})[0]) == []


def test_the_picture_is_valid_svg_with_every_port_and_link() -> None:
    found = facts(4, *ring(4))
    found["a<b&c"] = found.pop("spark1")
    root = ET.fromstring(cabling.draw_svg(cabling.ports_of(found)))
    kinds = [element.tag.rpartition("}")[2] for element in root]
    assert (kinds.count("rect"), kinds.count("text"), kinds.count("path")) == (4, 20, 8)
    boxes = [
        {key: int(element.get(key, "")) for key in ("x", "y", "height")} for element in root if element.get("height")
    ]
    for side in (boxes[::2], boxes[1::2]):
        assert all(above["y"] + above["height"] < below["y"] for above, below in pairwise(side))
    right = cabling.SVG_MARGIN + cabling.SVG_BOX + cabling.SVG_GAP
    assert [{box["x"] for box in boxes[side::2]} for side in (0, 1)] == [{cabling.SVG_MARGIN}, {right}]
    assert ET.fromstring(cabling.draw_svg([])).tag.endswith("svg")
    picture = cabling.draw_svg(cabling.ports_of(facts(4, *switched(1, 2, 3, 4))))
    curves = re.findall(r"<path d=.M \d+ \d+ C (\d+) ", picture)
    assert len(curves) == 6
    # Also a curve between two hosts on the same side leaves their boxes for the gap.
    assert {cabling.SVG_MARGIN + cabling.SVG_BOX < int(bend) < right for bend in curves} == {True}


SHAPES: list[tuple[int, list[tuple[End, ...]], str]] = [
    (1, [], "single"),
    (2, cable((1, 0), (2, 0)), "direct"),
    (2, cable((1, 1), (2, 0)), "direct"),
    (4, switched(1, 2, 3, 4), "switch"),
    (3, [tuple((host, 0, half) for host in (1, 2, 3) for half in (0, 1))], "switch"),
    # The second port of a host is a rail with no other host, so none.
    (3, [((1, 0, 0), (1, 0, 1), (2, 0, 0), (3, 0, 0))], "switch"),
    *((count, ring(count), "ring") for count in range(3, 9)),
    *((count, ring(count)[:-2], "chain") for count in range(3, 9)),
    (3, [*cable((1, 0), (2, 0)), *cable((2, 1), (3, 1)), *cable((3, 0), (1, 1))], "ring"),
    (4, [*cable((1, 0), (2, 1)), *cable((3, 0), (4, 1))], "mixed"),
    (6, [*switched(1, 2, 3), *switched(4, 5, 6)], "mixed"),
]


@pytest.mark.parametrize(("count", "links", "topology"), SHAPES)
def test_the_suggestion_is_a_plan_that_fits_the_cables(count: int, links: list[tuple[End, ...]], topology: str) -> None:
    ports = ports_of(facts(count, *links))
    found = suggest(ports)
    assert found["group"]["gb10_fabric_topology"] == topology
    variables: dict[str, Any] = {
        host: {**values, **found["group"], **found["hosts"].get(host, {})} for host, values in fabric(count).items()
    }
    plan, findings = plan_fabric(variables)
    wrong = [f.rule for f in [*findings, *judge(ports, plan)] if f.severity == "error" or "unplanned" in f.rule]
    assert wrong == []


@pytest.mark.parametrize(
    ("links", "rails"),
    [
        ([*cable((1, 0), (2, 0)), *cable((1, 1), (2, 1))], 4),
        # NCCL joins devices with the same number, so rails in another order cannot serve
        ([*cable((1, 0), (2, 1)), *cable((1, 1), (2, 0))], 2),
        (cable((1, 0), (2, 0), crossed=True), 1),
    ],
)
def test_two_hosts_get_only_rails_that_nccl_can_join(links: list[tuple[End, ...]], rails: int) -> None:
    found = suggest(ports_of(facts(2, *links)))
    assert (found["group"]["gb10_fabric_topology"], len(found["group"]["gb10_fabric_rails"])) == ("direct", rails)


VARIABLES = {
    host: {**own, "ansible_host": f"192.168.10.1{number}", "gb10_management_interface": "enP7s7"}
    for number, (host, own) in enumerate(fabric(2).items(), start=1)
}
PLAN = plan_fabric(VARIABLES)[0]
MANAGED = {"lo": [], "enP7s7": ["192.168.10.11/24"], "wlP9s9": ["192.168.20.7/24"]}
DEPLOYED = MANAGED | {vf.netdev: [f"{vf.address}/{vf.prefix}"] for vf in PLAN.hosts["spark1"].vfs}


def differences(known: Mapping[str, Sequence[str]], **changes: object) -> list[Finding]:
    variables = {**VARIABLES, "spark1": {**VARIABLES["spark1"], **changes}}
    return list(check_hosts(PLAN, variables, {"spark1": known}))


@pytest.mark.parametrize("known", [MANAGED, DEPLOYED])
def test_a_host_like_the_inventory_has_no_difference_before_and_after_it_was_deployed(
    known: Mapping[str, Sequence[str]],
) -> None:
    assert differences(known) == []


def test_a_management_interface_that_does_not_exist_is_named_with_the_right_one() -> None:
    (finding,) = differences(MANAGED, gb10_management_interface="eth0")
    assert (finding.rule, finding.severity, finding.value) == ("cabling.management", "error", "eth0")
    assert finding.reason == "the host has no such interface; 192.168.10.11 is the address of enP7s7"
    assert finding.remedy == "Set gb10_management_interface of spark1 to enP7s7."


def test_a_management_interface_without_the_address_of_the_inventory_is_named() -> None:
    (finding,) = differences(MANAGED, gb10_management_interface="wlP9s9")
    assert "Ansible reaches the host elsewhere; 192.168.10.11 is the address of enP7s7" in finding.reason


def test_a_host_that_is_reached_by_name_is_checked_for_the_interface_only() -> None:
    assert differences(MANAGED, ansible_host="spark1.local") == []
    (finding,) = differences(MANAGED, ansible_host="spark1.local", gb10_management_interface="eth0")
    assert "`ip -br address` lists its interfaces" in finding.reason


def test_the_node_id_with_which_a_host_was_set_up_is_named() -> None:
    other = {name: [own.replace(".1/", ".7/") for own in found] for name, found in DEPLOYED.items()}
    (finding,) = differences(other)
    assert (finding.rule, finding.value) == ("cabling.address", "10.100.0.7/24")
    assert "8 of 8 VFs" in finding.reason
    assert finding.reason.endswith("set up as gb10_node_id 7, not 1")
    (finding,) = differences({name: ["fe80::1/64"] for name in DEPLOYED})
    assert (finding.rule, finding.value) == ("cabling.address", None)


def test_a_node_id_in_a_larger_subnet_is_not_the_last_number_of_the_address() -> None:
    plan, _findings = plan_fabric({host: {**own, "gb10_fabric_subnet_prefix": 23} for host, own in VARIABLES.items()})
    known = {vf.netdev: [f"{ip_address(vf.address) + 299}/{vf.prefix}"] for vf in plan.hosts["spark1"].vfs}
    (finding,) = check_hosts(plan, {}, {"spark1": known})
    assert finding.value == "10.100.1.44/23"
    assert finding.reason.endswith("set up as gb10_node_id 300, not 1")


def test_only_findings_about_the_hosts_own_ports_are_repeated() -> None:
    told = {"gb10_pf_totalvfs": {"enp1s0f0np0": 2}, "gb10_fabric_vf_count": 4, "gb10_fabric_topology": "ring"}
    findings = plan_fabric({host: own | told for host, own in fabric(2).items()})[1]
    rules = {finding.rule for finding in about_ports(findings)}
    assert rules == {"fabric.pf.unknown", "fabric.vf_count.hardware"}
    assert "fabric.topology.ring" in {finding.rule for finding in findings}
