# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sockets that keep the kernel's time of every read (SO_TIMESTAMPNS, socket(7)).

The time of a token is that of the last packet of the read that contained it, or the time of the read if there is no
timestamp. This excludes the time that this process needs to wake up and to handle other streams, which is not caused
by the server.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiohttp

SO_TIMESTAMPNS = 35
"""The number of this option on Linux (asm-generic/socket.h); Python has no name for it."""
STAMP = struct.Struct("@ll")
STAMP_SPACE = socket.CMSG_SPACE(STAMP.size)


class StampedSocket(socket.socket):
    """A socket that keeps the time of every read until its stream takes it."""

    def __init__(self, *kind: Any) -> None:
        super().__init__(*kind)
        self.reads: list[float] = []
        if sys.platform == "linux":
            self.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Read as asyncio does for plain connections."""
        data, about, _flags, _address = self.recvmsg(size, STAMP_SPACE, flags)
        self._note(len(data), about)
        return data

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Read as asyncio does under TLS."""
        room = memoryview(buffer)[: nbytes or None]
        count, about, _flags, _address = self.recvmsg_into([room], STAMP_SPACE, flags)
        self._note(count, about)
        return count

    def _note(self, count: int, about: Iterable[tuple[int, int, bytes]]) -> None:
        now = time.perf_counter()
        for level, kind, value in about:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
                seconds, nanoseconds = STAMP.unpack(value)
                # The kernel's timestamp is a time of day; it is in the future if the clock was set back meanwhile.
                now -= max(0, time.time_ns() - (seconds * 10**9 + nanoseconds)) / 1e9
        if count:
            self.reads.append(now)

    def take(self, since: float) -> list[float]:
        """Return the times of the reads since ``since``; the current time if there are none."""
        taken = [moment for moment in self.reads if moment >= since]
        self.reads.clear()
        return taken or [time.perf_counter()]


class Sockets(dict[int, StampedSocket]):
    """The sockets of a connector by file descriptor, so that a response can find its socket."""

    def make(self, address: tuple[Any, ...]) -> StampedSocket:
        """Return a new socket for one of getaddrinfo's results; aiohttp calls this as its socket factory."""
        made = StampedSocket(*address[:3])
        made.setblocking(False)
        self[made.fileno()] = made
        return made

    def of(self, response: aiohttp.ClientResponse) -> StampedSocket | None:
        """Return the socket of a response, or None if no more data will arrive."""
        transport = response.connection.transport if response.connection else None
        return self.get(transport.get_extra_info("socket").fileno()) if transport else None
