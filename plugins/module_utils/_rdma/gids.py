# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read RDMA devices, their ports and GID tables from sysfs, and check them. Private to the collection.

A queue pair over RoCE v2 needs a source GID. The kernel adds the GID ``::ffff:a.b.c.d`` when the netdev gets the
address a.b.c.d. Without that address only link-local GIDs exist, and ``ibv_modify_qp`` fails with "Network is
unreachable" if the peer is not on the same link.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

from .._common.findings import Finding, Severity
from .._common.terms import ROCE_HEADER_BYTES
from .._sriov.physical_functions import read_int, read_text

ROCE_V2 = "RoCE v2"
IB_MTUS = (4096, 2048, 1024, 512, 256)

_RATE = re.compile(r"(?P<rate>\d+(\.\d+)?) Gb/sec")  # "200 Gb/sec (4X HDR)"
_STATE = re.compile(r"\d+: (?P<name>\w+)")  # "4: ACTIVE"


@dataclass(frozen=True)
class Gid:
    """One entry of a GID table. ``ipv4`` is set for IPv4-mapped GIDs; ``type`` is the kernel's text."""

    index: int
    gid: str
    type: str | None
    ndev: str | None
    ipv4: str | None


@dataclass(frozen=True)
class RdmaPort:
    """A port. ``rate_gbps`` in Gb/s; ``active_mtu`` in bytes of RDMA payload, from ``mtu``, the netdev's MTU."""

    port: int
    state: str | None
    phys_state: str | None
    rate_gbps: float | None
    link_layer: str | None
    mtu: int | None
    active_mtu: int | None
    gids: tuple[Gid, ...]


@dataclass(frozen=True)
class RdmaDevice:
    """An RDMA device. ``netdevs`` are those of its PCI function in this network namespace."""

    name: str
    firmware: str | None
    hca_type: str | None
    netdevs: tuple[str, ...]
    ports: tuple[RdmaPort, ...]


@dataclass(frozen=True)
class Expectation:
    """A planned address and its result; ``index`` is the index of its RoCE v2 GID, None if it has none."""

    rdma_device: str
    address: str
    found: bool
    index: int | None


def ib_mtu(netdev_mtu: int) -> int:
    """Return the RDMA payload in bytes for a netdev's MTU: 4096 from 4192 on, 1024 for 1500, 0 below 352."""
    return next((size for size in IB_MTUS if netdev_mtu - ROCE_HEADER_BYTES >= size), 0)


def parse_rate(text: str | None) -> float | None:
    """Return the Gb/s in ``200 Gb/sec (4X HDR)``."""
    match = _RATE.match(text or "")
    return float(match["rate"]) if match else None


def parse_state(text: str | None) -> str | None:
    """Return the name in ``4: ACTIVE``."""
    match = _STATE.match(text or "")
    return match["name"] if match else None


def read_devices(sysfs_root: str) -> list[RdmaDevice]:
    """Return the RDMA devices below ``sysfs_root``, by name; empty if the kernel has no RDMA."""
    top = Path(sysfs_root, "class/infiniband")
    return [_read_device(Path(sysfs_root), path) for path in sorted(top.glob("*"), key=lambda path: path.name)]


def _read_device(root: Path, path: Path) -> RdmaDevice:
    netdevs = {net.name for net in (path / "device/net").glob("*")}
    # a soft device (rxe) has no PCI function and names its netdev in this attribute
    parent = read_text(path / "parent")
    netdevs |= {parent} if parent else set()
    ports = sorted((int(port.name), port) for port in (path / "ports").glob("*") if port.name.isdigit())
    return RdmaDevice(
        name=path.name,
        firmware=read_text(path / "fw_ver"),
        hca_type=read_text(path / "hca_type"),
        netdevs=tuple(sorted(netdevs)),
        ports=tuple(_read_port(root, number, port, sorted(netdevs)) for number, port in ports),
    )


def _read_port(root: Path, number: int, path: Path, netdevs: Sequence[str]) -> RdmaPort:
    gids = _read_gids(path)
    names = dict.fromkeys([*(gid.ndev for gid in gids if gid.ndev), *netdevs])
    mtus = [mtu for name in names if (mtu := read_int(root / "class/net" / name / "mtu")) is not None]
    return RdmaPort(
        port=number,
        state=parse_state(read_text(path / "state")),
        phys_state=parse_state(read_text(path / "phys_state")),
        rate_gbps=parse_rate(read_text(path / "rate")),
        link_layer=read_text(path / "link_layer"),
        mtu=mtus[0] if mtus else None,
        active_mtu=ib_mtu(mtus[0]) if mtus else None,
        gids=tuple(gids),
    )


