# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Derive the cables from what every port sees, find mistakes, and compare them with the plan."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import combinations
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, Severity

from .model import Plan, Topology

SVG_MARGIN, SVG_BOX, SVG_GAP, SVG_ROW = 40, 260, 280, 40  # pixels
# enp1s0f1np1: no PCI domain is the first half; f1 is cage 1
_NAME = re.compile(r"en(?P<domain>P\d+)?p\d+s\d+f(?P<cage>\d+)")


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
        match = _NAME.match(self.name)
        return int(match["domain"] is not None) if match else None

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
        speed = fact.get("speed_mbps")
        return cls(
            host=host,
            name=fact["name"],
            mac=fact["mac"],
            carrier=bool(fact["carrier"]),
            neighbours=tuple(fact["neighbours"]),
            # The kernel reports -1 for a link that is down.
            speed_gbps=speed / 1000 if speed and speed > 0 else None,
            pcie_width=fact.get("pcie_width"),
            pcie_max_width=fact.get("pcie_max_width"),
            mtu=fact.get("mtu"),
            mtu_passes=fact.get("mtu_passes"),
            switch=" port ".join(filter(None, (fact.get("switch"), fact.get("switch_port")))),
            link_local=fact.get("link_local", True),
        )


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


def _finding(
    rule: str, key: str, value: object, reason: str, remedy: str, where: str = "", severity: Severity = "warning"
) -> Finding:
    return Finding(severity, f"cabling.{rule}", key, value, reason, remedy, where, "ports")


def judge(ports: Sequence[Port], plan: Plan) -> list[Finding]:
    """Return the mistakes of the cabling by itself, and its differences from the plan."""
    found = segments(ports)
    return [*_check_cables(_cables(found), plan.topology), *_check_ports(ports), *_compare(ports, found, plan)]


def _check_cables(cables: Mapping[tuple[str, str], Sequence[Segment]], topology: Topology) -> Iterator[Finding]:
    between: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (one, two), halves in cables.items():
        first, second = halves[0]
        key = f"{one} - {two}"
        if first.host == second.host:
            # Both halves of one cage see each other through a switch.
            if one != two:
                reason = f"two ports of {first.host} see each other: a cable joins them, or one switch has both"
                yield _finding("loop", key, first.name, reason, "Connect each cage to another host.", first.host)
            continue
        between[first.host, second.host].append(key)
        if first.cage is None or second.cage is None:
            continue
        if first.cage == second.cage:
            reason = "the cable joins the same cage of both hosts; NCCL cannot serve a ring with such a cable"
            remedy = "Two hosts alone can use it. In a ring connect cage 0 of each host to cage 1 of the next."
            severity: Severity = "warning" if topology == "ring" else "info"
            yield _finding("same_cage", key, f"cage {first.cage}", reason, remedy, severity=severity)
        if any(near.half != far.half for near, far in halves):
            names = ", ".join(" - ".join(port.name for port in half) for half in halves)
            reason = "the halves are crossed: the first half of one cage meets the second half of the other"
            yield _finding("halves", key, names, reason, "Use a straight cable, or name the PFs in gb10_fabric_pfs.")
        if len(halves) == 1:
            reason = "only one PCIe half sees the other host, so the cable has half of its bandwidth"
            remedy = "Set both PFs of the cage up (`ip link set PF up`), reseat the cable, and look at `ethtool PF`."
            yield _finding("half_missing", key, first.name, reason, remedy)
    for hosts, keys in between.items():
        if len(keys) > 1:
            reason = f"{len(keys)} cables join {' and '.join(hosts)}; a second one needs its own rails"
            remedy = "Declare rails for both, or use the second cable for another host."
            yield _finding("double", "cables", "; ".join(keys), reason, remedy, severity="info")


def _check_ports(ports: Sequence[Port]) -> Iterator[Finding]:
    fastest = max((port.speed_gbps for port in ports if port.speed_gbps), default=0.0)
    for port in ports:
        if port.speed_gbps and port.speed_gbps < fastest:
            reason = f"slower than other ports, which have {fastest:g} Gb/s"
            remedy = "Reseat or replace the cable; set the switch port to the speed of the others."
            yield _finding("slow", port.name, f"{port.speed_gbps:g} Gb/s", reason, remedy, port.host)
        if port.pcie_width and port.pcie_max_width and port.pcie_width < port.pcie_max_width:
            reason = f"the PCIe link has {port.pcie_width} lanes of {port.pcie_max_width}"
            remedy = "Unplug the power of the host for a minute, and update its firmware."
            yield _finding("pcie", port.name, f"x{port.pcie_width}", reason, remedy, port.host)
        if port.mtu and port.mtu_passes is not None and port.mtu_passes < port.mtu:
            passes = f"only {port.mtu_passes} passes" if port.mtu_passes else "no large packet passes"
            reason = f"the port has MTU {port.mtu}, but {passes} to the first neighbour"
            remedy = "Set the same MTU on the neighbour's port (playbook fabric), and an L2 MTU of 9216 on a switch."
            yield _finding("mtu", port.name, port.mtu, reason, remedy, port.host)


def _compare(ports: Sequence[Port], found: Sequence[Segment], plan: Plan) -> Iterator[Finding]:
    """Report planned links that do not exist, and cables that no rail uses."""
    by_name = {(port.host, port.name): port for port in ports}
    where = {port: segment for segment in found for port in segment}
    rails: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for host, planned in plan.hosts.items():
        for pf in planned.pfs:
            rails[pf.rail].append((host, pf.name))
    used = set()
    for rail, members in rails.items():
        present = [by_name[member] for member in members if member in by_name]
        used |= set(present)
        for one, two in combinations(present, 2):
            if two not in where.get(one, ()):
                reason = (
                    f"the plan joins {one.label} and {two.label}, but {_sight(one, where)}, and {_sight(two, where)}"
                )
                remedy = "Move the cable, or correct hosts and gb10_fabric_pfs of the rail."
                yield _finding("inventory", f"rail {rail}", one.name, reason, remedy, one.host, "error")
    for segment in found if rails else ():
        if not used & set(segment):
            labels = " and ".join(port.label for port in segment)
            reason = f"no rail uses the link between {labels}"
            yield _finding("unplanned", "link", labels, reason, "Declare a rail for it.", severity="info")


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
