# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the cabling is drawn, and that every miswiring is named, from what the ports of all hosts see."""

from collections.abc import Sequence
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric import cabling
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.cabling import (
    about_ports,
    judge,
    ports_of,
    suggest,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import plan_fabric
from cabling_samples import End, cable, facts, ring
from fabric_samples import fabric
from ring_samples import cabled


def alike(count: int) -> list[tuple[End, ...]]:
    """Return a ring from like to like cages; if ``count`` is odd, one cable has to join different ones."""
    ends = [(host, (host + 1) % 2) for host in range(1, count + 1)]
    last = cable((count, ends[-1][1]), (1, 1))
    return [link for host, cage in ends[:-1] for link in cable((host, cage), (host + 1, cage))] + last


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


def test_no_text_of_a_host_reaches_the_map_as_a_template() -> None:
    found = facts(2, *cable((1, 0), (2, 0)))
    assert cabling.write_map(ports_of(found), plan_fabric(fabric(2))[0])
    for name in ("{{ lookup('pipe', 'id') }}", "enp1s0\n", ""):
        found["spark1"][0]["name"] = name
        assert cabling.write_map(ports_of(found), plan_fabric(fabric(2))[0]) == ""
    assert cabling.write_map([], plan_fabric(fabric(2))[0]) == ""


def switched(*hosts: int) -> list[tuple[End, ...]]:
    return [tuple((host, 0, half) for host in hosts) for half in (0, 1)]


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


def test_only_findings_about_the_hosts_own_ports_are_repeated() -> None:
    told = {"gb10_pf_totalvfs": {"enp1s0f0np0": 2}, "gb10_fabric_vf_count": 4, "gb10_fabric_topology": "ring"}
    findings = plan_fabric({host: own | told for host, own in fabric(2).items()})[1]
    rules = {finding.rule for finding in about_ports(findings)}
    assert rules == {"fabric.pf.unknown", "fabric.vf_count.hardware"}
    assert "fabric.topology.ring" in {finding.rule for finding in findings}
