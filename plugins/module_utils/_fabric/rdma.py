# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read RDMA devices, their ports and GID tables from sysfs, and check them. Private to the collection.

A queue pair over RoCE v2 needs a source GID. The kernel adds the GID ``::ffff:a.b.c.d`` when the netdev gets the
address a.b.c.d. Without that address only link-local GIDs exist, and ``ibv_modify_qp`` fails with "Network is
unreachable" if the peer is not on the same link.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

from .._common.findings import Finding, Rule, Rules
from .._common.terms import ROCE_HEADER_BYTES
from .physical_functions import read_int, read_text

RULES = Rules(
    {
        "gid.device_missing": Rule(
            "the host does not have this RDMA device (it has: {known})",
            "Run playbook fabric, which creates the VFs, or correct rdma_device in gb10_fabric_pfs.",
        ),
        "gid.address": Rule("{error}", "Give an address without prefix."),
        # The kernel makes a GID of every type that the port offers (roce_gid_type_mask_support in roce_gid_mgmt.c).
        "gid.type": Rule(
            "its GID has only the type {types}, which isn't routed",
            "Update the firmware of the NIC, which offers no RoCE v2 on this port.",
        ),
        "gid.absent": Rule(
            "it has no RoCE v2 GID, so a queue pair may fail with 'Network is unreachable' (GIDs: {others})",
            "Run playbook fabric, which gives the netdev this address and brings it up.",
        ),
        "gid.port_state": Rule(
            "port {port} is not active (physically: {physically})",
            "Run playbook fabric, which brings the netdev up. If it stays down, look at cable and switch port.",
        ),
        "gid.mtu": Rule(
            "MTU {value} on its netdev, {wanted} planned, so RDMA packets carry {carried} bytes",
            "Run playbook fabric, which sets the MTU of every VF; a VF does not inherit its PF's.",
        ),
    },
    "sysfs",
)
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
            findings.append(RULES.finding("gid.device_missing", None, key=name, known=known))
        else:
            findings += _check_port(device, mtu)
        # an item without an address is an error
        for address in (str(item.get("address")), *filter(None, [item.get("address6")])):
            index, found = (None, []) if device is None else _check_address(device, address)
            findings += found
            results.append(Expectation(name, address, index is not None, index))
    return results, findings


def _check_address(device: RdmaDevice, address: str) -> tuple[int | None, list[Finding]]:
    try:
        wanted = ip_address(address)
    except ValueError as error:
        return None, [RULES.finding("gid.address", address, key=device.name, error=error)]
    same = [gid for port in device.ports for gid in port.gids if _is(gid, wanted)]
    index = next((gid.index for gid in same if gid.type == ROCE_V2), None)
    if index is not None:
        return index, []
    if same:
        types = ", ".join(sorted({str(gid.type) for gid in same}))
        return None, [RULES.finding("gid.type", address, key=device.name, types=types)]
    others = ", ".join(gid.ipv4 or gid.gid for port in device.ports for gid in port.gids) or "none"
    return None, [RULES.finding("gid.absent", address, key=device.name, others=others)]


def _is(gid: Gid, wanted: IPv4Address | IPv6Address) -> bool:
    if isinstance(wanted, IPv4Address):
        return gid.ipv4 == str(wanted)
    return IPv6Address(gid.gid) == wanted


def _check_port(device: RdmaDevice, mtu: int | None) -> list[Finding]:
    findings = []
    for port in device.ports:
        if port.state != "ACTIVE":
            words = {"key": device.name, "port": port.port, "physically": port.phys_state}
            findings.append(RULES.finding("gid.port_state", port.state, **words))
        if mtu is not None and port.mtu is not None and port.mtu < mtu:
            words = {"key": device.name, "wanted": mtu, "carried": port.active_mtu}
            findings.append(RULES.finding("gid.mtu", port.mtu, **words))
    return findings


# Count the bytes that RDMA devices and interfaces moved, a proof that needs no log.

# {device: {name: value}}; xmit_bytes and rcv_bytes count bytes, all others count events
Counters = dict[str, dict[str, int]]

