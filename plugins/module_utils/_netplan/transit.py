# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let the fabric's ports forward packets to each other where a firewall drops forwarded packets, as Docker's does.

Only a rule in the chain FORWARD itself can accept such packets: a packet that one nftables chain accepts is still
dropped by the next. The rules are in a chain of their own, which is in front of the rules of others and changes none.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations
from pathlib import Path

from .._host import system

CHAIN = "GB10-TRANSIT"
UNIT = system.UNIT_DIRECTORY / "gb10-transit.service"
# systemd-networkd starts the unit at every boot; a file in .wants would have to be a link.
WANT = system.UNIT_DIRECTORY / "systemd-networkd.service.d" / "60-gb10-transit.conf"


def files(ports: Sequence[str]) -> dict[Path, str | None]:
    """Return the files that open the firewall for ``ports``; without ports, their removal if they exist."""
    if ports:
        return {UNIT: render(ports), WANT: f"[Unit]\nWants={UNIT.name}\n"}
    return {UNIT: None, WANT: None} if UNIT.exists() else {}


def render(ports: Sequence[str]) -> str:
    """Return the unit. A host without iptables has no such firewall."""
    close = f"iptables -w -D FORWARD -j {CHAIN}; iptables -w -F {CHAIN}; iptables -w -X {CHAIN}"
    accept = [f"iptables -w -A {CHAIN} -i {one} -o {other} -j ACCEPT" for one, other in permutations(ports, 2)]
    opened = " && ".join([f"iptables -w -N {CHAIN}", *accept, f"iptables -w -I FORWARD -j {CHAIN}"])
    return (
        "# Written by gb10.cluster from the fabric plan. Change the inventory instead: the next run overwrites this.\n"
        "[Unit]\nDescription=Accept packets that the fabric's ports forward to each other\n"
        "[Service]\nType=oneshot\nRemainAfterExit=yes\n"
        f"ExecStart=/bin/sh -c 'command -v iptables >/dev/null || exit 0; ({close}) 2>/dev/null; {opened}'\n"
        f"ExecStop=-/bin/sh -c '{close}'\n"
    )


def sync() -> None:
    """Start or stop the unit, depending on whether its file exists."""
    if not UNIT.exists():
        if not system.is_active(UNIT.name):
            return
        # systemd still has the unit in memory, with the command that removes the rules.
        system.run(["systemctl", "stop", UNIT.name])
    system.run(["systemctl", "daemon-reload"])
    if UNIT.exists():
        system.run(["systemctl", "restart", UNIT.name])


def deviations(routes: Mapping[str, Iterable[tuple[str, str]]], ports: Sequence[str]) -> list[str]:
    """Return which routes of the interfaces, and whether the rules between the ports, are missing on this host."""
    found = []
    for name, wanted in routes.items():
        shown = system.run_json(["ip", "-j", "-4", "route", "show", "dev", name]) if wanted else []
        known = {(route.get("dst"), route.get("gateway")) for route in shown}
        found += [f"route: {to} via {via} is missing" for to, via in wanted if (to, via) not in known]
    rule = ["iptables", "-w", "-C", "FORWARD", "-j", CHAIN]
    if ports and shutil.which("iptables") and system.run(rule, check=False).returncode:
        found.append(f"firewall: FORWARD lacks the chain {CHAIN}")
    return found
