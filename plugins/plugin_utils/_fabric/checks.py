# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find errors of the fabric as a whole before anything is written. Private to the collection."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_address
from itertools import combinations
from typing import TypeAlias

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._common.terms import DEFAULT_MTU, ROCE_HEADER_BYTES
from ansible_collections.gb10.cluster.plugins.module_utils._host.interfaces import NETDEV_MAX, vf_netdev

from .._controller.data import Rules
from .model import Fabric, Host, HostPlan, Plan, Port, Rail, connected, neighbours
from .parse import some_of

Network: TypeAlias = "IPv4Network | IPv6Network"

_ULA = IPv6Network("fc00::/7")  # RFC 4193
_SHARED = IPv4Network("100.64.0.0/10")  # RFC 6598: not routed on the Internet either
_RULES = Rules("_fabric", "plan")
_finding = _RULES.finding


def check_networks(fabric: Fabric) -> list[Finding]:
    """Return overlaps, blocks that are too small, and blocks that a fabric must not use."""
    return [
        *_check_blocks(fabric),
        *_check_sizes(fabric),
        *_check_rails(fabric),
        *_check_surroundings(fabric),
        *_check_cluster(fabric),
        *_outside(fabric),
    ]


def _of_rail(rule: str, rail: Rail, part: str, value: object, **words: object) -> Finding:
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
        if isinstance(block, IPv6Network):
            if not block.subnet_of(_ULA):
                yield _of_rail("fabric.network6.not_ula", rail, key, block)
        elif (
            block.is_multicast or block.is_loopback or block.is_link_local or block.is_unspecified or block.is_reserved
        ):
            yield _of_rail("fabric.network.special", rail, key, block)
        elif not (block.is_private or block.subnet_of(_SHARED)):
            yield _of_rail("fabric.network.public", rail, key, block)


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
            wanted = min(prefix, 32 - (highest + 1).bit_length()) - indices
            words = {"highest": highest, "vfs": vfs, "wanted": wanted}
            yield _of_rail("fabric.network.too_small/hosts", rail, "network", rail.network, **words)
        elif vfs > room:
            size = {"prefix": fabric.slot_prefix(rail), "wanted": prefix - indices}
            yield _of_rail(
                "fabric.network.too_small/indices", rail, "network", rail.network, room=room, vfs=vfs, **size
            )
        if rail.network6 is None:
            continue
        need = 1 if fabric.scheme == "subnet-per-rail" else max(vfs, 1)
        room6 = 1 << (64 - rail.network6.prefixlen) if rail.network6.prefixlen <= 64 else 0
        if need > room6:
            yield _of_rail("fabric.network6.too_small", rail, "network6", rail.network6, room=room6, need=need)


def without_hosts(fabric: Fabric, rail: Rail) -> bool:
    """Tell whether the block of a rail is too small for any numbering of the hosts, whatever their node ids are."""
    own = rail.network.prefixlen >= fabric.subnet_prefix
    return own and bool(fabric.hosts) and fabric.slot_size(rail) - 2 < len(fabric.hosts)


def _check_rails(fabric: Fabric) -> Iterator[Finding]:
    for (first, _key, one), (second, key, other) in combinations(_blocks(fabric), 2):
        if not _overlap(one, other):
            continue
        if one == other:
            yield _of_rail("fabric.network.same", second, key, other, other=first.name)
        else:
            yield _of_rail("fabric.network.overlap", second, key, other, other=first.name, block=one)


def _check_surroundings(fabric: Fabric) -> Iterator[Finding]:
    for rail, key, block in _blocks(fabric):
        managed = [network for network in fabric.management_networks if _overlap(block, network)]
        for network in managed:
            yield _of_rail("fabric.network.management", rail, key, block, network=network)
        for _variable, network in fabric.cluster_networks:
            if _overlap(block, network):
                yield _of_rail("fabric.network.cluster", rail, key, block, network=network)
        inside = _managed_in(fabric, block)
        # The finding about a management network is also about its hosts.
        if unexplained := {host: at for host, at in inside.items() if not any(_inside(at, one) for one in managed)}:
            yield _of_rail("fabric.network.management_address", rail, key, block, hosts=_shown(unexplained))