# The port counters are in units of 4 octets (InfiniBand specification, 16.1.3.5; Linux sysfs-class-infiniband).
_OCTETS = 4
_DATA = {"port_xmit_data": "xmit_bytes", "port_rcv_data": "rcv_bytes"}
ERRORS = (
    "local_ack_timeout_err",
    "out_of_sequence",
    "packet_seq_err",
    "port_rcv_errors",
    "port_xmit_discards",
    "req_cqe_error",
    "req_transport_retries_exceeded",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "roce_adp_retrans_to",
    "symbol_error",
    "link_downed",
)
# Ethernet 14, IPv6 40, TCP 20 and its usual options 12: an acknowledgement has these bytes and no others.
_HEADERS = 86
# A counter that only soft-RoCE has (Linux drivers/infiniband/sw/rxe). Its bytes are also bytes of the interface.
_SOFTWARE = "sent_pkts"
CONGESTION = ("np_cnp_sent", "np_ecn_marked_roce_packets", "rp_cnp_handled")

# Prints "path value" for the RDMA devices below $1 and the interfaces below $2. Must run in any POSIX shell.
SCRIPT = (
    'for f in "$1"/class/infiniband/*/ports/*/counters/* "$1"/class/infiniband/*/ports/*/hw_counters/* '
    '"$2"/class/net/*/statistics/[rt]x_bytes "$2"/class/net/*/statistics/[rt]x_packets; do '
    '[ -r "$f" ] && read -r v < "$f" 2>/dev/null && echo "${f#*/class/} $v"; done; true'
)


def parse_counters(text: str) -> dict[str, Counters]:
    """Return ``{"rdma": {device: …}, "net": {interface: …}}`` from SCRIPT's output; a device's ports are added up."""
    rdma: Counters = {}
    net: Counters = {}
    for line in text.splitlines():
        path, _space, value = line.rpartition(" ")
        parts = path.split("/")
        if not value.isdigit() or len(parts) < 4:
            continue
        if parts[0] == "infiniband":
            name = parts[-1]
            own = rdma.setdefault(parts[1], {})
            if name in _DATA:
                own[_DATA[name]] = own.get(_DATA[name], 0) + int(value) * _OCTETS
            elif name in (*ERRORS, *CONGESTION, _SOFTWARE):
                own[name] = own.get(name, 0) + int(value)
        elif parts[0] == "net":
            net.setdefault(parts[1], {})[parts[-1]] = int(value)
    return {"rdma": rdma, "net": net}


def delta(before: Mapping[str, Mapping[str, int]], after: Mapping[str, Mapping[str, int]]) -> Counters:
    """Return what each device moved between two readings; a counter that decreased was reset and counts from zero.

    A counter that one of the readings lacks has no difference.
    """
    moved: Counters = {}
    for device, counters in after.items():
        old = before.get(device, {})
        moved[device] = {n: v - old[n] if v >= old[n] else v for n, v in counters.items() if n in old}
    return moved


def moved_bytes(moved: Mapping[str, Mapping[str, int]], devices: Iterable[str] = ()) -> int:
    """Return the bytes that these devices sent and received in total; without devices, all but the loopback."""
    names = ("xmit_bytes", "rcv_bytes", "tx_bytes", "rx_bytes")
    wanted = set(devices) or moved.keys() - {"lo"}
    chosen = {device: moved[device] for device in wanted if device in moved}
    return sum(counters.get(name, 0) for counters in chosen.values() for name in names)


def payload(moved: Mapping[str, Mapping[str, int]], names: Iterable[str], both_ways: bool) -> int:
    """Return the bytes in packets of these interfaces, without the headers of Ethernet, IP and TCP.

    With ``both_ways`` only what was sent as well as received counts, as ranks exchange it: a download receives bytes
    and sends acknowledgements, which have headers only.
    """
    sent = received = 0
    for counters in (moved[name] for name in names):
        tx, rx = (counters.get(f"{way}_bytes", 0) for way in ("tx", "rx"))
        sent += max(0, tx - counters.get("tx_packets", 0) * _HEADERS)
        received += max(0, rx - counters.get("rx_packets", 0) * _HEADERS)
    return 2 * min(sent, received) if both_ways else sent + received


