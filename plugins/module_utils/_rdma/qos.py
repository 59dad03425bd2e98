# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Give a port the classes of lossless RoCE, from Ansible and again at every boot. Private to the collection.

Uses ``dcb`` of iproute2, whose settings the kernel keeps: priority flow control (PFC) for one class, and a class for
each of two DSCPs. mlx5 trusts DSCP instead of VLAN priorities as long as such an entry exists
(mlx5e_dcbnl_ieee_setapp and _delapp in Linux drivers/net/ethernet/mellanox/mlx5/core/en_dcbnl.c).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._host import system

# "prio-pfc 0:off 1:off 2:off 3:on 4:off …" and "dscp-prio 26:3 48:6" (dcb-pfc(8), dcb-app(8))
PFC_ENTRY = re.compile(r"\b([0-7]):(on|off)\b")
DSCP_ENTRY = re.compile(r"\b(\d+):([0-7])\b")


@dataclass(frozen=True)
class Qos:
    """Classes 0 … 7 that pause instead of dropping, and the class of each DSCP 0 … 63; None: that DSCP has no entry."""

    lossless: frozenset[int]
    classes: Mapping[int, int | None]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data that JSON keeps."""
        return {
            "lossless": sorted(self.lossless),
            "classes": {str(dscp): number for dscp, number in sorted(self.classes.items())},
        }


def from_dict(data: Mapping[str, Any]) -> Qos:
    """Return what as_dict() was made from."""
    return Qos(frozenset(data["lossless"]), {int(dscp): number for dscp, number in data["classes"].items()})


def parse_pfc(output: str) -> frozenset[int]:
    """Return the classes with PFC that ``dcb pfc show dev X prio-pfc`` printed."""
    return frozenset(int(number) for number, state in PFC_ENTRY.findall(output) if state == "on")


def parse_dscp(output: str) -> dict[int, int]:
    """Return the classes by DSCP that ``dcb -N app show dev X dscp-prio`` printed."""
    return {int(dscp): int(number) for dscp, number in DSCP_ENTRY.findall(output)}


def observe(port: str, dscps: Iterable[int]) -> Qos:
    """Return what a port has now, of the named DSCPs. Raise HostError where its driver has no such settings."""
    try:
        pfc = system.run(["dcb", "pfc", "show", "dev", port, "prio-pfc"]).stdout
        app = system.run(["dcb", "-N", "app", "show", "dev", port, "dscp-prio"]).stdout
    except system.HostError as error:
        raise system.HostError(
            f"{port}: its classes can't be read ({error}); is it a ConnectX PF of this host?"
        ) from error
    present = parse_dscp(app)
    return Qos(parse_pfc(pfc), {dscp: present.get(dscp) for dscp in dscps})


def commands(port: str, now: Qos, wanted: Qos) -> list[list[str]]:
    """Return the commands that lead from one state to the other; none where they are the same."""
    todo = []
    if now.lossless != wanted.lossless:
        entries = [f"{number}:{'on' if number in wanted.lossless else 'off'}" for number in range(8)]
        todo.append(["dcb", "pfc", "set", "dev", port, "prio-pfc", *entries])
    for dscp, number in sorted(wanted.classes.items()):
        old = now.classes.get(dscp)
        if number is not None and number != old:
            todo.append(["dcb", "app", "replace", "dev", port, "dscp-prio", f"{dscp}:{number}"])
        elif number is None and old is not None:
            todo.append(["dcb", "app", "del", "dev", port, "dscp-prio", f"{dscp}:{old}"])
    return todo


def configuration(wanted: Qos, origin: Mapping[str, Qos], ports: Iterable[str], timeout: int) -> str:
    """Return the content of /etc/gb10/qos.json; ``origin`` is what every port had before the first change."""
    content = {
        "schema": 1,
        "timeout": timeout,
        "wanted": wanted.as_dict(),
        "ports": list(ports),
        "origin": {port: qos.as_dict() for port, qos in sorted(origin.items())},
    }
    return json.dumps(content, indent=2) + "\n"


def boot(path: Path) -> list[str]:
    """Wait for every port, give it its classes, and return what went wrong, port by port."""
    config = json.loads(path.read_text(encoding="utf-8"))
    wanted, problems = from_dict(config["wanted"]), []
    for port in config["ports"]:
        present = Path("/sys/class/net", port)
        system.wait_for(present.exists, float(config["timeout"]))
        try:
            for command in commands(port, observe(port, wanted.classes), wanted):
                system.run(command)
        except system.HostError as error:
            problems.append(str(error))
    return problems


if __name__ == "__main__":
    failures = boot(Path(sys.argv[1]))
    sys.stdout.write(("\n".join(failures) or "all ports have their classes") + "\n")
    raise SystemExit(bool(failures))
