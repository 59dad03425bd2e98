# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulate RDMA counters: no data moves by RDMA here, so programs report their RDMA traffic.

A program appends lines to ``/run/gb10-lab/rdma-traffic/<rdma device>``:
  ``SENT RECEIVED``   two numbers of bytes, added to the device's counters
  ``interface``       from now on all bytes of the device's interface are added, in both directions
With an empty file the counters do not change, as with NCCL's Socket transport.
"""

from pathlib import Path

from functions import Function
from netlink import Link

DIRECTORY = Path("/run/gb10-lab/rdma-traffic")


class Meter:
    """Add up the traffic of each function."""

    def __init__(self) -> None:
        DIRECTORY.mkdir(parents=True, exist_ok=True)
        self._read: dict[str, int] = {}
        self._carried: dict[str, tuple[int, int]] = {}

    def stale(self, functions: list[Function]) -> bool:
        """Return True if a file has changed since the last update."""
        return any(_size(function) != self._read.get(function.rdma, 0) for function in functions)

    def update(self, functions: list[Function], ports: dict[str, Link]) -> None:
        """Read the new lines of the files and increase the counters."""
        for function in functions:
            path = DIRECTORY / function.rdma
            if not path.exists():
                path.touch()
                # pods of any user write to it
                path.chmod(0o666)
            for words in self._new_lines(function):
                if words == ["interface"] and function.port in ports:
                    self._carried.setdefault(function.rdma, _carried(ports[function.port]))
                elif len(words) == 2 and all(word.isdecimal() for word in words):
                    function.sent += int(words[0])
                    function.received += int(words[1])
            before, port = self._carried.get(function.rdma), ports.get(function.port)
            if before and port:
                now = _carried(port)
                function.sent += max(0, now[0] - before[0])
                function.received += max(0, now[1] - before[1])
                self._carried[function.rdma] = now

    def _new_lines(self, function: Function) -> list[list[str]]:
        size, start = _size(function), self._read.get(function.rdma, 0)
        if size == 0:
            self._carried.pop(function.rdma, None)
        if size in {0, start}:
            self._read[function.rdma] = size
            return []
        with (DIRECTORY / function.rdma).open("rb") as stream:
            # a file that is shorter than before is a new one
            stream.seek(start if size > start else 0)
            data = stream.read()
            end = stream.tell()
        # the last line may be incomplete
        whole = data[: data.rfind(b"\n") + 1]
        self._read[function.rdma] = end - (len(data) - len(whole))
        return [line.split() for line in whole.decode("ascii", errors="replace").splitlines()]


def _size(function: Function) -> int:
    try:
        return (DIRECTORY / function.rdma).stat().st_size
    except OSError:
        return 0


def _carried(port: Link) -> tuple[int, int]:
    # the switch's port receives what the interface sends
    return port.rx_bytes, port.tx_bytes