def missing(moved: Mapping[str, Mapping[str, Mapping[str, int]]], devices: Iterable[str]) -> list[str]:
    """Return the devices and directions of interfaces of one source that were not counted in both readings."""
    lacking = [
        device for device in sorted(devices) if not {"xmit_bytes", "rcv_bytes"} <= set(moved["rdma"].get(device, ()))
    ]
    names = moved["net"].keys() - {"lo"}
    return lacking + [name for name in sorted(names) if not {"tx_bytes", "rx_bytes"} <= set(moved["net"][name])]


def bytes_by_path(
    moved: Mapping[str, Mapping[str, Mapping[str, int]]], devices: Collection[str], both_ways: bool = False
) -> tuple[int, int]:
    """Return the bytes of one source by RDMA over these devices, and by TCP over all interfaces but ``lo``."""
    rdma = moved_bytes(moved["rdma"], devices) if devices else 0
    tcp = payload(moved["net"], moved["net"].keys() - {"lo"}, both_ways)
    software = any(_SOFTWARE in moved["rdma"].get(device, {}) for device in devices)
    return rdma, max(0, tcp - rdma) if software else tcp


@dataclass(frozen=True)
class Moved:
    """The difference of two readings: the counters of every source, the bytes by kind, and a one-line summary."""

    sources: dict[str, dict[str, Counters]]
    rdma_bytes: int
    tcp_bytes: int
    msg: str


def moved_since(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    devices: Mapping[str, Iterable[str]] | None = None,
    interfaces: Sequence[str] = (),
) -> Moved:
    """Return what moved between two readings of the same sources.

    That is over all devices and interfaces, or over the devices of each source and the interfaces that are named.
    """
    moved = {
        name: {kind: delta(before.get(name, {}).get(kind, {}), own[kind]) for kind in own}
        for name, own in after.items()
    }
    rdma = sum(moved_bytes(own["rdma"], (devices or {}).get(name, ())) for name, own in moved.items())
    tcp = sum(moved_bytes(own["net"], interfaces) for own in moved.values())
    return Moved(moved, rdma, tcp, "; ".join(f"{name}: {describe(own['rdma'])}" for name, own in moved.items()))


def agreement(transport_class: str, moved: Moved, least: int) -> tuple[bool | None, str]:
    """Return whether the counters agree with a verdict (None: too little moved to tell), and the reason if not.

    The bytes are those of all sources, and with RDMA every source must have moved some: each rank exchanges bytes.
    """
    against = contradiction(transport_class, moved.rdma_bytes, moved.tcp_bytes, least)
    silent = [name for name, own in moved.sources.items() if not moved_bytes(own["rdma"])]
    if transport_class == "rdma" and silent and not against:
        against = f"the log says RDMA, but the RDMA devices of {', '.join(silent)} moved 0 bytes and others some"
    return None if max(moved.rdma_bytes, moved.tcp_bytes) < least else not against, against


def contradiction(transport_class: str, rdma: int, tcp: int, least: int) -> str:
    """Return why the counters contradict a verdict, or an empty string.

    ``rdma`` and ``tcp`` are the bytes moved during the same work. Fewer bytes than ``least`` prove nothing.
    """
    if max(rdma, tcp) < least:
        return f"too little moved to tell ({rdma} bytes by RDMA, {tcp} by TCP, at least {least} needed)"
    if transport_class == "rdma" and rdma < least:
        return f"the log says RDMA, but the RDMA devices moved {rdma} bytes and the interfaces {tcp}"
    if transport_class == "tcp" and rdma >= least:
        return f"the log says TCP, but the RDMA devices moved {rdma} bytes"
    return ""


def describe(moved: Mapping[str, Mapping[str, Any]]) -> str:
    """Return one line: the bytes that each active device sent and received, and the error counters that increased."""
    parts = []
    for device, counters in sorted(moved.items()):
        sent = counters.get("xmit_bytes", counters.get("tx_bytes", 0))
        received = counters.get("rcv_bytes", counters.get("rx_bytes", 0))
        errors = "".join(f", {name} +{counters[name]}" for name in ERRORS if counters.get(name))
        if not (sent or received or errors):
            continue
        parts.append(f"{device} sent {sent / 1e6:.1f} MB, received {received / 1e6:.1f} MB{errors}")
    return "; ".join(parts) or "nothing moved"
