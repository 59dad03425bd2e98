# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find errors of the fabric as a whole before anything is written. Private to the collection."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from ipaddress import ip_address
from itertools import combinations

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, Severity
from ansible_collections.gb10.cluster.plugins.module_utils._common.terms import DEFAULT_MTU, ROCE_HEADER_BYTES
from ansible_collections.gb10.cluster.plugins.module_utils._host.interfaces import NETDEV_MAX, vf_netdev

from .links import connected, neighbours
from .model import Fabric, Host, HostPlan, Plan, Port, Rail
from .reader import some_of
from .subnets import check_networks

IPV6_MIN_MTU = 1280  # RFC 8200: below this MTU the netdev has no IPv6 and so no link-local GID
USUAL_VFS = 4  # documented limit of a GB10's port
ROCE_4096_MTU = 4096 + ROCE_HEADER_BYTES
SMALLEST_RING, LARGEST_RING = 3, 8


def _finding(
    rule: str, key: str, value: object, reason: str, remedy: str, where: str = "", severity: Severity = "error"
) -> Finding:
    return Finding(severity, f"fabric.{rule}", key, value, reason, remedy, where, "plan")


def check_fabric(fabric: Fabric) -> list[Finding]:
    """Return the findings about hosts, rails, subnets, hardware and management, and about their combination."""
    return [
        *_check_node_ids(fabric),
        *_check_management(fabric),
        *_check_ports(fabric),
        *_check_mtu(fabric),
        *_check_topology(fabric),
        *check_networks(fabric),
    ]


def _check_node_ids(fabric: Fabric) -> Iterator[Finding]:
    by_id: dict[int, list[str]] = defaultdict(list)
    for host in fabric.hosts:
        by_id[host.node_id].append(host.name)
    for node_id, names in by_id.items():
        if len(names) > 1:
            reason = f"the same number on {some_of(names)}, so they would have the same addresses"
            yield _finding("node_id.duplicate", "gb10_node_id", node_id, reason, "Give each host its own.", names[-1])
    for host in fabric.hosts:
        for port in host.ports:
            largest = fabric.slot_size(port.rail) - 2
            if host.node_id > largest:
                prefix = fabric.slot_prefix(port.rail)
                reason = f"a /{prefix} subnet of {port.rail.name} has room for 1 … {largest}"
                remedy = "Use a smaller number, or a shorter gb10_fabric_subnet_prefix and a larger block."
                yield _finding("node_id.range", "gb10_node_id", host.node_id, reason, remedy, host.name)


def _check_management(fabric: Fabric) -> Iterator[Finding]:
    by_place: dict[tuple[str, str], list[str]] = defaultdict(list)
    for host in fabric.hosts:
        if host.management_address:
            by_place[host.management_address, host.management_port].append(host.name)
    for (address, _place), names in by_place.items():
        if len(names) > 1:
            reason = f"the same on {some_of(names)}, so one machine would be set up several times and others never"
            remedy = "Give each host the address of its own machine."
            yield _finding("management.duplicate", "ansible_host", address, reason, remedy, names[-1])
    unknown = [host.name for host in fabric.hosts if not host.management_interface]
    if unknown:
        reason = f"not declared for {some_of(unknown)}, so a plan that uses it for the fabric is not rejected"
        remedy = "Set it to the interface of Ansible's connection and of K3s, for example enP7s7."
        yield _finding("management.undeclared", "gb10_management_interface", None, reason, remedy, severity="warning")


def _check_ports(fabric: Fabric) -> Iterator[Finding]:
    for host in fabric.hosts:
        if not host.ports:
            reason = "the host is on no rail, so it would have no fabric address"
            yield _finding("host.no_rail", "gb10_fabric_pfs", None, reason, "Set its PF for a rail.", host.name)
        for first, second in combinations(host.ports, 2):
            key = f"gb10_fabric_pfs.{second.rail.name}"
            if first.name == second.name:
                reason = f"also the PF of rail {first.rail.name}; a PF carries only one rail"
                yield _finding("pf.duplicate", key, second.name, reason, "Give each rail its own PF.", host.name)
            elif first.rdma_device == second.rdma_device:
                reason = f"RDMA device {first.rdma_device} is also declared for {first.name}"
                yield _finding("rdma.duplicate", key, second.name, reason, "Correct rdma_device.", host.name)
        for port in host.ports:
            yield from _check_port(host, port)


