# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan names, MAC, addresses and NAD of every VF of the fabric. Private to the collection.

The plan of a host depends only on the declarations of that host and its rails, not on its position in the inventory.
It therefore does not change when other hosts are added, removed or reordered.

Where hosts route for others (transit), PFs get the addresses and routes, because pods take VFs away from the host.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, IPv6Network
from itertools import combinations
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, sort_findings
from ansible_collections.gb10.cluster.plugins.module_utils._common.plain import align
from ansible_collections.gb10.cluster.plugins.module_utils._host.interfaces import vf_netdev

from .._controller.data import Rules
from .checks import LARGEST_RING, check_fabric, check_plan
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
    Route,
    VfPlan,
    nad_name,
    neighbours,
    shared_rails,
    slot_address,
    unlinked,
    vf_mac,
)
from .parse import parse_fabric

# Two ranges of addresses fit a terminal of 100 columns, beside a host name of 20.
_RANGES_PER_LINE = 2


def format_plan(plan: Plan) -> str:
    """Return a summary line, a table of the rails' PFs, one of the hosts' addresses, and the cables of a ring."""
    total = sum(len(host.vfs) for host in plan.hosts.values())
    title = (
        f"{len(plan.hosts)} hosts, {len(plan.rails)} rails, {total} VFs, {len(plan.networks)} NADs; "
        f"MTU {plan.mtu}, {plan.scheme}, {plan.topology}{', transit' if plan.transit else ''}"
    )
    return "\n".join([title, *align(_pfs(plan)), *align(_addresses(plan)), *_cables(plan)])


def _pfs(plan: Plan) -> list[tuple[str, ...]]:
    """Return a row for every rail and name of its PF, with the hosts that have a PF of this name there."""
    networks = {rail.name: rail.network for rail in plan.rails}
    hosts: dict[tuple[int, str, str, str, int], list[str]] = {}
    for name, host in plan.hosts.items():
        for pf in host.pfs:
            vf_count = sum(vf.rail == pf.rail for vf in host.vfs)
            hosts.setdefault((pf.rail_index, pf.rail, pf.name, pf.rdma_device, vf_count), []).append(name)
    rows: list[tuple[str, ...]] = [("rail", "network", "PF", "RDMA device", "VFs", "hosts")]
    for (_index, rail, pf_name, device, vf_count), names in sorted(hosts.items()):
        rows.append((rail, networks[rail], pf_name, device, str(vf_count), _some(names, len(plan.hosts))))
    return rows


def _some(names: list[str], total: int) -> str:
    """Return few names as they are, and many as their number."""
    if len(names) == total:
        return "all"
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} of {total}"


def _addresses(plan: Plan) -> list[tuple[str, str, str]]:
    """Return the first and the last address of every host on each of its rails, in the order of the rails."""
    rows = [("host", "id", "addresses")]
    for name, host in plan.hosts.items():
        by_rail = [[vf for vf in host.vfs if vf.rail == pf.rail] for pf in host.pfs]
        ranges = [_ends([f"{vf.address}/{vf.prefix}" for vf in vfs]) for vfs in by_rail]
        ranges += [_ends([f"{vf.address6}/{vf.prefix6}" for vf in vfs if vf.address6]) for vfs in by_rail]
        ranges = [text for text in ranges if text]
        for at in range(0, len(ranges) or 1, _RANGES_PER_LINE):
            known = ("", "") if at else (name, str(host.node_id))
            rows.append((*known, ", ".join(ranges[at : at + _RANGES_PER_LINE])))
    return rows


def _ends(texts: list[str]) -> str:
    return " … ".join(dict.fromkeys([*texts[:1], *texts[-1:]]))