def _check_cluster(fabric: Fabric) -> Iterator[Finding]:
    """Compare the networks of pods and services with each other and with those from which the hosts are managed."""
    for (key, one), (other_key, other) in combinations(fabric.cluster_networks, 2):
        if _overlap(one, other):
            yield _RULES.finding("fabric.cluster.overlap", str(other), key=other_key, network=one, other=key)
    for key, network in fabric.cluster_networks:
        for managed in fabric.management_networks:
            if _overlap(network, managed):
                yield _RULES.finding("fabric.cluster.management", str(network), key=key, network=managed)
        if inside := _managed_in(fabric, network):
            yield _RULES.finding("fabric.cluster.management_address", str(network), key=key, hosts=_shown(inside))


def _outside(fabric: Fabric) -> Iterator[Finding]:
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


def _managed_in(fabric: Fabric, block: Network) -> dict[str, str | None]:
    """Return the management addresses that are in a block, by host."""
    return {host.name: host.management_address for host in fabric.hosts if _inside(host.management_address, block)}


def _shown(addresses: Mapping[str, str | None]) -> str:
    return some_of([f"{name} ({address})" for name, address in addresses.items()])


def _inside(text: str | None, block: Network) -> bool:
    try:
        return ip_address(text or "") in block
    except ValueError:  # a host name, which is not resolved here
        return False


IPV6_MIN_MTU = 1280  # RFC 8200: below this MTU the netdev has no IPv6 and so no link-local GID
USUAL_VFS = 4  # documented limit of a GB10's port
ROCE_4096_MTU = 4096 + ROCE_HEADER_BYTES
SMALLEST_RING, LARGEST_RING = 3, 8


def check_fabric(fabric: Fabric) -> list[Finding]:
    """Return the findings about hosts, rails, subnets, hardware and management, and about their combination."""
    return [
        *check_node_ids(fabric),
        *_check_management(fabric),
        *_check_ports(fabric),
        *check_mtu(fabric),
        *_check_topology(fabric),
        *check_networks(fabric),
    ]


def check_node_ids(fabric: Fabric) -> Iterator[Finding]:
    """Yield the findings about node ids: two hosts with the same one, and those for which a rail has no room."""
    by_id: dict[int, list[str]] = defaultdict(list)
    for host in fabric.hosts:
        by_id[host.node_id].append(host.name)
    for node_id, names in by_id.items():
        if len(names) > 1:
            yield _finding("fabric.node_id.duplicate", node_id, names[-1], hosts=some_of(names))
    for host in fabric.hosts:
        small: dict[tuple[int, int], list[str]] = defaultdict(list)
        for port in host.ports:
            largest = fabric.slot_size(port.rail) - 2
            # A block without room for the hosts has a finding of its own.
            if host.node_id > largest and not without_hosts(fabric, port.rail):
                small[fabric.slot_prefix(port.rail), largest].append(port.rail.name)
        for (prefix, largest), rails in small.items():
            words = {"prefix": prefix, "rail": some_of(list(dict.fromkeys(rails))), "largest": largest}
            yield _finding("fabric.node_id.range/subnet", host.node_id, host.name, **words)


def _check_management(fabric: Fabric) -> Iterator[Finding]:
    by_place: dict[tuple[str, str], list[str]] = defaultdict(list)
    for host in fabric.hosts:
        if host.management_address:
            by_place[host.management_address, host.management_port].append(host.name)
    for (address, _place), names in by_place.items():
        if len(names) > 1:
            yield _finding("fabric.management.duplicate", address, names[-1], hosts=some_of(names))
    unknown = [host.name for host in fabric.hosts if not host.management_interface]
    if unknown:
        yield _finding("fabric.management.undeclared", None, hosts=some_of(unknown))


