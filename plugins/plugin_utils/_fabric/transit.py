# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan how hosts without a common cable reach each other over the hosts between them.

The PFs get the addresses and routes, because pods take VFs away from the host.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address, IPv4Network

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding

from .._rules import Rules
from .links import neighbours, shared_rails, unlinked
from .model import Fabric, Rail, Route

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