def _cables(plan: Plan) -> list[str]:
    """Return a line per pair of hosts with a cable and one for those without, for few hosts without a common rail."""
    rails = {name: tuple(pf.rail for pf in host.pfs) for name, host in plan.hosts.items()}
    if not 2 <= len(rails) <= LARGEST_RING or shared_rails(rails, *rails):
        return []
    pairs = [(pair, shared) for pair in combinations(rails, 2) if (shared := shared_rails(rails, *pair))]
    missing = "; ".join(" and ".join(pair) for pair in unlinked(rails, list(rails)))
    lines = [f"{' and '.join(pair)}: {', '.join(shared)}" for pair, shared in pairs]
    return [*lines, f"no cable: {missing}"] if missing else lines


Rails = Mapping[str, tuple[str, ...]]
_RULES = Rules("_fabric", "plan")


def pf_subnet(fabric: Fabric, rail: Rail) -> IPv4Network:
    """Return the subnet of the PFs of a rail: the last one of its block, because VFs take theirs from the first on."""
    start = int(rail.network.broadcast_address) + 1 - fabric.slot_size(rail)
    return IPv4Network((start, fabric.slot_prefix(rail)))


def pf_address(fabric: Fabric, rail: Rail, node_id: int) -> str:
    return str(IPv4Address(int(pf_subnet(fabric, rail).network_address) + node_id))


def _most_vfs(fabric: Fabric, rail: Rail) -> int:
    return max((port.vf_count for host in fabric.hosts for port in host.ports if port.rail == rail), default=0)


def has_room(fabric: Fabric, rail: Rail) -> bool:
    """Tell whether the block of a rail has a subnet for the PFs behind those of the VFs."""
    room = int(pf_subnet(fabric, rail).network_address) - int(rail.network.network_address)
    return _most_vfs(fabric, rail) * fabric.slot_size(rail) <= room


def routes(fabric: Fabric) -> dict[tuple[str, str], list[Route]]:
    """Return ``{(host, rail): routes}``: each host reaches every rail that it is not on over its nearest member.

    The distance to that member decreases with every hop, so packets cannot go in circles.
    """
    ids = {host.name: host.node_id for host in fabric.hosts}
    by_name = {rail.name: rail for rail in fabric.rails}
    rails: Rails = {host.name: tuple(port.rail.name for port in host.ports) for host in fabric.hosts}
    next_to = {host: neighbours(rails, host) for host in rails}
    found: dict[tuple[str, str], list[Route]] = defaultdict(list)
    for host, own in rails.items():
        first = _first_hops(next_to, host)
        used: dict[str, int] = defaultdict(int)
        for name, rail in by_name.items():
            # The order of ``first`` is that of the distance.
            member = next((other for other in first if name in rails[other]), None)
            if name in own or member is None:
                continue
            # The halves of a cable take the halves of the next one in turn.
            over = shared_rails(rails, host, first[member])
            rail_over = over[used[member] % len(over)]
            used[member] += 1
            via = pf_address(fabric, by_name[rail_over], ids[first[member]])
            found[host, rail_over].append(Route(str(pf_subnet(fabric, rail)), via))
    return found


def _first_hops(next_to: Mapping[str, tuple[str, ...]], host: str) -> dict[str, str]:
    """Return the neighbour over which each other host is reached, nearest hosts first."""
    first = {other: other for other in next_to[host]}
    ahead = list(first)
    for near in ahead:
        for other in next_to[near]:
            if other != host and other not in first:
                first[other] = first[near]
                ahead.append(other)
    return first


def check_transit(fabric: Fabric) -> Iterator[Finding]:
    """Return why the hosts cannot forward for each other, or need not."""
    if not fabric.transit:
        return
    if fabric.scheme == "subnet-per-rail":
        yield _RULES.finding("fabric.transit.scheme", True)
        return
    for rail in fabric.rails:
        if not has_room(fabric, rail):
            vfs = _most_vfs(fabric, rail)
            yield _RULES.finding("fabric.transit.too_small", str(rail.network), rail=rail.name, vfs=vfs)
    rails = {host.name: tuple(port.rail.name for port in host.ports) for host in fabric.hosts}
    if not unlinked(rails, list(rails)):
        yield _RULES.finding("fabric.transit.unneeded", True)


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
    if rail.network6 is None or rail.network6.prefixlen > 64:
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
