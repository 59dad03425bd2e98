# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Simulated: as much of PyTorch as all_reduce_bandwidth.py needs. Copied into a pod as torch.py.

Two ranks add one number over TCP. A buffer is that number and a size, so the figures say nothing about a network.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

bfloat16, float32 = 2, 4
_peer: list[socket.socket] = []
# The steps of the graph that is being captured, if there is one.
_captured: list[list[Callable[[], None]]] = []


class _Buffer:
    def __init__(self, count: int, value: float) -> None:
        self.count, self.value = count, value

    def __eq__(self, other: object) -> Any:
        return _Buffer(self.count, self.value == other)

    __hash__ = None  # type: ignore[assignment]

    def all(self) -> bool:
        return bool(self.value)

    def zero_(self) -> None:
        self.value = 0.0

    def numel(self) -> int:
        return self.count


def full(shape: tuple[int], value: float, **_kind: Any) -> _Buffer:
    return _Buffer(shape[0], value)


def zeros(count: int, **_kind: Any) -> _Buffer:
    return _Buffer(count, 0.0)


def init_process_group(_backend: str, init_method: str, rank: int, world_size: int) -> None:
    address, _colon, port = init_method.removeprefix("tcp://").rpartition(":")
    assert world_size == 2
    if rank == 0:
        with socket.create_server((address, int(port))) as server:
            _peer.append(server.accept()[0])
    else:
        until = time.monotonic() + 30
        while not _peer:
            try:
                _peer.append(socket.create_connection((address, int(port))))
            except OSError:
                assert time.monotonic() < until
                time.sleep(0.2)
    _peer[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def all_reduce(buffer: _Buffer) -> None:
    if _captured:
        _captured[0].append(lambda: all_reduce(buffer))
        return
    _peer[0].sendall(struct.pack("d", buffer.value))
    buffer.value += struct.unpack("d", _peer[0].recv(8, socket.MSG_WAITALL))[0]


def barrier() -> None:
    all_reduce(_Buffer(1, 0.0))


def destroy_process_group() -> None:
    _peer.pop().close()


class CUDAGraph:
    def __init__(self) -> None:
        self.steps: list[Callable[[], None]] = []

    def replay(self) -> None:
        for step in self.steps:
            step()

    def reset(self) -> None:
        self.steps.clear()


@contextlib.contextmanager
def graph(into: CUDAGraph, **_options: str) -> Iterator[None]:
    _captured.append(into.steps)
    yield
    _captured.clear()


class Event:
    def __init__(self, **_options: bool) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, later: Event) -> float:
        return 1000 * (later.at - self.at)


def is_available() -> bool:
    return True


def synchronize() -> None:
    """Return at once: every step has ended when it returns."""


# torch.distributed and torch.cuda
distributed = cuda = sys.modules[__name__]
