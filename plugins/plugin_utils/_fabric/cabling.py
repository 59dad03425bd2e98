# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Derive the cables from what every port sees, find mistakes, and compare them with the plan."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from ipaddress import ip_interface, ip_network
from itertools import combinations, count
from typing import Any

import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._common import plain
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, Severity

from .._controller.data import Rules
from .model import HostPlan, Plan, RailPlan, Topology, VfPlan, connected, neighbours, shared_rails

_RULES = Rules("_fabric", "host")

Addresses = Mapping[str, Sequence[str]]
"""The addresses with prefix of every interface of a host."""

# Rules of the plan that compare a value of the inventory with what the port reports.
_PORT_RULES = {
    f"fabric.{rule}"
    for rule in ("pf.unknown", "rdma.unknown", "rdma.differs", "sriov.disabled", "vf_count.hardware", "mtu.port")
}


def about_ports(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings of a plan that say how the ports of a host differ from the inventory."""
    return [finding for finding in findings if finding.rule in _PORT_RULES]


def check_hosts(
    plan: Plan, variables: Mapping[str, Mapping[str, Any]], found: Mapping[str, Addresses]
) -> Iterator[Finding]:
    """Return where the management interface or the fabric's addresses of a host differ from the inventory."""
    for host, known in found.items():
        yield from _check_management(host, variables.get(host, {}), known)
        if host in plan.hosts:
            yield from _check_addresses(host, plan.hosts[host], known)


def _check_management(host: str, variables: Mapping[str, Any], known: Addresses) -> Iterator[Finding]:
    declared, address = variables.get("gb10_management_interface"), str(variables.get("ansible_host", ""))
    holders = [name for name, own in known.items() if address in {one.split("/")[0] for one in own}]
    if not declared or declared in holders or (declared in known and not holders):
        return
    place = f"{address} is the address of {holders[0]}" if holders else "`ip -br address` lists its interfaces"
    what = "Ansible reaches the host elsewhere" if declared in known else "the host has no such interface"
    wanted = holders[0] if holders else "the one that Ansible uses"
    yield _RULES.finding("cabling.management", declared, host, host=host, what=what, place=place, wanted=wanted)


def _check_addresses(host: str, planned: HostPlan, known: Addresses) -> Iterator[Finding]:
    wrong = [
        (vf, [one for one in known[vf.netdev] if ":" not in one])
        for vf in planned.vfs
        if known.get(vf.netdev) and f"{vf.address}/{vf.prefix}" not in known[vf.netdev]
    ]
    if wrong:
        vf, has = wrong[0]
        ids = {_node_id(one, vf, planned.node_id) for vf, own in wrong for one in own}
        cause = ""
        if len(ids) == 1 and (node_id := ids.pop()):
            cause = f", so the host was set up as gb10_node_id {node_id}, not {planned.node_id}"
        yield _RULES.finding(
            "cabling.address",
            ", ".join(has) or None,
            host,
            key=vf.netdev,
            wrong=len(wrong),
            count=len(planned.vfs),
            planned=f"{vf.address}/{vf.prefix}",
            cause=cause,
        )


def _node_id(address: str, planned: VfPlan, node_id: int) -> int:
    """Return the node id with which a VF would have this address; 0 for an address of another subnet."""
    try:
        has, wanted = ip_interface(address), ip_interface(f"{planned.address}/{planned.prefix}")
    except ValueError:
        return 0
    return node_id + int(has) - int(wanted) if has.network == wanted.network else 0


SVG_MARGIN, SVG_BOX, SVG_GAP, SVG_ROW = 40, 260, 280, 40  # pixels
_finding = Rules("_fabric", "ports").finding
# enp1s0f1np1: no PCI domain is the first half; f1 is cage 1
_NAME = re.compile(r"en(?P<domain>P\d+)?p\d+s\d+f(?P<cage>\d+)")


def half_of(name: str) -> int | None:
    """Return the PCIe half of the cage that an interface is, 0 or 1 on a GB10; None if the name does not tell it."""
    match = _NAME.match(name)
    return int(match["domain"] is not None) if match else None


@dataclass(frozen=True)
class Port:
    """One physical function and what it sees; ``cage`` and ``half`` are None if the name does not tell them."""

    host: str
    name: str
    mac: str
    carrier: bool
    neighbours: tuple[str, ...]
    speed_gbps: float | None = None
    pcie_width: int | None = None
    pcie_max_width: int | None = None
    mtu: int | None = None
    mtu_passes: int | None = None
    switch: str = ""
    link_local: bool = True

    @property
    def cage(self) -> int | None:
        """Return the cage, 0 or 1 on a GB10."""
        match = _NAME.match(self.name)
        return int(match["cage"]) if match else None

    @property
    def half(self) -> int | None:
        """Return the PCIe half of the cage, 0 or 1 on a GB10."""
        return half_of(self.name)

    @property
    def label(self) -> str:
        """Return the host with the name of the port."""
        return f"{self.host} {self.name}"

    @property
    def place(self) -> str:
        """Return the host with the cage, or with the name of the port if the cage is unknown."""
        return self.label if self.cage is None else f"{self.host} cage {self.cage}"

    @classmethod
    def of(cls, host: str, fact: Mapping[str, Any]) -> Port:
        """Return the port that one entry of the fact ``gb10_cabling`` describes."""
        # The kernel reports -1 for a link that is down.
        speed = max(0, fact.get("speed_mbps") or 0) / 1000
        switch = " port ".join(filter(None, (fact.get("switch"), fact.get("switch_port"))))
        return plain.load(cls, {**fact, "host": host, "speed_gbps": speed, "switch": switch})


Segment = tuple[Port, ...]


def _order(port: Port) -> tuple[str, int, int, str]:
    return (port.host, port.cage or 0, port.half or 0, port.name)


def segments(ports: Sequence[Port]) -> list[Segment]:
    """Return the ports that see each other: two on a cable, more on a switch. It suffices that one sees the other."""
    by_mac = {port.mac: port for port in ports}
    joined: dict[Port, set[Port]] = {port: {port} for port in ports}
    for port in ports:
        for other in (by_mac[mac] for mac in port.neighbours if mac in by_mac):
            if joined[other] is not joined[port]:
                joined[port] |= joined[other]
                joined |= dict.fromkeys(joined[port], joined[port])
    found = {frozenset(group) for group in joined.values() if len(group) > 1}
    return sorted((tuple(sorted(group, key=_order)) for group in found), key=lambda group: [*map(_order, group)])


def _cables(found: Sequence[Segment]) -> dict[tuple[str, str], list[Segment]]:
    """Return the halves of each cable by the two cages that it joins."""
    cables: dict[tuple[str, str], list[Segment]] = defaultdict(list)
    for segment in found:
        if len(segment) == 2:
            cables[segment[0].place, segment[1].place].append(segment)
    return cables


def draw(ports: Sequence[Port]) -> list[str]:
    """Return the cabling as lines of text: cables, switches, and ports that see nobody."""
    found = segments(ports)
    lines = []
    for (one, two), halves in _cables(found).items():
        rates = sorted({f"{port.speed_gbps:g} Gb/s" for half in halves for port in half if port.speed_gbps})
        widths = sorted({f"x{port.pcie_width}" for half in halves for port in half if port.pcie_width})
        mtus = sorted({str(port.mtu_passes) for half in halves for port in half if port.mtu_passes})
        names = ", ".join(" - ".join(port.name for port in half) for half in halves)
        facts = [
            names,
            " and ".join(rates),
            f"PCIe {' and '.join(widths)}" if widths else "",
            f"MTU {' and '.join(mtus)} passes" if mtus else "",
        ]
        lines.append(f"{one} === {two} ({'; '.join(filter(None, facts))})")
    for segment in found:
        if len(segment) > 2:
            lines.append("switch: " + ", ".join(f"{p.label}{p.switch and f' ({p.switch})'}" for p in segment))
    lonely = [port for port in ports if not any(port in segment for segment in found)]
    for port in lonely:
        strangers = ", ".join(port.neighbours)
        nobody = "nobody" if port.link_local else "nobody, as it has no IPv6 link-local address"
        seen = port.switch or (f"only unknown machines ({strangers})" if strangers else nobody)
        lines.append(f"{port.label}: {f'sees {seen}' if port.carrier else 'no link'}")
    return lines


def judge(ports: Sequence[Port], plan: Plan) -> list[Finding]:
    """Return the mistakes of the cabling by itself, and its differences from the plan."""
    found = segments(ports)
    return [*_check_cables(_cables(found), plan.topology), *_check_ports(ports), *_compare(ports, found, plan)]


def _check_cables(cables: Mapping[tuple[str, str], Sequence[Segment]], topology: Topology) -> Iterator[Finding]:
    between: dict[tuple[str, str], list[str]] = defaultdict(list)
    ends = [halves[0] for halves in cables.values()]
    # a whole ring has a cable for each host
    whole = topology == "ring" and len(ends) == len({port.host for pair in ends for port in pair}) > 0
    alike = whole and all(one.host != two.host and one.cage is not None and one.cage == two.cage for one, two in ends)
    if alike:
        yield _finding("cabling.same_cage/all", "cage 0 - cage 0, cage 1 - cage 1", key="all cables")
    for (one, two), halves in cables.items():
        first, second = halves[0]
        key = f"{one} - {two}"
        if first.host == second.host:
            # Both halves of one cage see each other through a switch.
            if one != two:
                yield _finding("cabling.loop", first.name, first.host, key=key, host=first.host)
            continue
        between[first.host, second.host].append(key)
        if first.cage is None or second.cage is None:
            continue
        if first.cage == second.cage and not alike:
            severity: Severity = "warning" if topology == "ring" else "info"
            yield _finding("cabling.same_cage", f"cage {first.cage}", severity=severity, key=key)
        if any(near.half != far.half for near, far in halves):
            names = ", ".join(" - ".join(port.name for port in half) for half in halves)
            yield _finding("cabling.halves", names, key=key)
        if len(halves) == 1:
            yield _finding("cabling.half_missing", first.name, key=key)
    for hosts, keys in between.items():
        if len(keys) > 1:
            yield _finding("cabling.double", "; ".join(keys), count=len(keys), hosts=" and ".join(hosts))


def _check_ports(ports: Sequence[Port]) -> Iterator[Finding]:
    fastest = max((port.speed_gbps for port in ports if port.speed_gbps), default=0.0)
    for port in ports:
        if port.speed_gbps and port.speed_gbps < fastest:
            yield _finding("cabling.slow", f"{port.speed_gbps:g} Gb/s", port.host, key=port.name, fastest=fastest)
        if port.pcie_width and port.pcie_max_width and port.pcie_width < port.pcie_max_width:
            lanes = {"lanes": port.pcie_width, "most": port.pcie_max_width}
            yield _finding("cabling.pcie", f"x{port.pcie_width}", port.host, key=port.name, **lanes)
        if port.mtu and port.mtu_passes is not None and port.mtu_passes < port.mtu:
            passes = f"only {port.mtu_passes} passes" if port.mtu_passes else "no large packet passes"
            yield _finding("cabling.mtu", port.mtu, port.host, key=port.name, passes=passes)


def _compare(ports: Sequence[Port], found: Sequence[Segment], plan: Plan) -> Iterator[Finding]:
    """Report planned links that do not exist, and cables that no rail uses."""
    where = {port: segment for segment in found for port in segment}
    rails = _members(ports, plan)
    for rail, members in rails.items():
        for one, two in combinations(members, 2):
            if two not in where.get(one, ()):
                yield _apart(rail, one, two, where)
    used = {port for members in rails.values() for port in members}
    for segment in found if rails else ():
        if not used & set(segment):
            yield _finding("cabling.unplanned", " and ".join(port.label for port in segment))


def moved(ports: Sequence[Port], plan: Plan) -> Iterator[Finding]:
    """Yield the planned links of which one port sees another port of these hosts instead.

    A port that sees nobody proves nothing. Nor does one without IPv6, which nobody sees, or a port of a switch without
    a link, which another rule names.
    """
    where = {port: segment for segment in segments(ports) for port in segment}
    for rail, members in _members(ports, plan).items():
        for one, two in combinations(members, 2):
            seen = where.get(one) or where.get(two) or ()
            blind = any(port.carrier and not port.link_local for port in (one, two))
            told = seen and (len(seen) == 2 or (one.carrier and two.carrier))
            if two not in where.get(one, ()) and told and not blind:
                yield _apart(rail, one, two, where)


def _members(ports: Sequence[Port], plan: Plan) -> dict[str, list[Port]]:
    """Return the ports of each rail that exist."""
    by_name = {(port.host, port.name): port for port in ports}
    rails: dict[str, list[Port]] = defaultdict(list)
    for host, planned in plan.hosts.items():
        for pf in planned.pfs:
            if (host, pf.name) in by_name:
                rails[pf.rail].append(by_name[host, pf.name])
    return rails


def _apart(rail: str, one: Port, two: Port, where: Mapping[Port, Segment]) -> Finding:
    words = {"one": one.label, "two": two.label, "first": _sight(one, where), "second": _sight(two, where)}
    return _finding("cabling.inventory", one.name, one.host, rail=rail, **words)


def _sight(port: Port, where: Mapping[Port, Segment]) -> str:
    if not port.carrier:
        return f"{port.label} has no link"
    others = [other.label for other in where.get(port, ()) if other != port]
    return f"{port.label} sees {', '.join(others) or 'none of the hosts'}"


def draw_svg(ports: Sequence[Port]) -> str:
    """Return the cabling as an SVG picture: a box per host with its ports, a curve per pair of ports that meet."""
    place: dict[Port, tuple[int, int]] = {}
    parts, tops = [], [SVG_ROW, SVG_ROW]
    for number, host in enumerate(sorted({port.host for port in ports})):
        own, side = [port for port in ports if port.host == host], number % 2
        left, top = SVG_MARGIN + side * (SVG_BOX + SVG_GAP), tops[side]
        height = SVG_ROW * (len(own) + 1)
        parts.append(f'<rect x="{left}" y="{top}" width="{SVG_BOX}" height="{height}" fill="none" stroke="black"/>')
        parts.append(f'<text x="{left + 10}" y="{top + 25}" font-weight="bold">{escape(host)}</text>')
        for index, port in enumerate(own, start=1):
            middle = top + index * SVG_ROW + 25
            label = escape(port.name) + ("" if port.carrier else " (no link)")
            parts.append(f'<text x="{left + 10}" y="{middle}">{label}</text>')
            place[port] = (left if side else left + SVG_BOX, middle - 5)
        tops[side] = top + height + SVG_ROW
    for first, *others in segments(ports):
        for (x1, y1), (x2, y2) in ((place[first], place[other]) for other in others):
            bend = (
                (x1 + x2) // 2 if x1 != x2 else x1 + (SVG_GAP // 3 if x1 < SVG_MARGIN + SVG_BOX + 1 else -SVG_GAP // 3)
            )
            parts.append(f'<path d="M {x1} {y1} C {bend} {y1} {bend} {y2} {x2} {y2}" fill="none" stroke="steelblue"/>')
    size = f'width="{2 * (SVG_MARGIN + SVG_BOX) + SVG_GAP}" height="{max(tops)}"'
    return "\n".join(
        [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">', *parts, "</svg>", ""]
    )


def ports_of(facts: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Port]:
    """Return the ports of all hosts from their facts ``gb10_cabling``, by host, cage and half."""
    every = [Port.of(host, fact) for host, found in sorted(facts.items()) for fact in found]
    return sorted(every, key=_order)


HALVES = 2  # rails of a host without others: both halves of its first cage
FIRST_BLOCK = 100  # 10.100.0.0/16, as in the example inventories


def suggest(ports: Sequence[Port], plan: Plan | None = None) -> dict[str, Any]:
    """Return topology and rails for the whole group, and ``gb10_fabric_pfs`` of the hosts that need it.

    A rail of the plan that joins the same hosts keeps its name and blocks, so that no address moves. Others are new.
    """
    every = {port.host for port in ports}
    usable = [part for segment in segments(ports) for part in _split(segment)]
    if len(every) == 1:
        usable = [(port,) for port in ports[:HALVES]]
    if len(every) == 2:
        usable = _in_order(usable)
    blocks = _blocks(plan)
    rails: list[dict[str, Any]] = []
    pfs: dict[str, dict[str, str]] = {}
    old = _joined(plan)
    for segment in usable:
        hosts = [port.host for port in segment]
        # the rail of the same half first
        same = sorted((half != segment[0].half, at) for at, (one, half, _rail) in enumerate(old) if one == set(hosts))
        rail = {"pf": segment[0].name, **(_block(old.pop(same[0][1])[2]) if same else next(blocks))}
        rails.append(rail if set(hosts) == every else rail | {"hosts": hosts})
        for port in segment:
            if port.name != rail["pf"]:
                pfs.setdefault(port.host, {})[rail["name"]] = port.name
    group = {"gb10_fabric_topology": _topology(usable, every), "gb10_fabric_rails": rails}
    return {"group": group, "hosts": {host: {"gb10_fabric_pfs": own} for host, own in sorted(pfs.items())}}


def _blocks(plan: Plan | None) -> Iterator[dict[str, str]]:
    """Yield names and blocks that no rail of the plan has."""
    names = {rail.name for rail in plan.rails} if plan else set()
    taken = [ip_network(rail.network) for rail in plan.rails] if plan else []
    for index in count():
        block = ip_network(f"10.{FIRST_BLOCK + index}.0.0/16")
        if f"rail{index}" not in names and not any(block.overlaps(other) for other in taken):
            yield {"name": f"rail{index}", "network": str(block)}


def _block(rail: RailPlan) -> dict[str, str]:
    return {"name": rail.name, "network": rail.network} | ({"network6": rail.network6} if rail.network6 else {})


def _joined(plan: Plan | None) -> list[tuple[set[str], int | None, RailPlan]]:
    """Return the rails of a plan with the hosts that they join, and the half of their PFs."""
    if plan is None:
        return []
    found = []
    for rail in plan.rails:
        ends = [(host, pf.name) for host, own in plan.hosts.items() for pf in own.pfs if pf.rail == rail.name]
        halves = {half_of(name) for _host, name in ends}
        found.append(({host for host, _name in ends}, halves.pop() if len(halves) == 1 else None, rail))
    return found


MAP_HEADER = """\
# The cables as playbook discover of gb10.cluster found them. Add this file as the last -i of your runs. The plan then
# uses these rails.
---
"""
_SOUND = re.compile(r"[A-Za-z0-9_.-]{1,15}")  # of an interface; a host's text must not reach an inventory as a template


def write_map(ports: Sequence[Port], plan: Plan) -> str:
    """Return an inventory that replaces the rails of another one by those that fit the cables; empty without cables.

    Its variables are those of hosts, because these have precedence over ``group_vars`` of the inventory before.
    """
    fitting = suggest(ports, plan)
    rails = fitting["group"]["gb10_fabric_rails"]
    if not rails or not all(_SOUND.fullmatch(port.name) for port in ports):
        return ""
    hosts = {
        host: {**fitting["group"], "gb10_fabric_pfs": {}, **fitting["hosts"].get(host, {})}
        for host in sorted({port.host for port in ports})
    }
    return MAP_HEADER + yaml.safe_dump({"gb10_nodes": {"hosts": hosts}}, sort_keys=False, width=120)


def _split(segment: Segment) -> list[Segment]:
    """Return a segment with one port per host, or several: where a switch joins both halves, each half is a rail."""
    by_host: dict[str, list[Port]] = {}
    for port in segment:
        by_host.setdefault(port.host, []).append(port)
    rounds = range(max(map(len, by_host.values())))
    parts = [tuple(own[turn] for own in by_host.values() if turn < len(own)) for turn in rounds]
    return [part for part in parts if len(part) > 1]


def _in_order(found: Sequence[Segment]) -> list[Segment]:
    """Return the links of two hosts whose ports are in the same order on both: NCCL joins devices by their number."""
    kept: list[Segment] = []
    for segment in found:
        ends = [tuple(port.name for port in link) for link in (*kept, segment)]
        if sorted(ends) == sorted(ends, key=lambda names: names[1]):
            kept.append(segment)
    return kept


def _topology(found: Sequence[Segment], every: set[str]) -> Topology:
    rails = {
        host: [str(index) for index, segment in enumerate(found) if host in {port.host for port in segment}]
        for host in sorted(every)
    }
    if len(every) < 2:
        return "single"
    if shared_rails(rails, *rails):
        return "direct" if len(every) == 2 else "switch"
    degrees = sorted(len(neighbours(rails, host)) for host in rails)
    cables = connected(rails) and len(every) <= 8
    if cables and degrees == [2] * len(every):
        return "ring"
    return "chain" if cables and degrees == [1, 1, *[2] * (len(every) - 2)] else "mixed"
