# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read links and addresses of a network namespace by rtnetlink, because ip(8) is too slow for polling."""

import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

LINK_EVENTS, ADDRESS_EVENTS = 0x1, 0x10 | 0x100
_GETLINK, _GETADDR, _DONE, _ERROR = 18, 22, 3, 2
_REQUEST_DUMP = 0x1 | 0x300
_OPERSTATES = ("unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up")
_UP = 0x1


@dataclass(frozen=True)
class Link:
    """One interface; ``peer`` is the index that it is linked to in another namespace (0: none)."""

    index: int
    name: str
    up: bool
    mac: str = ""
    mtu: int = 0
    peer: int = 0
    operstate: str = "unknown"
    carrier: bool = False
    alias: str = ""
    rx_bytes: int = 0
    tx_bytes: int = 0


@dataclass(frozen=True)
class Address:
    """One address of the interface with this index."""

    index: int
    address: ipaddress.IPv4Address | ipaddress.IPv6Address


def subscribe(groups: int) -> socket.socket:
    """Return a non-blocking socket of the current namespace that is readable after a change in ``groups``."""
    events = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE)
    events.bind((0, groups))
    return events


def drain(events: socket.socket) -> bool:
    """Discard all waiting events; return True if there were any, or too many for the buffer."""
    seen = False
    while True:
        try:
            events.recv(65536)
        except BlockingIOError:
            return seen
        except OSError:
            return True
        seen = True


def links() -> list[Link]:
    """Return all interfaces of the current namespace."""
    return [_link(body) for body in _dump(_GETLINK, struct.pack("=BxHiII", 0, 0, 0, 0, 0))]


def addresses() -> list[Address]:
    """Return all IPv4 and IPv6 addresses of the current namespace."""
    found = []
    for body in _dump(_GETADDR, struct.pack("=BBBBi", 0, 0, 0, 0, 0)):
        index = struct.unpack_from("=i", body, 4)[0]
        attributes = dict(_attributes(body[8:]))
        # IFA_LOCAL (2) is the own side of a point-to-point address; IPv6 has only IFA_ADDRESS (1)
        raw = attributes.get(2, attributes.get(1, b""))
        found.append(Address(index, ipaddress.ip_address(raw)))
    return found


def _link(body: bytes) -> Link:
    index, flags = struct.unpack_from("=iI", body, 4)
    attributes = dict(_attributes(body[16:]))

    def number(kind: int) -> int:
        return int.from_bytes(attributes.get(kind, b""), "little")

    def text(kind: int) -> str:
        return attributes.get(kind, b"").rstrip(b"\0").decode()

    received, sent = struct.unpack_from("=QQ", attributes.get(23, bytes(32)), 16)
    return Link(
        index, text(3), bool(flags & _UP), attributes.get(1, b"").hex(":"), number(4), number(5),
        _OPERSTATES[number(16)], bool(number(33)), text(20), received, sent,
    )  # fmt: skip


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, offset)
        if length < 4:
            return
        yield kind & 0x3FFF, data[offset + 4 : offset + length]
        offset += (length + 3) & ~3


def _dump(kind: int, body: bytes) -> Iterator[bytes]:
    # an open socket would keep its namespace alive
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as request:
        request.send(struct.pack("=IHHII", 16 + len(body), kind, _REQUEST_DUMP, 1, 0) + body)
        while True:
            data = request.recv(262144)
            while data:
                length, answer = struct.unpack_from("=IH", data)
                if answer == _DONE:
                    return
                if answer == _ERROR:
                    code = struct.unpack_from("=i", data, 16)[0]
                    raise OSError(-code, os.strerror(-code))
                yield data[16:length]
                data = data[(length + 3) & ~3 :]
