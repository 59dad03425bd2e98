# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find conflicts between the networks of a cluster: rails, management, pods and services. Private to the collection."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network, ip_address
from itertools import combinations
from typing import TypeAlias

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding

from .._rules import Rules
from .model import Fabric, Rail
from .reader import some_of

Network: TypeAlias = "IPv4Network | IPv6Network"

_ULA = IPv6Network("fc00::/7")  # RFC 4193
_SHARED = IPv4Network("100.64.0.0/10")  # RFC 6598: not routed on the Internet either
_RULES = Rules("_fabric", "plan")


def check_networks(fabric: Fabric) -> list[Finding]:
    """Return overlaps, blocks that are too small, and blocks that a fabric must not use."""
    return [
        *_check_blocks(fabric),
        *_check_sizes(fabric),
        *_check_rails(fabric),
        *_check_surroundings(fabric),
        *_check_cluster(fabric),
        *_check_management(fabric),
    ]


def _finding(rule: str, rail: Rail, part: str, value: object, **words: object) -> Finding:
    return _RULES.finding(rule, str(value), rail=rail.name, part=part, **words)


def _blocks(fabric: Fabric) -> Iterator[tuple[Rail, str, Network]]:
    for rail in fabric.rails:
        yield rail, "network", rail.network
        if rail.network6 is not None:
            yield rail, "network6", rail.network6


def _overlap(one: Network, other: Network) -> bool:
    return one.version == other.version and not (one[-1] < other[0] or other[-1] < one[0])  # type: ignore[operator]


def _check_blocks(fabric: Fabric) -> Iterator[Finding]:
    for rail, key, block in _blocks(fabric):
        if block.is_multicast or block.is_loopback or block.is_link_local or block.is_unspecified or block.is_reserved:
            yield _finding("fabric.network.special", rail, key, block)
        elif isinstance(block, IPv6Network):
            if not block.subnet_of(_ULA):
                yield _finding("fabric.network6.not_ula", rail, key, block)
        elif not (block.is_private or block.subnet_of(_SHARED)):
            yield _finding("fabric.network.public", rail, key, block)


def _check_sizes(fabric: Fabric) -> Iterator[Finding]:
    for rail in fabric.rails:
        vfs = max((p.vf_count for h in fabric.hosts for p in h.ports if p.rail.name == rail.name), default=0)
        room = rail.network.num_addresses // fabric.slot_size(rail)
        # A larger block would be cut into subnets of this size.
        prefix = min(fabric.slot_prefix(rail), fabric.subnet_prefix)
        indices = max(vfs - 1, 0).bit_length()
        if without_hosts(fabric, rail):
            highest = max(host.node_id for host in fabric.hosts)
            # Two addresses of each subnet are no host's.
            wanted = max(0, min(prefix, 32 - (highest + 1).bit_length()) - indices)
            words = {"highest": highest, "vfs": vfs, "wanted": wanted}
            yield _finding("fabric.network.too_small/hosts", rail, "network", rail.network, **words)
        elif vfs > room:
            size = {"prefix": fabric.slot_prefix(rail), "wanted": max(0, prefix - indices)}
            yield _finding(
                "fabric.network.too_small/indices", rail, "network", rail.network, room=room, vfs=vfs, **size
            )
        if rail.network6 is None:
            continue
        need = 1 if fabric.scheme == "subnet-per-rail" else max(vfs, 1)
        room6 = 1 << (64 - rail.network6.prefixlen) if rail.network6.prefixlen <= 64 else 0
        if need > room6:
            yield _finding("fabric.network6.too_small", rail, "network6", rail.network6, room=room6, need=need)


def without_hosts(fabric: Fabric, rail: Rail) -> bool:
    """Tell whether the block of a rail is too small for any numbering of the hosts, whatever their node ids are."""
    own = rail.network.prefixlen >= fabric.subnet_prefix
    return own and bool(fabric.hosts) and fabric.slot_size(rail) - 2 < len(fabric.hosts)


def _check_rails(fabric: Fabric) -> Iterator[Finding]:
    for (first, _key, one), (second, key, other) in combinations(_blocks(fabric), 2):
        if first.name == second.name or not _overlap(one, other):
            continue
        if one == other:
            yield _finding("fabric.network.same", second, key, other, other=first.name)
        else:
            yield _finding("fabric.network.overlap", second, key, other, other=first.name, block=one)


def _check_surroundings(fabric: Fabric) -> Iterator[Finding]:
    for rail, key, block in _blocks(fabric):
        for network in fabric.management_networks:
            if _overlap(block, network):
                yield _finding("fabric.network.management", rail, key, block, network=network)
        for _variable, network in fabric.cluster_networks:
            if _overlap(block, network):
                yield _finding("fabric.network.cluster", rail, key, block, network=network)
        for host in fabric.hosts:
            if _inside(host.management_address, block):
                place = {"host": host.name, "address": host.management_address}
                yield _finding("fabric.network.management_address", rail, key, block, **place)


def _check_cluster(fabric: Fabric) -> Iterator[Finding]:
    """Compare the networks of pods and services with each other and with those from which the hosts are managed."""
    for (key, one), (other_key, other) in combinations(fabric.cluster_networks, 2):
        if _overlap(one, other):
            yield _RULES.finding("fabric.cluster.overlap", str(other), key=other_key, network=one, other=key)
    for key, network in fabric.cluster_networks:
        for managed in fabric.management_networks:
            if _overlap(network, managed):
                yield _RULES.finding("fabric.cluster.management", str(network), key=key, network=managed)
        inside = {
            host.name: host.management_address for host in fabric.hosts if _inside(host.management_address, network)
        }
        if inside:
            shown = some_of([f"{name} ({address})" for name, address in inside.items()])
            yield _RULES.finding("fabric.cluster.management_address", str(network), key=key, hosts=shown)


def _check_management(fabric: Fabric) -> Iterator[Finding]:
    """Find hosts with an address outside the declared networks: these then do not state where the hosts are managed."""
    declared = fabric.management_networks
    for host in fabric.hosts:
        try:
            address = ip_address(host.management_address or "")
        except ValueError:  # a host name, which is not resolved here
            continue
        # a forwarded port, whose address says nothing about the host's network
        if declared and not address.is_loopback and not any(address in network for network in declared):
            shown = ", ".join(map(str, declared))
            yield _RULES.finding("fabric.management.outside", str(address), host.name, networks=shown)


def _inside(text: str | None, block: Network) -> bool:
    try:
        return ip_address(text or "") in block
    except ValueError:  # a host name, which is not resolved here
        return False
