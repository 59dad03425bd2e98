# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the links, addresses and counters of a rank's planned rails."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .._rdma.counters import SCRIPT, parse_counters
from .._rdma.gids import ROCE_V2, parse_state, read_devices
from .._sriov.physical_functions import read_int, read_link, read_text
from .state import Rail


def _has_carrier(interface: str) -> bool:
    # The kernel refuses this read while the interface is set down.
    return read_int(Path("/sys/class/net", interface, "carrier")) == 1


def counted(sysfs_root: str) -> dict[str, Any]:
    """Return the counters of all devices and interfaces as ``parse_counters`` does; raise OSError, SubprocessError."""
    command = ["/bin/sh", "-c", SCRIPT, "sh", sysfs_root, "/sys"]
    # pylint: disable-next=ansible-bad-function
    ran = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    return parse_counters(ran.stdout)


def link(interface: str) -> dict[str, int | None]:
    """Return the speed of a link, and how often it changed."""
    # Some drivers, veth for one, report a speed without carrier.
    return read_link("/sys", interface) | ({} if _has_carrier(interface) else {"speed": None})


def gids_and_mtus(rails: Iterable[Rail], sysfs_root: str) -> tuple[frozenset[str], dict[str, int]]:
    """Return the planned addresses that have a RoCE v2 GID, and the MTUs of the interfaces."""
    rails = tuple(rails)
    wanted = {(rail.device, rail.address) for rail in rails}
    found = {
        gid.ipv4
        for device in read_devices(sysfs_root)
        for port in device.ports
        for gid in port.gids
        if gid.type == ROCE_V2 and gid.ipv4 and (device.name, gid.ipv4) in wanted
    }
    mtus = {rail.interface: read_int(Path("/sys/class/net", rail.interface, "mtu")) for rail in rails}
    return frozenset(found), {name: mtu for name, mtu in mtus.items() if mtu is not None}


def down(rails: Iterable[Rail], sysfs_root: str, rdma: bool) -> tuple[str, ...]:
    """Return what is wrong with each rail that has no link."""
    found = []
    for rail in rails:
        # An RDMA device of a VF has one port.
        state = parse_state(read_text(Path(sysfs_root, "class/infiniband", rail.device, "ports/1/state")))
        if not _has_carrier(rail.interface):
            found.append(f"{rail.interface} has no carrier")
        elif rdma and state not in (None, "ACTIVE"):
            found.append(f"{rail.device} has port state {state}")
    return tuple(found)


def sent(rails: Iterable[Rail], counted: Mapping[str, Mapping[str, int]]) -> int | None:
    """Return the bytes that the rails have sent by RDMA; None if no device counts them."""
    devices = [counted.get(rail.device, {}) for rail in rails]
    counts = [counters["xmit_bytes"] for counters in devices if "xmit_bytes" in counters]
    return sum(counts) if counts else None
