# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test properties that every plan without errors has, for any fabric."""

import random
from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import has_errors
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.model import SCHEMES, Plan
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import plan_fabric
from hypothesis import assume, given
from hypothesis import strategies as st
from ring_samples import cabled_plan

PORTS = ["enp1s0f0np0", "enP2p1s0f0np0", "enp1s0f1np1", "enP2p1s0f1np1"]


@st.composite
def fabrics(draw: st.DrawFn) -> dict[str, dict[str, Any]]:
    """Draw a fabric of any node ids, one to four rails, PFs and VF counts that differ between hosts, either scheme."""
    ids = draw(st.sets(st.integers(1, 254), min_size=1, max_size=12))
    count = draw(st.integers(1, 4))
    ipv6 = draw(st.booleans())
    rails = [
        {
            "name": f"{draw(st.sampled_from(['rail', 'plane-', 'r']))}{index}",
            "pf": PORTS[index],
            "network": f"10.{100 + index}.0.0/16",
            **({"network6": f"fd00:{index + 1}::/48"} if ipv6 else {}),
        }
        for index in range(count)
    ]
    group = {
        "gb10_fabric_rails": rails,
        "gb10_fabric_scheme": draw(st.sampled_from(SCHEMES)),
        "gb10_fabric_mac_seed": draw(st.text(min_size=1, max_size=8)),
        "gb10_fabric_vf_count": draw(st.sampled_from(["auto", 1, 2])),
    }
    variables = {}
    for node_id in draw(st.permutations(sorted(ids))):
        ports = draw(st.permutations(PORTS)) if draw(st.booleans()) else PORTS
        variables[f"node{node_id}"] = {
            **group,
            "gb10_node_id": node_id,
            "gb10_fabric_pfs": {rail["name"]: ports[index] for index, rail in enumerate(rails)},
            "gb10_pf_totalvfs": {port: draw(st.integers(2, 16)) for port in PORTS},
        }
    return variables


def planned(variables: dict[str, dict[str, Any]]) -> Plan:
    plan, findings = plan_fabric(variables)
    # the hashed names of two rails collide in 1 of 65536 cases; that is reported, and these tests ignore it
    assume(not has_errors(findings))
    return plan


@given(fabrics())
def test_nothing_is_given_twice_and_everything_fits(variables: dict[str, dict[str, Any]]) -> None:
    plan = planned(variables)
    vfs = [(name, vf) for name, host in plan.hosts.items() for vf in host.vfs]
    networks = {network.nad: network for network in plan.networks}
    assert len(networks) == len(plan.networks)
    for attribute in ("address", "mac"):
        assert len({getattr(vf, attribute) for _host, vf in vfs}) == len(vfs)
    v6 = [vf.address6 for _host, vf in vfs if vf.address6]
    assert len(set(v6)) == len(v6)
    assert len({(name, vf.netdev) for name, vf in vfs}) == len(vfs)
    assert len({(name, vf.rdma_device) for name, vf in vfs}) == len(vfs)
    assert len({(name, vf.nad) for name, vf in vfs}) == len(vfs)
    for name, vf in vfs:
        subnet = ip_network(networks[vf.nad].subnet)
        assert networks[vf.nad].device == vf.netdev, "a NAD names the netdev of every host that uses it"
        assert ip_interface(f"{vf.address}/{vf.prefix}").network == subnet
        assert ip_address(vf.address) not in (subnet.network_address, subnet.broadcast_address)
        assert int(vf.address.rsplit(".", maxsplit=1)[1]) == variables[name]["gb10_node_id"]
        assert len(vf.netdev) <= 15


@given(fabrics())
def test_no_pf_gets_more_vfs_than_it_has(variables: dict[str, dict[str, Any]]) -> None:
    for name, host in planned(variables).hosts.items():
        for pf in host.pfs:
            assert 0 < pf.vf_count <= variables[name]["gb10_pf_totalvfs"][pf.name]
            assert sum(vf.pf == pf.name for vf in host.vfs) == pf.vf_count


@given(fabrics(), st.randoms(use_true_random=False))
def test_the_order_of_hosts_does_not_matter(variables: dict[str, dict[str, Any]], chance: random.Random) -> None:
    names = list(variables)
    chance.shuffle(names)
    assert plan_fabric({name: variables[name] for name in names}) == plan_fabric(variables)


@given(fabrics(), st.data())
def test_hosts_come_and_go_without_moving_the_others(variables: dict[str, dict[str, Any]], data: st.DataObject) -> None:
    plan = planned(variables)
    stay = data.draw(st.sets(st.sampled_from(sorted(variables)), min_size=1))
    smaller = plan_fabric({name: values for name, values in variables.items() if name in stay})[0]
    assert smaller.hosts == {name: host for name, host in plan.hosts.items() if name in stay}
    assert set(smaller.networks) <= set(plan.networks)


@given(fabrics(), st.randoms(use_true_random=False))
def test_the_order_of_rails_moves_no_address(variables: dict[str, dict[str, Any]], chance: random.Random) -> None:
    plan = planned(variables)
    rails = list(next(iter(variables.values()))["gb10_fabric_rails"])
    chance.shuffle(rails)
    other = plan_fabric({name: {**values, "gb10_fabric_rails": rails} for name, values in variables.items()})[0]
    for name, host in plan.hosts.items():
        assert {replace(vf, rail_index=0) for vf in other.hosts[name].vfs} == {
            replace(vf, rail_index=0) for vf in host.vfs
        }


@pytest.mark.parametrize("count", range(3, 8))
def test_a_new_host_and_the_cable_that_closes_the_ring_move_no_address(count: int) -> None:
    def functions(hosts: int, *, closed: bool) -> dict[tuple[str, str], dict[str, Any]]:
        plan = cabled_plan(hosts, closed=closed)
        kept = ("address", "mac", "rail", "rdma_device")
        return {(n, vf["netdev"]): {k: vf[k] for k in kept} for n, host in plan["hosts"].items() for vf in host["vfs"]}

    chain, longer, ring = (
        functions(count, closed=False),
        functions(count + 1, closed=False),
        functions(count + 1, closed=True),
    )
    assert 0 < len(chain) < len(longer) < len(ring)
    assert chain.items() <= longer.items() <= ring.items()
