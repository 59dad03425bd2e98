# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the inventory variables that fit the cables that were found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .cabling import Port, Segment, segments
from .links import connected, neighbours, shared_rails
from .model import Topology

HALVES = 2  # rails of a host without others: both halves of its first cage
FIRST_BLOCK = 100  # 10.100.0.0/16, as in the example inventories


def suggest(ports: Sequence[Port]) -> dict[str, Any]:
    """Return topology and rails for the whole group, and ``gb10_fabric_pfs`` of the hosts that need it.

    The names and blocks are new ones: use them only for an inventory without rails, as new ones move all addresses.
    """
    every = {port.host for port in ports}
    usable = [part for segment in segments(ports) for part in _split(segment)]
    if len(every) == 1:
        usable = [(port,) for port in ports[:HALVES]]
    if len(every) == 2:
        usable = _in_order(usable)
    rails: list[dict[str, Any]] = []
    pfs: dict[str, dict[str, str]] = {}
    for index, segment in enumerate(usable):
        name = f"rail{index}"
        hosts = [port.host for port in segment]
        rail = {"name": name, "pf": segment[0].name, "network": f"10.{FIRST_BLOCK + index}.0.0/16"}
        rails.append(rail if set(hosts) == every else rail | {"hosts": hosts})
        for port in segment:
            if port.name != rail["pf"]:
                pfs.setdefault(port.host, {})[name] = port.name
    group = {"gb10_fabric_topology": _topology(usable, every), "gb10_fabric_rails": rails}
    return {"group": group, "hosts": {host: {"gb10_fabric_pfs": own} for host, own in sorted(pfs.items())}}


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
        if sorted(ends) == sorted(ends, key=lambda names: names[::-1]):
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
        return "direct" if len(every) == 2 and all(len(segment) == 2 for segment in found) else "switch"
    degrees = sorted(len(neighbours(rails, host)) for host in rails)
    cables = connected(rails) and len(every) <= 8 and all(len(segment) == 2 for segment in found)
    if cables and degrees == [2] * len(every):
        return "ring"
    return "chain" if cables and degrees == [1, 1, *[2] * (len(every) - 2)] else "mixed"
