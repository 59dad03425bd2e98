# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Observe what a change of the fabric must not affect: addresses, routes, rules and DNS of other interfaces."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from .._host import system

RESOLVER_FILES = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
# Parts of a route that count down by themselves or depend on the carrier.
VOLATILE = re.compile(r" (expires \d+sec|linkdown|dead)\b")
# Routes that the kernel creates per address and interface; only the addresses are compared.
KERNEL_ROUTE = re.compile(r"^(local|broadcast|anycast|multicast|fe80::|ff00::)")


def observe(fabric: Collection[str]) -> tuple[str, ...]:
    """Return the state of everything except the fabric's interfaces, one line per item."""
    links = system.links()
    # The host's end of a pod's veth pair has no global address and disappears with the pod, so it is skipped.
    found = [
        f"interface {name} that is up"
        for name, link in links.items()
        if name not in fabric
        and "LOWER_UP" in link.get("flags", [])
        and (system.addresses(link) or "link_netnsid" not in link)
    ]
    others = {name: link for name, link in links.items() if name not in fabric}
    found += [f"address {address} of {name}" for name, link in others.items() for address in system.addresses(link)]
    pods = {name for name, link in links.items() if "link_netnsid" in link and not system.addresses(link)}
    for family in ("-4", "-6"):
        for line in _lines(["ip", family, "route", "show", "table", "all"]):
            route = VOLATILE.sub("", line)
            device = re.search(r"\bdev (\S+)", route)
            if not KERNEL_ROUTE.match(route) and not (device and device[1] in {*fabric, *pods}):
                found.append(f"route {' '.join(route.split())}")
        found += [f"rule {' '.join(line.split())}" for line in _lines(["ip", family, "rule", "show"])]
    for path in RESOLVER_FILES:
        found += [f"DNS setting {line}" for line in (system.read_text(path) or "").splitlines() if line[:1].isalpha()]
    return tuple(dict.fromkeys(found))


def _lines(argv: list[str]) -> list[str]:
    return [line for line in system.run(argv).stdout.splitlines() if line.strip()]


def differences(before: Iterable[str], now: Iterable[str]) -> list[str]:
    """Return what is missing now, and new default routes; other additions are harmless (a pod that starts)."""
    old, new = list(before), list(now)
    found = [f"other interfaces: the {line} is gone" for line in old if line not in new]
    return found + [
        f"other interfaces: a new {line}" for line in new if line not in old and line.startswith("route default")
    ]


def default_routes() -> list[dict[str, Any]]:
    """Return every default route in the form of ``ip -j route``; that of a point-to-point link has no gateway."""
    return [
        *system.run_json(["ip", "-j", "route", "show", "default"]),
        *system.run_json(["ip", "-j", "-6", "route", "show", "default"]),
    ]


def protected_interfaces(named: Iterable[str], links: Mapping[str, Any]) -> dict[str, str]:
    """Return the interfaces that the fabric must not use, each with the reason."""
    found = {}
    for route in default_routes():
        leased = (
            f", which the DHCP server {route.get('gateway', '')} gave it" if route.get("protocol") == "dhcp" else ""
        )
        found[str(route.get("dev", ""))] = f"it carries the default route of this host{leased}"
    session = session_address()
    for name, link in links.items():
        if session and any(entry.get("local") == session for entry in link.get("addr_info", [])):
            found[name] = "this Ansible session comes in through it"
    return {**found, **dict.fromkeys(named, "the inventory names it as management interface")}


def session_address(proc: Path = Path("/proc")) -> str:
    """Return this host's address in the ssh session, or an empty string.

    sudo removes SSH_CONNECTION (sudoers(5), env_reset), so the environments of parent processes are read too.
    """
    pid = str(os.getpid())
    while pid not in ("", "0"):
        text = system.read_text(proc / pid / "environ") or ""
        words = next(
            (v[len("SSH_CONNECTION=") :].split() for v in text.split("\0") if v.startswith("SSH_CONNECTION=")), []
        )
        if len(words) == 4:
            return words[2]
        pid = (re.search(r"^PPid:\s*(\d+)", system.read_text(proc / pid / "status") or "", re.M) or ["", ""])[1]
    return ""


def answering_gateways() -> tuple[str, ...]:
    """Return the default gateways that answer a ping."""

    def answers(device: str, address: str) -> bool:
        argv = ["ping", "-n", "-q", "-c", "2", "-i", "0.2", "-W", "1", "-I", device, address]
        return system.run(argv, check=False, timeout=11).returncode == 0

    known = [(str(route["dev"]), str(route["gateway"])) for route in default_routes() if route.get("gateway")]
    return tuple(gateway for device, gateway in known if answers(device, gateway))
