# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulate the GID table of a RoCE port, in the order in which mlx5 and the kernel's ib_core fill it."""

import ipaddress
from collections.abc import Sequence

SLOTS = 16  # hardware has more; they would all be empty
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"
TYPES = ("IB/RoCE v1", "RoCE v2")


def link_local(mac: str) -> str:
    """Return the default GID: fe80::/64 with the EUI-64 of the MAC, in the long form of sysfs."""
    octets = [int(part, 16) for part in mac.split(":")]
    interface = bytes([octets[0] ^ 2, *octets[1:3], 0xFF, 0xFE, *octets[3:]])
    return _text(b"\xfe\x80" + bytes(6) + interface)


def of_address(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """Return the GID of an address; IPv4 is mapped to ::ffff:a.b.c.d."""
    packed = address.packed if address.version == 6 else bytes(10) + b"\xff\xff" + address.packed
    return _text(packed)


def _text(packed: bytes) -> str:
    return packed.hex(":", 2)


class Table:
    """Slots of ``(gid, type)``. An entry keeps its index while it exists; a new entry takes the first free slot."""

    def __init__(self) -> None:
        self.slots: list[tuple[str, str] | None] = [None] * SLOTS

    def update(self, mac: str | None, addresses: Sequence[ipaddress.IPv4Address | ipaddress.IPv6Address]) -> None:
        """Set the table to the GIDs of an interface; ``mac`` is None if there is no interface."""
        gids = [] if mac is None else [link_local(mac), *(of_address(a) for a in addresses)]
        wanted = list(dict.fromkeys((gid, kind) for gid in gids for kind in TYPES))
        if self.slots[0] and self.slots[0] not in wanted:
            self.slots[:2] = [None, None]
        self.slots = [entry if entry in wanted else None for entry in self.slots]
        # slots 0 and 1 belong to the default GID
        for position, entry in enumerate(wanted):
            if entry not in self.slots:
                free = [i for i in range(0 if position < 2 else 2, SLOTS) if self.slots[i] is None]
                if free:
                    self.slots[free[0]] = entry
