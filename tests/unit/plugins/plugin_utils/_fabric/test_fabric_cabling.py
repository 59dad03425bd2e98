# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the cabling is drawn, and that every miswiring is named, from what the ports of all hosts see."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ET
from itertools import pairwise
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric import cabling
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


@pytest.mark.parametrize(("name", "links", "expected"), MISWIRED, ids=[name for name, *_rest in MISWIRED])
def test_each_miswiring_of_a_ring_is_named(name: str, links: list[tuple[End, ...]], expected: list[str]) -> None:
    assert rules(facts(3, *links), cabled(3)) == expected, name


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
    assert {box["x"] for box in boxes[::2]}.isdisjoint(box["x"] for box in boxes[1::2])
    assert ET.fromstring(cabling.draw_svg([])).tag.endswith("svg")
