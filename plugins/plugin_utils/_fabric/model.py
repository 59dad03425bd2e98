# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fabric's data model: declared rails, ports and hosts, and the plan that is computed from them.

Private to the collection. Each input (``Rail``, ``Port``, ``Host``, ``Fabric``) was already checked by itself. The
results (``VfPlan`` … ``Plan``) are plain data that every role reads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Network
from itertools import combinations
from typing import Any, Literal, TypeAlias, get_args

from ansible_collections.gb10.cluster.plugins.module_utils._host.interfaces import port_stem

Rails: TypeAlias = "Mapping[str, Sequence[str]]"
"""The rails of every host, in rail order."""


def plan_rails(plan: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the rails on which each host of a fabric plan has VFs."""
    return {
        name: tuple(dict.fromkeys(vf["rail"] for vf in sorted(host["vfs"], key=lambda vf: int(vf["rail_index"]))))
        for name, host in plan.get("hosts", {}).items()
    }


def shared_rails(rails: Rails, first: str, *others: str) -> tuple[str, ...]:
    """Return the rails that all these hosts are on, in rail order."""
    return tuple(rail for rail in rails[first] if all(rail in rails[other] for other in others))


def neighbours(rails: Rails, host: str) -> tuple[str, ...]:
    return tuple(other for other in rails if other != host and shared_rails(rails, host, other))


def unlinked(rails: Rails, hosts: Sequence[str]) -> list[tuple[str, str]]:
    return [pair for pair in combinations(hosts, 2) if not shared_rails(rails, *pair)]


def connected(rails: Rails) -> bool:
    """Tell whether every host reaches every other one, directly or through others."""
    reached: set[str] = set()
    ahead = list(rails)[:1]
    while ahead:
        host = ahead.pop()
        reached.add(host)
        ahead += [other for other in neighbours(rails, host) if other not in reached]
    return len(reached) == len(rails)


def ring_order(rails: Rails, hosts: Sequence[str]) -> tuple[str, ...] | None:
    """Return ``hosts`` in an order in which each shares a rail with the next and the last with the first, if any."""

    def extend(path: tuple[str, ...]) -> tuple[str, ...] | None:
        if len(path) == len(hosts):
            return path if shared_rails(rails, path[-1], path[0]) else None
        steps = (host for host in hosts if host not in path and shared_rails(rails, path[-1], host))
        return next((found for step in steps if (found := extend((*path, step)))), None)

    return extend((hosts[0],))


SCHEMA = 1
Scheme = Literal["subnet-per-vf", "subnet-per-rail"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
Topology = Literal["switch", "direct", "ring", "chain", "mixed", "single"]
TOPOLOGIES: tuple[Topology, ...] = get_args(Topology)


@dataclass(frozen=True)
class Rail:
    """One plane of the fabric: PFs that reach each other. ``hosts`` is set if a cable joins only some hosts."""

    name: str
    index: int
    pf: str
    network: IPv4Network
    network6: IPv6Network | None
    pf_rdma: str | None
    hosts: tuple[str, ...] | None


@dataclass(frozen=True)
class Port:
    """The PF of one host on one rail.

    ``total_vfs``, ``max_mtu`` (bytes) and ``pci`` (address) come from the hardware; None if it was not read.
    """

    rail: Rail
    name: str
    rdma_device: str
    vf_count: int
    total_vfs: int | None
    max_mtu: int | None
    pci: str | None

    @property
    def key(self) -> str:
        """The variable that names this PF: that of the host if it has one, otherwise that of the rail."""
        own = self.name != self.rail.pf
        return f"gb10_fabric_pfs.{self.rail.name}" if own else f"gb10_fabric_rails.{self.rail.name}.pf"


@dataclass(frozen=True)
class Host:
    """A node as declared: its number, its ports, and its management interface and address."""

    name: str
    node_id: int
    ports: tuple[Port, ...]
    management_interface: str | None
    management_address: str | None
    management_port: str


@dataclass(frozen=True)
class Fabric:
    """The planner's whole input; each value was checked, but not yet in combination with others."""

    hosts: tuple[Host, ...]
    rails: tuple[Rail, ...]
    mtu: int
    scheme: Scheme
    topology: Topology
    transit: bool
    subnet_prefix: int
    mac_seed: str
    management_networks: tuple[IPv4Network | IPv6Network, ...]
    # each with the variable that sets it
    cluster_networks: tuple[tuple[str, IPv4Network | IPv6Network], ...]
    reserved: tuple[str, ...]
    # hosts that are left out, because their number is missing or invalid
    unnumbered: int
    # rails with a member that is left out, for the same reason; a rail that is left out itself has its number here
    unclear: frozenset[str] = frozenset()

    def slot_prefix(self, rail: Rail) -> int:
        """Return the prefix of the block of one VF index of ``rail``; a smaller rail block is one such block."""
        return max(self.subnet_prefix, rail.network.prefixlen)

    def slot_size(self, rail: Rail) -> int:
        """Return the number of addresses of one VF index of ``rail``; node ids from 1 to this number - 2 fit."""
        return 1 << (32 - self.slot_prefix(rail))


@dataclass(frozen=True)
class RailPlan:
    """A rail with the blocks from which its subnets are taken."""

    name: str
    index: int
    network: str
    network6: str | None


@dataclass(frozen=True)
class Route:
    """A route to a subnet (``to``) over the address of another host (``via``)."""

    to: str
    via: str


@dataclass(frozen=True)
class PfPlan:
    """A physical function and how many VFs it gets. ``mtu`` in bytes. Only transit gives it an address and routes."""

    rail: str
    rail_index: int
    name: str
    rdma_device: str
    vf_count: int
    mtu: int
    address: str | None = None
    prefix: int | None = None
    routes: list[Route] = field(default_factory=list)


@dataclass(frozen=True)
class VfPlan:
    """A virtual function: its names, its MAC, and the addresses used both on the host and in a pod."""

    rail: str
    rail_index: int
    vf_index: int
    pf: str
    netdev: str
    rdma_device: str
    mac: str
    address: str
    prefix: int
    address6: str | None
    prefix6: int | None
    nad: str


@dataclass(frozen=True)
class HostPlan:
    """The part of the plan for one host."""

    node_id: int
    pfs: list[PfPlan]
    vfs: list[VfPlan]


@dataclass(frozen=True)
class NetworkPlan:
    """One NetworkAttachmentDefinition: the netdev that it moves and the netdev's subnet."""

    nad: str
    rail: str
    rail_index: int
    vf_index: int
    device: str
    subnet: str
    subnet6: str | None


@dataclass(frozen=True)
class Plan:
    """The whole fabric, complete before anything is written."""

    mtu: int
    scheme: Scheme
    topology: Topology
    transit: bool
    rails: list[RailPlan]
    networks: list[NetworkPlan]
    hosts: dict[str, HostPlan]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data in the documented shape, without ``findings``."""
        return {"schema": SCHEMA, **asdict(self)}


def vf_mac(seed: str, rail: str, node_id: int, vf_index: int) -> str:
    """Return a locally administered unicast MAC that depends only on the arguments.

    It consists of ``02``, two bytes of a hash of seed and rail, two of the node id, and one of the VF index. MACs
    cannot collide within a rail. Two rails, or two clusters on one switch, collide once in 65536; the planner reports
    collisions inside one plan.
    """
    plane = hashlib.sha256(f"{seed}/{rail}".encode()).digest()[:2]
    return (b"\x02" + plane + node_id.to_bytes(2, "big") + vf_index.to_bytes(1, "big")).hex(":")


def nad_name(rail: Rail, pf: str, vf_index: int) -> str:
    """Return the NAD of a VF. A host-device NAD names one netdev; PFs other than the rail's default have their own."""
    usual = f"gb10-{rail.name}-vf{vf_index}"
    return usual if pf == rail.pf else f"{usual}-{port_stem(pf).lower()}"


def slot_address(fabric: Fabric, rail: Rail, vf_index: int, node_id: int) -> IPv4Address | None:
    """Return a VF's IPv4 address, which does not depend on other hosts; None if it is outside the rail's block."""
    number = int(rail.network.network_address) + vf_index * fabric.slot_size(rail) + node_id
    return IPv4Address(number) if number <= int(rail.network.broadcast_address) else None
