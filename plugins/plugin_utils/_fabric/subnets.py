# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find conflicts between the subnets of a fabric and the networks around it. Private to the collection."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Network, IPv6Network, ip_address
from itertools import combinations
from typing import TypeAlias

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, Severity

from .model import Fabric, Rail

Network: TypeAlias = "IPv4Network | IPv6Network"

_ULA = IPv6Network("fc00::/7")  # RFC 4193
_SHARED = IPv4Network("100.64.0.0/10")  # RFC 6598: not routed on the Internet either


def check_networks(fabric: Fabric) -> list[Finding]:
    """Return overlaps, blocks that are too small, and blocks that a fabric must not use."""
    return [
        *_check_blocks(fabric),
        *_check_sizes(fabric),
        *_check_rails(fabric),
        *_check_surroundings(fabric),
    ]


def _finding(
    rule: str, rail: Rail, key: str, value: object, reason: str, remedy: str, severity: Severity = "error"
) -> Finding:
    return Finding(
        severity, f"fabric.{rule}", f"gb10_fabric_rails.{rail.name}.{key}", str(value), reason, remedy, "", "plan"
    )


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
            reason = "loopback, multicast, link-local or reserved addresses"
            remedy = "Use a private block, for example 10.100.0.0/16."
            yield _finding("network.special", rail, key, block, reason, remedy)
        elif isinstance(block, IPv6Network):
            if not block.subnet_of(_ULA):
                remedy = "Use a block of fd00::/8 with 40 random bits (RFC 4193)."
                yield _finding("network6.not_ula", rail, key, block, "not a unique local block", remedy)
        elif not (block.is_private or block.subnet_of(_SHARED)):
            reason = "public addresses; their owners would become unreachable"
            remedy = "Use a private block, for example 10.100.0.0/16."
            yield _finding("network.public", rail, key, block, reason, remedy, "warning")


def _check_sizes(fabric: Fabric) -> Iterator[Finding]:
    for rail in fabric.rails:
        vfs = max((p.vf_count for h in fabric.hosts for p in h.ports if p.rail.name == rail.name), default=0)
        room = rail.network.num_addresses // fabric.slot_size(rail)
        if vfs > room:
            reason = f"room for {room} VF indices of /{fabric.slot_prefix(rail)}, {vfs} are planned"
            wanted = max(0, fabric.slot_prefix(rail) - (vfs - 1).bit_length())
            yield _finding(
                "network.too_small", rail, "network", rail.network, reason, f"Give it a /{wanted} or larger."
            )
        if rail.network6 is None:
            continue
        need = 1 if fabric.scheme == "subnet-per-rail" else max(vfs, 1)
        room6 = 1 << (64 - rail.network6.prefixlen) if rail.network6.prefixlen <= 64 else 0
        if need > room6:
            reason = f"room for {room6} subnets of /64, {need} are planned"
            yield _finding("network6.too_small", rail, "network6", rail.network6, reason, "Give it a /48.")


def _check_rails(fabric: Fabric) -> Iterator[Finding]:
    for (first, _key, one), (second, key, other) in combinations(_blocks(fabric), 2):
        if first.name == second.name or not _overlap(one, other):
            continue
        if one == other:
            reason = f"rail {first.name} has the same block, and two NICs in one subnet answer ARP for each other"
            yield _finding("network.same", second, key, other, reason, "Give each rail a block of its own.")
        else:
            reason = f"overlaps {one} of rail {first.name}"
            yield _finding("network.overlap", second, key, other, reason, "Give each rail a block of its own.")


def _check_surroundings(fabric: Fabric) -> Iterator[Finding]:
    for rail, key, block in _blocks(fabric):
        for network in fabric.management_networks:
            if _overlap(block, network):
                reason = f"overlaps management network {network}; its hosts would become unreachable"
                yield _finding("network.management", rail, key, block, reason, "Choose another block.")
        for network in fabric.cluster_networks:
            if _overlap(block, network):
                reason = f"overlaps {network}, which Kubernetes gives to pods or services"
                remedy = "Choose another block, or gb10_cluster_cidr and gb10_service_cidr."
                yield _finding("network.cluster", rail, key, block, reason, remedy)
        for host in fabric.hosts:
            if _inside(host.management_address, block):
                reason = f"{host.name} is managed at {host.management_address}, which is in it"
                yield _finding("network.management_address", rail, key, block, reason, "Choose another block.")


def _inside(text: str | None, block: Network) -> bool:
    try:
        return ip_address(text or "") in block
    except ValueError:  # a host name, which is not resolved here
        return False