def _check_ports(fabric: Fabric) -> Iterator[Finding]:
    for host in fabric.hosts:
        if fabric.rails and not host.ports and not fabric.unclear:
            yield _finding("fabric.host.no_rail", None, host.name)
        for first, second in combinations(host.ports, 2):
            if first.name == second.name:
                yield _finding("fabric.pf.duplicate", second.name, host.name, key=second.key, other=first.rail.name)
            elif first.rdma_device == second.rdma_device:
                words = {"key": second.key, "device": first.rdma_device, "other": first.name}
                yield _finding("fabric.rdma.duplicate", second.name, host.name, **words)
        for port in host.ports:
            yield from _check_port(host, port)


def _check_port(host: Host, port: Port) -> Iterator[Finding]:
    pci = port.pci or "PCI_ADDRESS"
    if port.name == host.management_interface:
        yield _finding("fabric.pf.management", port.name, host.name, key=port.key)
    longest = vf_netdev(port.name, max(port.vf_count - 1, 0))
    if len(longest) > NETDEV_MAX:
        yield _finding("fabric.netdev.length", port.name, host.name, key=port.key, longest=longest, limit=NETDEV_MAX)
    if port.total_vfs == 0:
        yield _finding("fabric.sriov.disabled", 0, host.name, pf=port.name, pci=pci, count=port.vf_count or USUAL_VFS)
    elif port.total_vfs is not None and port.vf_count > port.total_vfs:
        most = port.total_vfs
        yield _finding("fabric.vf_count.hardware", port.vf_count, host.name, pf=port.name, pci=pci, most=most)


def check_mtu(fabric: Fabric) -> Iterator[Finding]:
    """Yield the findings about the MTU, which do not depend on the rest of the fabric."""
    if fabric.mtu < IPV6_MIN_MTU:
        yield _finding("fabric.mtu.low", fabric.mtu, least=IPV6_MIN_MTU, usual=DEFAULT_MTU)
    elif fabric.mtu < ROCE_4096_MTU:
        yield _finding("fabric.mtu.roce", fabric.mtu, usual=DEFAULT_MTU)
    for host in fabric.hosts:
        for port in host.ports:
            if port.max_mtu is not None and fabric.mtu > port.max_mtu:
                yield _finding("fabric.mtu.port", fabric.mtu, host.name, pf=port.name, most=port.max_mtu)


def _check_topology(fabric: Fabric) -> Iterator[Finding]:
    count = len(fabric.hosts) + fabric.unnumbered
    if fabric.topology == "single" and count > 1:
        yield _finding("fabric.topology.single", "single", count=count)
    if fabric.topology == "direct" and count != 2:
        yield _finding("fabric.topology.direct", "direct", count=count)
    if fabric.unnumbered:
        # Which hosts a cable joins is known only of those that are planned.
        return
    if fabric.topology in ("ring", "chain"):
        yield from _check_cables(fabric)
    elif count > 1:
        for rail, members in _members(fabric).items():
            if len(members) == 1 and rail not in fabric.unclear:
                yield _finding("fabric.rail.alone", members, rail=rail, host=members[0])


def _check_cables(fabric: Fabric) -> Iterator[Finding]:
    """Check that the cables of a ring or chain join two hosts each, and all hosts in one ring or chain."""
    shape, count = fabric.topology, len(fabric.hosts)
    other = "ring" if shape == "chain" else "chain"
    if not SMALLEST_RING <= count <= LARGEST_RING:
        yield _finding("fabric.topology.ring", shape, least=SMALLEST_RING, most=LARGEST_RING, count=count)
        return
    for rail, members in _members(fabric).items():
        if len(members) != 2 and rail not in fabric.unclear:
            yield _finding("fabric.topology.cable", members, rail=rail, shape=shape, count=len(members))
    if fabric.unclear:
        return
    rails = {host.name: [port.rail.name for port in host.ports] for host in fabric.hosts}
    degrees = {host: len(neighbours(rails, host)) for host in sorted(rails)}
    wanted = [1, 1, *[2] * (count - 2)] if shape == "chain" else [2] * count
    if sorted(degrees.values()) != wanted:
        shown = ", ".join(f"{host} has {degree}" for host, degree in degrees.items())
        ends = "two ends with one neighbour and two neighbours for all others" if shape == "chain" else "two neighbours"
        yield _finding("fabric.topology.open_ring/neighbours", shape, ends=ends, shown=shown, other=other)
    elif not connected(rails):
        yield _finding("fabric.topology.open_ring/several", shape)