def _check_port(host: Host, port: Port) -> Iterator[Finding]:
    key = f"gb10_fabric_pfs.{port.rail.name}"
    if port.name == host.management_interface:
        reason = "the management interface; setting up the fabric would disconnect the host"
        yield _finding("pf.management", key, port.name, reason, "Name a ConnectX PF.", host.name)
    longest = vf_netdev(port.name, max(port.vf_count - 1, 0))
    if len(longest) > NETDEV_MAX:
        reason = f"its VF would be called {longest}, and the kernel accepts at most {NETDEV_MAX} characters"
        yield _finding("netdev.length", key, port.name, reason, "Rename the PF, or plan fewer VFs.", host.name)
    if port.total_vfs == 0:
        yield _finding(
            "sriov.disabled",
            "gb10_pf_totalvfs",
            0,
            f"{port.name} offers no VFs: SR-IOV is off in its firmware",
            f"Turn it on and power-cycle: mlxconfig -d {port.pci or 'PCI_ADDRESS'} set SRIOV_EN=1"
            f" NUM_OF_VFS={port.vf_count or USUAL_VFS}.",
            host.name,
        )
    elif port.total_vfs is not None and port.vf_count > port.total_vfs:
        reason = f"{port.name} has at most {port.total_vfs} (sriov_totalvfs)"
        command = f"mlxconfig -d {port.pci or 'PCI_ADDRESS'} set SRIOV_EN=1 NUM_OF_VFS={port.vf_count}"
        remedy = f"Set auto, or {port.total_vfs} or less. To get more, run {command} and power-cycle the host."
        yield _finding("vf_count.hardware", "gb10_fabric_vf_count", port.vf_count, reason, remedy, host.name)


def _check_mtu(fabric: Fabric) -> Iterator[Finding]:
    if fabric.mtu < IPV6_MIN_MTU:
        reason = f"below {IPV6_MIN_MTU}, where the kernel drops IPv6 and with it the port's own GID"
        yield _finding("mtu.low", "gb10_fabric_mtu", fabric.mtu, reason, f"Use {DEFAULT_MTU}.")
    elif fabric.mtu < ROCE_4096_MTU:
        reason = "RoCE packets carry less than 4096 bytes, so active_mtu and bandwidth fall"
        yield _finding("mtu.roce", "gb10_fabric_mtu", fabric.mtu, reason, f"Use {DEFAULT_MTU}.", severity="warning")
    for host in fabric.hosts:
        for port in host.ports:
            if port.max_mtu is not None and fabric.mtu > port.max_mtu:
                reason = f"{port.name} takes {port.max_mtu} at most"
                remedy = f"Set {port.max_mtu} or less, on every host and the switch."
                yield _finding("mtu.port", "gb10_fabric_mtu", fabric.mtu, reason, remedy, host.name)


def _check_topology(fabric: Fabric) -> Iterator[Finding]:
    key, count = "gb10_fabric_topology", len(fabric.hosts)
    if fabric.topology == "single" and count > 1:
        remedy = "Set switch, direct, ring, chain or mixed."
        yield _finding("topology.single", key, "single", f"{count} hosts are declared", remedy)
    if fabric.topology == "direct" and count != 2:
        reason = f"a direct cable joins 2 hosts, {count} are declared"
        yield _finding("topology.direct", key, "direct", reason, "Set switch, or ring with a rail for each cable.")
    if fabric.topology in ("ring", "chain"):
        yield from _check_cables(fabric)
    elif count > 1:
        for rail, members in _members(fabric).items():
            if len(members) == 1:
                reason = f"only {members[0]} is on it, so it has no peer there"
                yield _finding("rail.alone", f"gb10_fabric_rails.{rail}", members, reason, "Give it a second host.")


def _check_cables(fabric: Fabric) -> Iterator[Finding]:
    """Check that the cables of a ring or chain join two hosts each, and all hosts in one ring or chain."""
    key, shape, count = "gb10_fabric_topology", fabric.topology, len(fabric.hosts)
    other = "ring" if shape == "chain" else "chain"
    if not SMALLEST_RING <= count <= LARGEST_RING:
        reason = f"a {shape} without a switch is for {SMALLEST_RING} to {LARGEST_RING} hosts, {count} are declared"
        yield _finding("topology.ring", key, shape, reason, "Set switch, direct or mixed.")
        return
    for rail, members in _members(fabric).items():
        if len(members) != 2:
            reason = f"a cable of a {shape} joins 2 hosts, this rail has {len(members)}"
            yield _finding("topology.cable", f"gb10_fabric_rails.{rail}", members, reason, "Set its hosts: [a, b].")
    rails = {host.name: [port.rail.name for port in host.ports] for host in fabric.hosts}
    degrees = {host: len(neighbours(rails, host)) for host in sorted(rails)}
    wanted = [1, 1, *[2] * (count - 2)] if shape == "chain" else [2] * count
    if sorted(degrees.values()) != wanted:
        shown = ", ".join(f"{host} has {degree}" for host, degree in degrees.items())
        ends = "two ends with one neighbour and two neighbours for all others" if shape == "chain" else "two neighbours"
        reason = f"a {shape} needs {ends}, but {shown}"
        remedy = f"Declare a rail for every cable, or set {other} or mixed."
        yield _finding("topology.open_ring", key, shape, reason, remedy)
    elif not connected(rails):
        reason = f"the cables form several {shape}s, and hosts of different ones can't reach each other"
        yield _finding("topology.open_ring", key, shape, reason, "Correct the rails' hosts, or set mixed.")


