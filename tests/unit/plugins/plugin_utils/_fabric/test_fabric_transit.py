# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that with transit every host reaches every rail, along cables, without circles."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import has_errors
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.model import Plan
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import plan_fabric
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.tables import format_plan
from fabric_samples import fabric
from ring_samples import cabled


def path(plan: Plan, host: str, address: str) -> list[str]:
    """Return the hosts that a packet from ``host`` passes until it meets ``address``."""
    owners = {pf.address: name for name, planned in plan.hosts.items() for pf in planned.pfs}
    passed = [host]
    while owners[address] != passed[-1]:
        pfs = plan.hosts[passed[-1]].pfs
        if any(ip_address(address) in ip_network(f"{pf.address}/{pf.prefix}", strict=False) for pf in pfs):
            passed.append(owners[address])
            continue
        (via,) = [route.via for pf in pfs for route in pf.routes if ip_address(address) in ip_network(route.to)]
        # the next host must be on a cable of this one
        assert any(ip_address(via) in ip_network(f"{pf.address}/{pf.prefix}", strict=False) for pf in pfs)
        passed.append(owners[via])
        assert len(passed) <= len(plan.hosts), passed
    return passed


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("count", [3, 4, 5, 6, 8])
def test_every_host_reaches_every_pf_by_a_shortest_path(count: int, closed: bool) -> None:
    plan, findings = plan_fabric(cabled(count, closed=closed, gb10_fabric_transit=True))
    assert not has_errors(findings)
    names = list(plan.hosts)
    for host in names:
        for peer, planned in plan.hosts.items():
            for pf in planned.pfs:
                away = abs(names.index(host) - names.index(peer))
                away = min(away, count - away) if closed else away
                # the address may be at the far end of the peer's other cable
                assert len(path(plan, host, str(pf.address))) - 1 in (away, away + 1)


def test_both_halves_carry_transit() -> None:
    plan = plan_fabric(cabled(4, gb10_fabric_transit=True))[0]
    routes = {pf.name: [route.to for route in pf.routes] for pf in plan.hosts["spark1"].pfs}
    assert {name: len(to) for name, to in routes.items()} == dict.fromkeys(routes, 1)
    assert len(routes) == 4


def test_no_address_moves_and_pods_keep_their_networks() -> None:
    without, given = (plan_fabric(cabled(4, gb10_fabric_transit=on))[0] for on in (False, True))
    assert [host.vfs for host in given.hosts.values()] == [host.vfs for host in without.hosts.values()]
    assert given.networks == without.networks
    assert all(pf.address is None and not pf.routes for host in without.hosts.values() for pf in host.pfs)
    assert format_plan(given).splitlines()[0].endswith("ring, transit")


def test_hosts_that_no_cable_reaches_get_no_route() -> None:
    variables = cabled(4, gb10_fabric_transit=True, gb10_fabric_topology="mixed")
    for own in variables.values():
        own["gb10_fabric_rails"] = [r for r in own["gb10_fabric_rails"] if r["name"][4:6] in ("12", "34")]
        own["gb10_fabric_pfs"] = {k: v for k, v in own["gb10_fabric_pfs"].items() if k[4:6] in ("12", "34")}
    plan, findings = plan_fabric(variables)
    assert not has_errors(findings)
    assert not any(pf.routes for host in plan.hosts.values() for pf in host.pfs)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"gb10_fabric_transit": "perhaps"}, "fabric.transit.invalid"),
        ({"gb10_fabric_transit": True, "gb10_fabric_scheme": "subnet-per-rail"}, "fabric.transit.scheme"),
        ({"gb10_fabric_transit": True, "gb10_fabric_subnet_prefix": 17}, "fabric.transit.too_small"),
    ],
)
def test_transit_that_cannot_be_planned_is_refused(changes: dict[str, Any], rule: str) -> None:
    findings = plan_fabric(cabled(4, **{"gb10_fabric_vf_count": 2, **changes}))[1]
    assert rule in {finding.rule for finding in findings if finding.severity == "error"}


@pytest.mark.parametrize("prefix", [17, 16])
def test_a_block_without_room_for_pfs_is_one_finding_per_rail(prefix: int) -> None:
    changes = {"gb10_fabric_vf_count": 1 if prefix == 16 else 2, "gb10_fabric_subnet_prefix": prefix}
    findings = plan_fabric(cabled(4, gb10_fabric_transit=True, **changes))[1]
    assert [finding.rule for finding in findings] == ["fabric.transit.too_small"] * 8
    assert len({finding.key for finding in findings}) == 8


def test_transit_on_a_switch_is_a_note() -> None:
    findings = plan_fabric(fabric(4, gb10_fabric_transit="true"))[1]
    assert [(finding.rule, finding.severity) for finding in findings] == [("fabric.transit.unneeded", "info")]


def test_a_pf_address_that_something_else_has_is_refused() -> None:
    findings = plan_fabric(cabled(4, gb10_fabric_transit=True, gb10_fabric_reserved_addresses=["10.101.255.1"]))[1]
    assert [finding.rule for finding in findings] == ["fabric.address.in_use"]
