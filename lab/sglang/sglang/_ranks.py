# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Connect all ranks of a group at --dist-init-addr, and send bytes around a ring for every token."""

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from ipaddress import ip_address, ip_interface
from pathlib import Path
from typing import Any

_TRAFFIC = Path(os.environ.get("GB10_LAB_TRAFFIC", "/run/gb10-lab/rdma-traffic"))
# The most bytes that one rank really sends per rail and decode step over the simulated RDMA, and their share of the
# bytes that it records: few, for small machines, and fewer than the byte ledger takes for a second path.
STEP_BYTES, STEP_SHARE = 32768, 32
RING_PORT = 23456


class Channel:
    """A TCP connection that sends and receives JSON lines."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._reader = connection.makefile("rb")
        self._lock = threading.Lock()

    def send(self, **message: Any) -> None:
        with self._lock:
            self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        """Return the next message; raise ConnectionError if the peer has closed."""
        line = self._reader.readline()
        if not line:
            raise ConnectionError("Connection closed by peer")
        message: dict[str, Any] = json.loads(line)
        return message


def _listen(address: str, port: int) -> socket.socket:
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((address, port))
    server.listen(64)
    return server


def _connect(address: str, port: int, source: str, deadline: float) -> socket.socket:
    while True:
        try:
            return socket.create_connection((address, port), timeout=5, source_address=(source, 0))
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def joined(mine: list[str], theirs: list[str]) -> list[tuple[int, int]]:
    """Return which address of a rank reaches which one of another rank, as positions in the two lists.

    NCCL pairs the devices by number, or, with NCCL_IB_SUBNET_AWARE_ROUTING, those in the same subnet.
    """
    if os.environ.get("NCCL_IB_SUBNET_AWARE_ROUTING") != "1":
        return [(index, index) for index in range(min(len(mine), len(theirs)))]
    length = os.environ.get("NCCL_IB_SUBNET_PREFIX_LEN", "24")
    subnets = [ip_interface(f"{address}/{length}").network for address in theirs]
    return [
        (index, other)
        for index, address in enumerate(mine)
        for other, subnet in enumerate(subnets)
        if ip_address(address) in subnet
    ]


class Ring:
    """One TCP connection per rail to the next rank, bound to the rail's address."""

    def __init__(self, rank: int, size: int, rails: list[str], devices: list[str]) -> None:
        self.rank, self.size, self.rails, self.devices = rank, size, rails, devices
        self._servers = [_listen(address, RING_PORT) for address in rails]
        # by the number of the rail
        self._next: dict[int, socket.socket] = {}
        self._previous: dict[int, socket.socket] = {}

    def connect(self, peers: list[list[str]]) -> None:
        """Connect to the addresses of the next rank, one per rail; ``peers`` is indexed by rank."""
        deadline = time.monotonic() + 60
        after, before = peers[(self.rank + 1) % self.size], peers[self.rank - 1]
        self._next = {
            mine: _connect(after[theirs], RING_PORT, self.rails[mine], deadline)
            for mine, theirs in joined(self.rails, after)
        }
        self._previous = {mine: self._servers[mine].accept()[0] for _theirs, mine in joined(before, self.rails)}
        if not self._next or not self._previous:
            raise ConnectionError(f"no address of {self.rails} is in a subnet of both neighbours, {before} and {after}")
        for connection in (*self._next.values(), *self._previous.values()):
            connection.settimeout(None)

    def exchange(self, amount: int) -> None:
        """Send to the next rank and receive from the previous rank, on all rails; blocks while a rank is frozen.

        ``amount`` bytes are sent over TCP. With RDMA devices they are only recorded, and fewer are sent.
        """
        share = amount // len(self._next)
        size = min(max(1, share // STEP_SHARE), STEP_BYTES) if self.devices else share
        for sent in range(0, size, STEP_BYTES):
            piece = bytes(min(STEP_BYTES, size - sent))
            for connection in self._next.values():
                connection.sendall(piece)
            for connection in self._previous.values():
                left = len(piece)
                while left:
                    got = len(connection.recv(left))
                    if not got:
                        raise ConnectionError("Connection closed by peer")
                    left -= got
        self._count(share)

    def _count(self, amount: int) -> None:
        """Record traffic for the lab's simulated counters: ``<sent> <received>`` bytes per line."""
        for number, device in enumerate(self.devices):
            sent, received = (amount * (number in rails) for rails in (self._next, self._previous))
            try:
                with (_TRAFFIC / device).open("a", encoding="ascii") as stream:
                    stream.write(f"{sent} {received}\n")
            except OSError:
                return


class Group:
    """The control connections between head and workers."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._channels: dict[int, Channel] = {}
        # indexed by rank: the addresses of the rails; the network
        self.peers: list[list[str]] = []
        self.networks: list[str] = []

    def meet(self, address: str, port: int, source: str, rails: list[str], network: str, timeout: float) -> None:
        """Wait until all ranks have joined. The head listens on the rendezvous address, which must be its own."""
        if self.rank == 0:
            # the name of a Service has no address yet; like torch's store, listen on all interfaces
            self._gather(_listen("" if address.endswith(".svc") else address, port), rails, network, timeout)
        else:
            connection = _connect(address, port, source, time.monotonic() + timeout)
            # An idle group sends nothing for hours.
            connection.settimeout(None)
            link = Channel(connection)
            link.send(rank=self.rank, size=self.size, rails=rails, network=network)
            answer = link.receive()
            self.peers, self.networks = answer["peers"], answer["networks"]
            self._channels[0] = link

    def _gather(self, server: socket.socket, rails: list[str], network: str, timeout: float) -> None:
        addresses, networks = {0: rails}, {0: network}
        server.settimeout(timeout)
        while len(addresses) < self.size:
            try:
                connection, _ = server.accept()
            except TimeoutError:
                missing = sorted(set(range(self.size)) - set(addresses))
                raise TimeoutError(f"Timed out after {timeout:.0f}s waiting for clients; missing {missing}") from None
            connection.settimeout(None)
            link = Channel(connection)
            hello = link.receive()
            if hello["size"] != self.size:
                raise RuntimeError(f"rank {hello['rank']} expects {hello['size']} ranks, the head {self.size}")
            addresses[hello["rank"]], networks[hello["rank"]] = hello["rails"], hello["network"]
            self._channels[hello["rank"]] = link
        self.peers = [addresses[rank] for rank in range(self.size)]
        self.networks = [networks[rank] for rank in range(self.size)]
        for link in self._channels.values():
            link.send(peers=self.peers, networks=self.networks)

    def order(self, **message: Any) -> None:
        """Send the next step to all workers."""
        for link in self._channels.values():
            link.send(**message)

    def head(self) -> Channel:
        return self._channels[0]

    def answers(self, on_answer: Callable[[int, dict[str, Any]], None], on_loss: Callable[[int], None]) -> None:
        """Read every worker in a separate thread; call ``on_loss`` when its connection closes."""

        def read(rank: int, link: Channel) -> None:
            try:
                while True:
                    on_answer(rank, link.receive())
            except (OSError, ValueError):
                on_loss(rank)

        for rank, link in self._channels.items():
            threading.Thread(target=read, args=(rank, link), daemon=True).start()
