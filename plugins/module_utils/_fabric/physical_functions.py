# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a host's physical functions from sysfs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

MELLANOX = "0x15b3"  # PCI vendor id of ConnectX


@dataclass(frozen=True)
class Pf:
    """A netdev whose PCI function can have VFs. ``max_mtu`` is in bytes, None if unknown."""

    name: str
    pci_address: str
    total_vfs: int
    num_vfs: int
    rdma_device: str | None
    max_mtu: int | None


def read_text(path: Path) -> str | None:
    """Return a sysfs attribute without its newline; None if it does not exist or the driver refuses the read."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """Return a sysfs attribute as a number; None if it is not a number."""
    text = read_text(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def read_link(sysfs_root: str | Path, interface: str) -> dict[str, int | None]:
    """Return how often the link of an interface came up or went down, and its speed in Mb/s (-1 or None if down)."""
    place = Path(sysfs_root, "class/net", interface)
    return {name: read_int(place / name) for name in ("carrier_changes", "speed")}


def read_pfs(sysfs_root: str, link_json: str = "[]") -> list[Pf]:
    """Return the PFs below ``sysfs_root``, by name; ``link_json`` is the output of ``ip -d -j link show``."""
    largest = max_mtus(link_json)
    pfs = []
    for netdev in sorted(Path(sysfs_root, "class/net").glob("*")):
        device = netdev / "device"
        total = read_int(device / "sriov_totalvfs")
        # A ConnectX PF has no sriov_totalvfs if SR-IOV is disabled in its firmware.
        if total is None and (read_text(device / "vendor") != MELLANOX or (device / "physfn").exists()):
            continue
        rdma = sorted(path.name for path in (device / "infiniband").glob("*"))
        pfs.append(
            Pf(
                name=netdev.name,
                pci_address=device.resolve().name,
                total_vfs=total or 0,
                num_vfs=read_int(device / "sriov_numvfs") or 0,
                rdma_device=rdma[0] if rdma else None,
                max_mtu=largest.get(netdev.name),
            )
        )
    return pfs


def max_mtus(link_json: str) -> dict[str, int]:
    """Return ``{netdev: largest MTU of its driver}`` from ``ip -d -j link show``; empty if the output is not JSON.

    iproute2 6.1 (Ubuntu 24.04) prints empty objects between links in some modes, so entries without a name are skipped.
    """
    try:
        links = json.loads(link_json or "[]")
    except ValueError:
        return {}
    return {link["ifname"]: link["max_mtu"] for link in links if link.get("ifname") and link.get("max_mtu")}


def pf_facts(pfs: list[Pf]) -> dict[str, dict[str, int | str]]:
    """Return the facts that the fabric's planner needs."""
    return {
        "gb10_pf_totalvfs": {pf.name: pf.total_vfs for pf in pfs},
        "gb10_pf_max_mtu": {pf.name: pf.max_mtu for pf in pfs if pf.max_mtu is not None},
        "gb10_pf_rdma": {pf.name: pf.rdma_device for pf in pfs if pf.rdma_device is not None},
        "gb10_pf_pci": {pf.name: pf.pci_address for pf in pfs},
    }