def _members(fabric: Fabric) -> dict[str, list[str]]:
    return {rail.name: [host.name for host in fabric.hosts if _on(host, rail)] for rail in fabric.rails}


def _on(host: Host, rail: Rail) -> bool:
    return any(port.rail.name == rail.name for port in host.ports)


def check_plan(fabric: Fabric, plan: Plan) -> list[Finding]:
    """Return collisions of addresses, MACs and names in the finished plan, with each other or with existing ones."""
    return [*_check_addresses(fabric, plan), *_check_macs(plan), *_check_nads(plan), *_check_evenness(plan)]


def _check_addresses(fabric: Fabric, plan: Plan) -> Iterator[Finding]:
    taken: dict[str, str] = {}
    for text in fabric.reserved:
        try:
            taken[str(ip_address(text))] = "gb10_fabric_reserved_addresses"
        except ValueError as error:
            remedy = "Write one address, without prefix."
            yield _finding("reserved.invalid", "gb10_fabric_reserved_addresses", text, str(error), remedy)
    for host in fabric.hosts:
        if host.management_address:
            taken.setdefault(host.management_address, f"the management address of {host.name}")
    for name, planned in _distinct_ids(plan):
        own = [(vf.netdev, (vf.address, vf.address6)) for vf in planned.vfs]
        for netdev, addresses in [*own, *((pf.name, (pf.address, None)) for pf in planned.pfs)]:
            for address in filter(None, addresses):
                here = f"{name} {netdev}"
                if address in taken:
                    owner = taken[address]
                    in_plan = owner.startswith("planned for ")
                    rule = "address.duplicate" if in_plan else "address.in_use"
                    remedy = (
                        "Give hosts distinct gb10_node_id." if in_plan else "Choose another gb10_node_id or network."
                    )
                    yield _finding(rule, f"{netdev} address", address, owner, remedy, name)
                else:
                    taken[address] = f"planned for {here}"


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
                reason = f"{owners[vf.mac]} has the same MAC"
                remedy = "Change gb10_fabric_mac_seed, or a rail's name."
                yield _finding("mac.duplicate", f"{vf.netdev} MAC", vf.mac, reason, remedy, name)


def _check_nads(plan: Plan) -> Iterator[Finding]:
    owners: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for planned in plan.hosts.values():
        for vf in planned.vfs:
            owners[vf.nad].add((vf.rail, vf.netdev))
    for nad, devices in owners.items():
        if len(devices) > 1:
            shown = ", ".join(f"{netdev} of {rail}" for rail, netdev in sorted(devices))
            reason = f"a NAD names one netdev, but this one would name {shown}"
            yield _finding(
                "nad.collision", "nad", nad, reason, "Rename the rail, or the PF (NAD names are lower-case)."
            )
        yield from _check_nad_name(nad)


def _check_nad_name(nad: str) -> Iterator[Finding]:
    if len(nad) > 63:
        yield _finding(
            "nad.length", "nad", nad, f"{len(nad)} characters, but the limit is 63", "Use a shorter rail name."
        )
    if not nad.replace("-", "").isalnum() or not nad.isascii() or nad != nad.lower():
        reason = "not a Kubernetes name (lower-case letters, digits and dashes)"
        yield _finding("nad.name", "nad", nad, reason, "Rename the rail or the PF.")


def _check_evenness(plan: Plan) -> Iterator[Finding]:
    counts: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, planned in plan.hosts.items():
        for pf in planned.pfs:
            counts[pf.rail][pf.vf_count].append(name)
    for rail, by_count in counts.items():
        if len(by_count) > 1:
            shown = "; ".join(f"{count} on {some_of(names)}" for count, names in sorted(by_count.items()))
            reason = "an instance uses the same VF index on every node, so the host with the fewest VFs limits it"
            remedy = "Set the same gb10_fabric_vf_count for all hosts, or ignore this."
            yield _finding("vf_count.uneven", f"VFs of {rail}", shown, reason, remedy, severity="info")
