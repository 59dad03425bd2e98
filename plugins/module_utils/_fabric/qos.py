# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Configure the classes of lossless RoCE on a port, from Ansible and again at every boot. Private to the collection.

Uses ``dcb`` of iproute2; the kernel keeps its settings until a reboot. Priority flow control (PFC) is set for one
class, and two DSCPs are each assigned to a class. mlx5 trusts DSCP instead of VLAN priorities as long as such an entry
exists (mlx5e_dcbnl_ieee_setapp and _delapp in Linux drivers/net/ethernet/mellanox/mlx5/core/en_dcbnl.c).
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
    """The classes 0 … 7 with PFC, which pause instead of dropping, and the class per DSCP 0 … 63 (None: no entry)."""

    lossless: frozenset[int]
    classes: Mapping[int, int | None]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data in a form that JSON preserves."""
        return {
            "lossless": sorted(self.lossless),
            "classes": {str(dscp): number for dscp, number in sorted(self.classes.items())},
        }


def from_dict(data: Mapping[str, Any]) -> Qos:
    """Return the object from the result of as_dict()."""
    return Qos(frozenset(data["lossless"]), {int(dscp): number for dscp, number in data["classes"].items()})


def parse_pfc(output: str) -> frozenset[int]:
    """Return the classes with PFC from the output of ``dcb pfc show dev X prio-pfc``."""
    return frozenset(int(number) for number, state in PFC_ENTRY.findall(output) if state == "on")


def parse_dscp(output: str) -> dict[int, int]:
    """Return the classes by DSCP from the output of ``dcb -N app show dev X dscp-prio``."""
    return {int(dscp): int(number) for dscp, number in DSCP_ENTRY.findall(output)}


def observe(port: str, dscps: Iterable[int]) -> Qos:
    """Return a port's present settings for the named DSCPs. Raise HostError if its driver does not support them."""
    try:
        pfc = system.run(["dcb", "pfc", "show", "dev", port, "prio-pfc"]).stdout
        app = system.run(["dcb", "-N", "app", "show", "dev", port, "dscp-prio"]).stdout
    except system.HostError as error:
        raise system.HostError(
            f"{port}: its classes can't be read ({error}); is it a ConnectX PF of this host?"
        ) from error
    present = parse_dscp(app)
    return Qos(parse_pfc(pfc), {dscp: present.get(dscp) for dscp in dscps})


def steps(port: str, now: Qos, wanted: Qos) -> list[list[str]]:
    """Return the commands that change one state to the other; empty if the states are equal."""
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


def apply(todo: Iterable[list[str]]) -> None:
    """Run the commands."""
    for command in todo:
        system.run(command)


def configuration(wanted: Qos, origin: Mapping[str, Qos], ports: Iterable[str], timeout: int) -> str:
    """Return the content of /etc/gb10/qos.json; ``origin`` is the state of every port before the first change."""
    content = {
        "schema": 1,
        "timeout": timeout,
        "wanted": wanted.as_dict(),
        "ports": list(ports),
        "origin": {port: qos.as_dict() for port, qos in sorted(origin.items())},
    }
    return json.dumps(content, indent=2) + "\n"


def boot(path: Path) -> list[str]:
    """Wait for every port, configure its classes, and return what went wrong for each port."""
    config = json.loads(path.read_text(encoding="utf-8"))
    wanted, problems = from_dict(config["wanted"]), []
    for port in config["ports"]:
        present = Path("/sys/class/net", port)
        system.wait_for(present.exists, float(config["timeout"]))
        try:
            apply(steps(port, observe(port, wanted.classes), wanted))
        except system.HostError as error:
            problems.append(str(error))
    return problems


if __name__ == "__main__":
    failures = boot(Path(sys.argv[1]))
    sys.stdout.write(("\n".join(failures) or "all ports have their classes") + "\n")
    raise SystemExit(bool(failures))
