# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find which machines are at the other end of a port, without an address on it and without a change."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .._host import system

IPV6_HEADERS = 48  # bytes: IPv6 header 40, ICMPv6 header 8
ETHERNET_MTU = 1500
# "64 bytes from fe80::4ab0:2dff:fe00:100%enp1s0f0np0: icmp_seq=1 ttl=64 time=0.1 ms"
_ANSWER = re.compile(r"bytes from (fe80:[0-9a-f:]+)%")


def look(port: Mapping[str, Any], own: Collection[str]) -> dict[str, Any]:
    """Return the MACs that answer on the link of a port, and the largest packet that passes to the first of them.

    Every IPv6 host answers a ping to all nodes of the link from its link-local address. ``own`` are the MACs of this
    host, whose VFs on the same port answer too.
    """
    seen: dict[str, Any] = {"neighbours": [], "mtu_passes": None}
    if not port["carrier"]:
        return seen
    name = port["name"]
    command = ["ping", "-6", "-n", "-c", "3", "-i", "0.3", "-W", "1", f"ff02::1%{name}"]
    answers = set(_ANSWER.findall(system.run(command, check=False).stdout))
    known = {entry["dst"]: entry for entry in system.run_json(["ip", "-6", "-j", "neighbour", "show", "dev", name])}
    found = sorted(
        (address, known[address]["lladdr"].lower())
        for address in answers
        if known.get(address, {}).get("lladdr", "").lower() not in {"", *own}  # the port's own answer has no entry
    )
    if found:
        sizes = sorted({int(port["mtu"] or ETHERNET_MTU), ETHERNET_MTU}, reverse=True)
        seen["mtu_passes"] = next((size for size in sizes if _passes(found[0][0], name, size)), None)
    return seen | {"neighbours": [mac for _address, mac in found]}


def _passes(address: str, name: str, mtu: int) -> bool:
    size = str(mtu - IPV6_HEADERS)
    command = ["ping", "-6", "-n", "-q", "-M", "do", "-s", size, "-c", "2", "-i", "0.3", "-W", "1", f"{address}%{name}"]
    return system.run(command, check=False).returncode == 0


def look_everywhere(ports: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the ports with what each one sees; all ports are asked at the same time."""
    macs = {name: str(link.get("address", "")).lower() for name, link in system.links().items()}
    announced = switches()
    every = [{**port, "mac": macs.get(port["name"], ""), **announced.get(port["name"], {})} for port in ports]
    with ThreadPoolExecutor(max_workers=max(1, len(every))) as pool:
        seen = pool.map(lambda port: look(port, macs.values()), every)
        return [port | found for port, found in zip(every, seen, strict=True)]


def switches() -> dict[str, dict[str, str]]:
    """Return ``{port: {switch, switch_port}}`` from lldpd if it runs; a switch announces itself every 30 seconds."""
    if not system.is_active("lldpd.service"):
        return {}
    try:
        return parse_lldp(system.run(["lldpctl", "-f", "json0"]).stdout)
    except (system.HostError, ValueError):
        return {}


def parse_lldp(text: str) -> dict[str, dict[str, str]]:
    """Return the switch and its port for each interface from ``lldpctl -f json0``; hosts that run lldpd are left out.

    json0 makes every element a list. Of the capabilities, Bridge distinguishes a switch from a host.
    """
    found = {}
    for lldp in json.loads(text or "{}").get("lldp", []):
        for interface in lldp.get("interface", []):
            chassis, port = _first(interface.get("chassis")), _first(interface.get("port"))
            kinds = {entry.get("type") for entry in chassis.get("capability", []) if entry.get("enabled")}
            if "Bridge" in kinds:
                names = {"switch": _value(chassis, "name", "id"), "switch_port": _value(port, "descr", "id")}
                found[str(interface.get("name"))] = names
    return found


def _first(items: Any) -> dict[str, Any]:
    return items[0] if isinstance(items, list) and items else {}


def _value(item: Mapping[str, Any], *keys: str) -> str:
    return next((str(_first(item[key]).get("value", "")) for key in keys if item.get(key)), "")