def _members(fabric: Fabric) -> dict[str, list[str]]:
    members: dict[str, list[str]] = {rail.name: [] for rail in fabric.rails}
    for host in fabric.hosts:
        for name in dict.fromkeys(port.rail.name for port in host.ports):
            members[name].append(host.name)
    return members


def check_plan(fabric: Fabric, plan: Plan) -> list[Finding]:
    """Return collisions of addresses, MACs and names in the finished plan, with each other or with existing ones."""
    return [*_check_addresses(fabric, plan), *_check_macs(plan), *_check_nads(plan), *_check_evenness(plan)]


def _check_addresses(fabric: Fabric, plan: Plan) -> Iterator[Finding]:
    """Find planned addresses that something else has; those of two VFs differ if ids are distinct and blocks apart."""
    taken = set()
    for text in fabric.reserved:
        try:
            taken.add(str(ip_address(text)))
        except ValueError as error:
            yield _finding("fabric.reserved.invalid", text, error=error)
    for name, planned in _distinct_ids(plan):
        own = [(vf.netdev, (vf.address, vf.address6)) for vf in planned.vfs]
        for netdev, addresses in [*own, *((pf.name, (pf.address, None)) for pf in planned.pfs)]:
            for address in taken.intersection(filter(None, addresses)):
                yield _finding("fabric.address.in_use", address, name, netdev=netdev)


def _distinct_ids(plan: Plan) -> Iterator[tuple[str, HostPlan]]:
    """Yield one host per node id: a duplicate id has its own finding, so its consequences are not reported again."""
    seen: set[int] = set()
    for name, planned in plan.hosts.items():
        if planned.node_id not in seen:
            seen.add(planned.node_id)
            yield name, planned


def _check_macs(plan: Plan) -> Iterator[Finding]:
    owners: dict[str, str] = {}
    for name, planned in _distinct_ids(plan):
        for vf in planned.vfs:
            here = f"{name} {vf.netdev}"
            if owners.setdefault(vf.mac, here) != here:
                yield _finding("fabric.mac.duplicate", vf.mac, name, netdev=vf.netdev, owner=owners[vf.mac])


def _check_nads(plan: Plan) -> Iterator[Finding]:
    owners: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for planned in plan.hosts.values():
        for vf in planned.vfs:
            owners[vf.nad].add((vf.rail, vf.netdev))
    for nad, devices in owners.items():
        if len(devices) > 1:
            shown = ", ".join(f"{netdev} of {rail}" for rail, netdev in sorted(devices))
            yield _finding("fabric.nad.collision", nad, shown=shown)
        if len(nad) > 63:
            yield _finding("fabric.nad.length", nad, count=len(nad))
        if not nad.replace("-", "").isalnum() or not nad.isascii() or nad != nad.lower():
            yield _finding("fabric.nad.name", nad)


def _check_evenness(plan: Plan) -> Iterator[Finding]:
    counts: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, planned in plan.hosts.items():
        for pf in planned.pfs:
            counts[pf.rail][pf.vf_count].append(name)
    for rail, by_count in counts.items():
        if len(by_count) > 1:
            shown = "; ".join(f"{count} on {some_of(names)}" for count, names in sorted(by_count.items()))
            yield _finding("fabric.vf_count.uneven", shown, rail=rail)
