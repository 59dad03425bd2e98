# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Record what each kind of statement says about the process that wrote it. Private to the collection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .model import Communicator, Process, Via
from .networks import TCP_PROVIDERS, is_tcp
from .statements import (
    COMMUNICATORS,
    FEW_COMMUNICATORS,
    IBEXT,
    KNOWN_NAMES,
    MANY,
    NAMES,
    TCP_FRAGMENT,
    bounded,
)

# The arguments are the process, the thread that wrote the statement, and the statement's values.
Recorder = Callable[[Process, str, Any], None]


class Recorders:
    """The methods that record statements; ``hosts`` are the known host names, ``starts`` the number of processes."""

    def __init__(self) -> None:
        self.hosts: set[str] = set()
        self.starts = 0
        self.by_kind: dict[str, Recorder] = {
            # "NET/IB : Using [0]rocep1s0f0:1/RoCE …": devices
            "banner": _banner,
            # "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0": the path of a connection
            "channel": record_channel,
            # "CollNet 00/0 : 0 [send] via COLLNET/SHARP/0": a reduction inside the network
            "collnet": _collnet,
            # "Connected all rings": a communicator works
            "connected": _connected,
            # "comm 0x1 rank 0 nranks 2 … Init START" and "… Init COMPLETE"
            "init": self._init,
            # "comm 0x1 rank 0 nRanks 2 nNodes 2 …"
            "nodes": self._nodes,
            # "NET/OFI Selected provider is efa"
            "provider": _provider,
            # "Using network IB": the choice for a communicator
            "selected": self._selected,
            # the start of a channel line, whose end is missing
            "torn": record_torn,
            # "NCCL version 2.28.9+cuda13.0"
            "version": _version,
        }

    def _init(self, process: Process, tid: str, values: tuple[str, int, int, str, str, bool, str]) -> None:
        identity, rank, nranks, device, shared, start, shrunk = values
        known = process.communicators.get(identity)
        # NCCL reused the address if a communicator starts there again, or is completed there a second time.
        again = known is not None and (known.started if start else known.complete)
        comm = self._communicator(process, tid, identity, rank, nranks, None if again else known)
        if start:
            comm.started = True
        else:
            comm.complete = True
        comm.device = device or comm.device
        comm.shared_id = shared or comm.shared_id
        if shrunk in process.communicators:
            # Ranks that were shrunk away are no longer missing.
            process.communicators[shrunk].shrunk = True

    def _nodes(self, process: Process, tid: str, values: tuple[str, int, int, int, int, bool]) -> None:
        identity, rank, nranks, nodes, local_ranks, mnnvl = values
        comm = self._communicator(process, tid, identity, rank, nranks, process.communicators.get(identity))
        comm.nodes, comm.local_ranks, comm.mnnvl = nodes, local_ranks, mnnvl

    def _communicator(
        self, process: Process, tid: str, identity: str, rank: int, nranks: int, comm: Communicator | None
    ) -> Communicator:
        """Return a communicator that its thread sets up, a new one if there is none."""
        if comm is None:
            self._forget(process, identity)
            comm = process.communicators[identity] = Communicator(identity, rank, nranks)
        comm.rank, comm.nranks = rank, nranks
        if process.pending_network:
            comm.network = process.pending_network.pop(tid, "") or comm.network
        process.start_communicator(tid, comm)
        return comm

    def _forget(self, process: Process, identity: str) -> None:
        """Drop a communicator whose address is reused, and the oldest one when there are too many."""
        old = process.communicators.pop(identity, None)
        limit = COMMUNICATORS if self.starts < MANY else FEW_COMMUNICATORS
        if old is None and len(process.communicators) >= limit:
            old = process.communicators.pop(next(iter(process.communicators)))
            process.abandoned += old.started and not old.finished and old.nranks > 1
            if not old.channels and old.crosses_nodes is not False and is_tcp(old.network):
                process.dropped_tcp = old.network
        if old is not None and old.crosses_nodes and not old.mnnvl:
            process.crossed = True

    def _selected(self, process: Process, tid: str, name: str) -> None:
        if name not in KNOWN_NAMES:
            name = bounded(self._without_host(name), process.selections)
        process.selections[name] += 1
        if len(process.pending_network) >= NAMES:
            process.pending_network.pop(next(iter(process.pending_network)))
        process.pending_network[tid] = name

    def _without_host(self, name: str) -> str:
        """Return the network's name without the host name of the line that ran into it (``Socketspark1``)."""
        if IBEXT.fullmatch(name):
            return name
        return next((name[:end] for end in range(1, len(name)) if name[end:] in self.hosts), name)


def record_channel(process: Process, tid: str, via: Via, count: int = 1) -> None:
    """Record channel lines with the same path."""
    if via.network:
        process.add_channel(via, tid, count)
    elif via.intra:
        process.intra[bounded(via.intra, process.intra)] += count
    else:
        record_torn(process, tid, via.torn)


def record_torn(process: Process, _tid: str, text: str) -> None:
    """Record the start of a channel line, whose end is missing."""
    if found := TCP_FRAGMENT.search(text):
        process.add_channel(Via(found[1], found[2]))
    else:
        name = text.strip().rpartition("NET/")[2][:40] if "NET/" in text else ""
        # Empty is the worst: it may hide TCP.
        process.torn[name if len(process.torn) < NAMES else ""] = None


def _collnet(process: Process, _tid: str, network: str) -> None:
    process.collnet[bounded(network, process.collnet)] += 1


def _banner(process: Process, _tid: str, values: tuple[bool, list[str]]) -> None:
    socket, devices = values
    listed = process.socket_devices if socket else process.ib_devices
    listed += [device for device in devices if device not in listed and len(listed) < NAMES]


def _connected(process: Process, tid: str, identity: str) -> None:
    named = process.communicators.get(identity) or process.current.get(tid)
    for comm in [named] if named else list(process.communicators.values())[-1:]:
        comm.connected = True


def _provider(process: Process, _tid: str, name: str) -> None:
    # A provider of TCP stays: the worse of two counts.
    if process.provider.partition(";")[0] not in TCP_PROVIDERS:
        process.provider = name


def _version(process: Process, _tid: str, version: str) -> None:
    process.version = process.version or version