def _read_gids(port: Path) -> list[Gid]:
    gids = []
    for path in sorted((p for p in (port / "gids").glob("*") if p.name.isdigit()), key=lambda p: int(p.name)):
        text = read_text(path)
        try:
            value = IPv6Address(text or "::")
        except ValueError:
            continue
        if value == IPv6Address(0):  # an empty slot; the kernel answers EINVAL for its type and netdev
            continue
        mapped = value.ipv4_mapped
        gids.append(
            Gid(
                index=int(path.name),
                gid=text or "",
                type=read_text(port / "gid_attrs/types" / path.name),
                ndev=read_text(port / "gid_attrs/ndevs" / path.name) or None,
                ipv4=None if mapped is None else str(mapped),
            )
        )
    return gids


def check_expected(
    devices: Sequence[RdmaDevice], expect: Sequence[Mapping[str, Any]], mtu: int | None = None
) -> tuple[list[Expectation], list[Finding]]:
    """Return the result for every expected ``{rdma_device, address, address6?}``, and the findings about them.

    ``mtu`` is the smallest MTU, in bytes, that the netdevs may have.
    """
    by_name = {device.name: device for device in devices}
    results, findings = [], []
    for item in expect:
        name = str(item.get("rdma_device"))
        device = by_name.get(name)
        if device is None:
            known = ", ".join(by_name) or "none"
            reason = f"the host does not have this RDMA device (it has: {known})"
            remedy = "Run playbook fabric, which creates the VFs, or correct rdma_device in gb10_fabric_pfs."
            findings.append(_finding("device_missing", name, None, reason, remedy))
        else:
            findings += _check_port(device, mtu)
        # an item without an address is an error
        for address in (str(item.get("address")), *filter(None, [item.get("address6")])):
            index, found = (None, []) if device is None else _check_address(device, address)
            findings += found
            results.append(Expectation(name, address, index is not None, index))
    return results, findings


def _finding(
    rule: str, key: str, value: object, reason: str, remedy: str, severity: Severity = "error", source: str = "sysfs"
) -> Finding:
    return Finding(severity, f"gid.{rule}", key, value, reason, remedy, "", source)


def _check_address(device: RdmaDevice, address: str) -> tuple[int | None, list[Finding]]:
    try:
        wanted = ip_address(address)
    except ValueError as error:
        return None, [_finding("address", device.name, address, str(error), "Give an address without prefix.")]
    same = [gid for port in device.ports for gid in port.gids if _is(gid, wanted)]
    index = next((gid.index for gid in same if gid.type == ROCE_V2), None)
    if index is not None:
        return index, []
    if same:
        types = ", ".join(sorted({str(gid.type) for gid in same}))
        reason = f"its GID has only the type {types}, which isn't routed"
        # The kernel makes a GID of every type that the port offers (roce_gid_type_mask_support in roce_gid_mgmt.c).
        remedy = "Update the firmware of the NIC, which offers no RoCE v2 on this port."
        return None, [_finding("type", device.name, address, reason, remedy)]
    others = ", ".join(gid.ipv4 or gid.gid for port in device.ports for gid in port.gids) or "none"
    reason = f"it has no RoCE v2 GID, so a queue pair fails with 'Network is unreachable' (GIDs: {others})"
    remedy = "Run playbook fabric, which gives the netdev this address and brings it up."
    return None, [_finding("absent", device.name, address, reason, remedy)]


def _is(gid: Gid, wanted: IPv4Address | IPv6Address) -> bool:
    if isinstance(wanted, IPv4Address):
        return gid.ipv4 == str(wanted)
    return IPv6Address(gid.gid) == wanted


def _check_port(device: RdmaDevice, mtu: int | None) -> list[Finding]:
    findings = []
    for port in device.ports:
        if port.state != "ACTIVE":
            reason = f"port {port.port} is not active (physically: {port.phys_state})"
            remedy = "Run playbook fabric, which brings the netdev up. If it stays down, look at cable and switch port."
            findings.append(_finding("port_state", device.name, port.state, reason, remedy))
        if mtu is not None and port.mtu is not None and port.mtu < mtu:
            reason = f"MTU {port.mtu} on its netdev, {mtu} planned, so RDMA packets carry {port.active_mtu} bytes"
            remedy = "Run playbook fabric, which sets the MTU of every VF; a VF does not inherit its PF's."
            findings.append(_finding("mtu", device.name, port.mtu, reason, remedy))
    return findings
