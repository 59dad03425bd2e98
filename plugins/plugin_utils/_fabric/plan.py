# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan names, MAC, addresses and NAD of every VF of the fabric. Private to the collection.

The plan of a host depends only on the declarations of that host and its rails, not on its position in the inventory.
It therefore does not change when other hosts are added, removed or reordered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import IPv4Network, IPv6Network
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, sort_findings
from ansible_collections.gb10.cluster.plugins.module_utils._host.interfaces import vf_netdev

from .checks import check_fabric, check_plan
from .model import (
    Fabric,
    Host,
    HostPlan,
    NetworkPlan,
    PfPlan,
    Plan,
    Port,
    Rail,
    RailPlan,
    VfPlan,
    nad_name,
    slot_address,
    vf_mac,
)
from .parse import parse_fabric
from .transit import check_transit, has_room, pf_address, pf_subnet, routes


def plan_fabric(variables: Mapping[str, Mapping[str, Any]]) -> tuple[Plan, list[Finding]]:
    """Plan the fabric of the hosts whose inventory variables are given (``{host: {variable: value}}``).

    The plan is as complete as the input allows, but must be applied only if no finding is an error. Invalid values
    never raise an exception; all of them become findings of one run.
    """
    fabric, findings = parse_fabric(variables)
    plan = build_plan(fabric)
    findings += check_fabric(fabric)
    findings += check_transit(fabric)
    findings += check_plan(fabric, plan)
    return plan, sort_findings(findings)


def build_plan(fabric: Fabric) -> Plan:
    """Compute the plan of a parsed fabric.

    Addresses that do not fit their rail's block are omitted, with the VFs that need them; a check reports them.
    """
    hosts: dict[str, HostPlan] = {}
    networks: dict[str, NetworkPlan] = {}
    known = routes(fabric) if fabric.transit else {}
    roomy = {rail.name for rail in fabric.rails if fabric.transit and has_room(fabric, rail)}
    for host in sorted(fabric.hosts, key=lambda h: (h.node_id, h.name)):
        pfs: list[PfPlan] = []
        vfs: list[VfPlan] = []
        for port in host.ports:
            rail = port.rail
            pf = PfPlan(rail.name, rail.index, port.name, port.rdma_device, port.vf_count, fabric.mtu)
            if rail.name in roomy:
                address, prefix = pf_address(fabric, rail, host.node_id), pf_subnet(fabric, rail).prefixlen
                pf = replace(pf, address=address, prefix=prefix, routes=known.get((host.name, rail.name), []))
            pfs.append(pf)
            for vf_index in range(port.vf_count):
                vf = _plan_vf(fabric, host, port, vf_index)
                if vf is None:
                    break
                vfs.append(vf)
                if vf.nad not in networks:
                    networks[vf.nad] = _plan_network(fabric, rail, vf)
        hosts[host.name] = HostPlan(host.node_id, pfs, vfs)
    return Plan(
        mtu=fabric.mtu,
        scheme=fabric.scheme,
        topology=fabric.topology,
        transit=fabric.transit,
        rails=[
            RailPlan(rail.name, rail.index, str(rail.network), str(rail.network6) if rail.network6 else None)
            for rail in fabric.rails
        ],
        networks=sorted(networks.values(), key=lambda n: (n.rail_index, n.vf_index, n.nad)),
        hosts=hosts,
    )


def vf_subnet(fabric: Fabric, rail: Rail, vf_index: int) -> IPv4Network:
    if fabric.scheme == "subnet-per-rail":
        return rail.network
    base = int(rail.network.network_address) + vf_index * fabric.slot_size(rail)
    return IPv4Network((base, fabric.slot_prefix(rail)))


def vf_subnet6(fabric: Fabric, rail: Rail, vf_index: int) -> IPv6Network | None:
    """Return the /64 of a VF index; None if the rail has no IPv6 block or the block has no free /64."""
    if rail.network6 is None:
        return None
    step = 0 if fabric.scheme == "subnet-per-rail" else vf_index
    base = int(rail.network6.network_address) + (step << 64)
    return IPv6Network((base, 64)) if base <= int(rail.network6.broadcast_address) else None


def _plan_vf(fabric: Fabric, host: Host, port: Port, vf_index: int) -> VfPlan | None:
    address = slot_address(fabric, port.rail, vf_index, host.node_id)
    if address is None:
        return None
    subnet6 = vf_subnet6(fabric, port.rail, vf_index)
    # The VF index is part of the host bits, so that VFs which share a /64 differ; otherwise it only helps the reader.
    address6 = None if subnet6 is None else str(subnet6.network_address + (vf_index << 16 | host.node_id))
    return VfPlan(
        rail=port.rail.name,
        rail_index=port.rail.index,
        vf_index=vf_index,
        pf=port.name,
        netdev=vf_netdev(port.name, vf_index),
        rdma_device=f"{port.rdma_device}v{vf_index}",
        mac=vf_mac(fabric.mac_seed, port.rail.name, host.node_id, vf_index),
        address=str(address),
        prefix=vf_subnet(fabric, port.rail, vf_index).prefixlen,
        address6=address6,
        prefix6=None if subnet6 is None else 64,
        nad=nad_name(port.rail, port.name, vf_index),
    )


def _plan_network(fabric: Fabric, rail: Rail, vf: VfPlan) -> NetworkPlan:
    subnet6 = vf_subnet6(fabric, rail, vf.vf_index)
    return NetworkPlan(
        nad=vf.nad,
        rail=rail.name,
        rail_index=rail.index,
        vf_index=vf.vf_index,
        device=vf.netdev,
        subnet=str(vf_subnet(fabric, rail, vf.vf_index)),
        subnet6=None if subnet6 is None else str(subnet6),
    )
