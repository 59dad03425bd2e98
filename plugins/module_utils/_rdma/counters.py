# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Count the bytes that RDMA devices and interfaces moved, a proof that needs no log. Private to the collection."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    before: Mapping[str, Any], after: Mapping[str, Any], devices: Sequence[str] = (), interfaces: Sequence[str] = ()
) -> Moved:
    """Return what moved between two readings of the same sources, over the named devices and interfaces or all."""
    moved = {
        name: {kind: delta(before.get(name, {}).get(kind, {}), own[kind]) for kind in own}
        for name, own in after.items()
    }
    rdma = sum(moved_bytes(own["rdma"], devices) for own in moved.values())
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
