# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plug the cables of a lab's hosts into other cages, as somebody at the rack would."""

import json
import subprocess
from collections.abc import Mapping

from gb10lab.lab import Lab
from gb10lab.machines import hosts_of
from labcommand import LabCommand


def plug(lab: LabCommand, cables: Mapping[str, str]) -> None:
    """Connect ports such as ``spark1-r0`` with their VFs to cables; an empty name leaves a port without a cable."""
    ip = ["ip", "-n", Lab(lab.state, lab.state).name]
    names = [link["ifname"] for link in json.loads(subprocess.check_output([*ip, "-j", "link"], timeout=30))]
    for name in names:
        if (port := name.rpartition("v")[0] or name) in cables:
            to = ["master", cables[port], "up"] if cables[port] else ["nomaster", "down"]
            subprocess.run([*ip, "link", "set", name, *to], check=True, timeout=30)


def cables_of(nodes: int, *exchanged: int) -> dict[str, str]:
    """Return the cable of each port of a ring in which some hosts have their cables in each other's cages.

    The ports of a host: r0 and r1 are the halves of cage 0, r2 and r3 those of cage 1.
    """
    ports = [(host, n, str(port.switch)) for host in hosts_of(nodes, "ring") for n, port in enumerate(host.ports)]
    return {f"{host.name}-r{(n + 2) % 4 if host.number in exchanged else n}": cable for host, n, cable in ports}
