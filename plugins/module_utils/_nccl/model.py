# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The networks by their names, and what a log says about processes and communicators. Private to the collection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

SOCKETS = ("Socket", "FastSocket")
"""NCCL's own TCP transport and Google's TCP plugin."""
TCP = (*SOCKETS, "GPUDirectTCPX*", "FasTrak*")
"""Patterns of the networks that are always TCP."""
RDMA = ("IB", "IBext*", "IB-*", "gIB", "SPCX*", "AINIC*", "NCCL RDMA Plugin*", "SHARP")
"""Patterns of the networks that are RDMA. Those of libfabric are missing: their provider determines the transport."""
LIBFABRIC = ("*Libfabric", "OFI")
"""Patterns of the networks of libfabric; HPE's plugin calls itself OFI."""
TCP_PROVIDERS = ("tcp", "sockets", "udp", "net")
"""Providers of libfabric that use TCP or UDP."""
# Limits the memory for a program that creates communicators, each in another thread, for days.
_THREADS = 256

# {network: {device: channels}}
Channels = dict[str, dict[str, int]]


# A log of many communicators asks for the same few names very often.
@lru_cache(1024)
def matches(network: str, patterns: tuple[str, ...]) -> bool:
    """Tell whether a network's name matches one of these glob patterns."""
    return any(fnmatchcase(network, pattern) for pattern in patterns)


@lru_cache(1024)
def is_tcp(network: str) -> bool:
    """Tell whether a network is TCP by its name; NCCL_NET accepts the name in upper or lower case."""
    return matches(network, TCP) or network.lower() in {name.lower() for name in SOCKETS}


@dataclass(frozen=True, slots=True, eq=False)
class Via:
    """The path of a connection: a network with its device, a path inside the node, or an unreadable rest."""

    network: str = ""
    device: str = ""
    gdr: bool = False
    intra: str = ""
    torn: str = ""


# Compared by identity, because two ranks may have equal values.
@dataclass(slots=True, eq=False)
class Communicator:
    """One communicator as one rank reports it; 0 and empty where the log does not say."""

    identity: str
    rank: int = -1
    nranks: int = 0
    nodes: int = 0
    local_ranks: int = 0
    shared_id: str = ""
    device: str = ""
    mnnvl: bool = False
    network: str = ""
    started: bool = False
    complete: bool = False
    connected: bool = False
    # Whether its thread began another one later. It sets one up after the other, so the end of this one was torn.
    passed: bool = False
    # Whether ncclCommShrink made a smaller one from it, without the ranks that failed.
    shrunk: bool = False
    channels: Channels = field(default_factory=dict)
    gdr: int = 0

    @property
    def crosses_nodes(self) -> bool | None:
        """Tell whether this communicator spans several nodes; None if the log does not say."""
        if self.nranks == 1 or self.nodes == 1:
            return False
        return True if self.nodes > 1 else None

    @property
    def finished(self) -> bool:
        """Tell whether the communicator finished its set-up.

        Old releases print no COMPLETE, and no START either. "Connected all rings" may name no communicator, so it does
        not finish one that was begun.
        """
        return self.complete or self.passed or (self.connected and not self.started)

    def as_dict(self) -> dict[str, Any]:
        """Return the communicator as plain data."""
        names = ("rank", "nranks", "nodes", "network", "complete", "connected", "channels")
        return {"id": self.identity, "gdr_channels": self.gdr} | {name: getattr(self, name) for name in names}


@dataclass(slots=True, eq=False)
class Process:
    """One start of one process that uses NCCL (``host:pid``), with all of its communicators."""

    pod: str
    host: str
    pid: str
    # Its pid, or its device where the log has no pid.
    name: str = ""
    first: int = 0
    last: int = 0
    version: str = ""
    channels: Channels = field(default_factory=dict)
    intra: Counter[str] = field(default_factory=Counter)
    collnet: Counter[str] = field(default_factory=Counter)
    selections: Counter[str] = field(default_factory=Counter)
    ib_devices: list[str] = field(default_factory=list)
    socket_devices: list[str] = field(default_factory=list)
    provider: str = ""
    gdr: int = 0
    # The names of networks that torn lines end with; empty if a line ends before the name.
    torn: dict[str, None] = field(default_factory=dict)
    communicators: dict[str, Communicator] = field(default_factory=dict)
    # {cause: the first line that shows it, and the number of such lines}
    hits: dict[str, tuple[str, int]] = field(default_factory=dict)
    marks: Counter[str] = field(default_factory=Counter)
    current: dict[str, Communicator] = field(default_factory=dict)
    pending_network: dict[str, str] = field(default_factory=dict)
    # About communicators that were dropped: whether one spanned nodes, how many never finished their set-up, and a TCP
    # network that one had selected and not used.
    crossed: bool = False
    abandoned: int = 0
    dropped_tcp: str = ""
    # When it last wrote that a communicator starts or is complete, in the log's count of lines.
    set_up: int = 0
    # {MTU in the numbering of verbs: the first line that contains it}
    mtus: dict[int, str] = field(default_factory=dict)

    def add_channel(self, via: Via, tid: str = "", count: int = 1) -> None:
        """Count channels for the process and for the communicator that its thread set up last."""
        comm = self.current.get(tid)
        if comm is None and len(self.communicators) == 1:
            comm = next(iter(self.communicators.values()))
        for owner in (self, comm):
            if owner is not None:
                devices = owner.channels.setdefault(via.network, {})
                devices[via.device] = devices.get(via.device, 0) + count
                owner.gdr += via.gdr * count

    def select(self, tid: str, network: str) -> None:
        """Note the network that a thread chose for the communicator that it sets up next."""
        self.selections[network] += 1
        if len(self.pending_network) >= _THREADS:
            self.pending_network.pop(next(iter(self.pending_network)))
        self.pending_network[tid] = network

    def start_communicator(self, tid: str, comm: Communicator) -> None:
        """Make a communicator the current one of a thread."""
        if tid not in self.current and len(self.current) >= _THREADS:
            self.current.pop(next(iter(self.current)))
        before = self.current.get(tid)
        if before is not None and before is not comm and before.started:
            before.passed = True
        self.current[tid] = comm

    def hit(self, cause: str, line: str) -> None:
        """Record a line that shows a cause."""
        first, count = self.hits.get(cause, (line, 0))
        self.hits[cause] = first, count + 1

    def uses(self) -> Iterator[tuple[str, str, int]]:
        """Yield the networks and devices of its channels, with the number of channels."""
        for network, devices in self.channels.items():
            for device, count in devices.items():
                yield network, device, count

    @property
    def groups(self) -> set[str]:
        """Return the commId values shared across ranks."""
        return {comm.shared_id for comm in self.communicators.values()} - {""}

    @property
    def gpus(self) -> set[str]:
        """Return the GPUs of its communicators."""
        return {comm.device for comm in self.communicators.values()} - {""}

    @property
    def speaks(self) -> bool:
        """Tell whether it logged anything about communication."""
        return bool(self.host or self.pid or self.channels) and bool(
            self.communicators or self.channels or self.selections or self.hits or self.intra
        )

    @property
    def has_finished(self) -> bool:
        """Tell whether a communicator of several ranks finished its set-up."""
        return any(comm.finished and comm.nranks > 1 for comm in self.communicators.values())

    @property
    def begins(self) -> bool:
        """Tell whether it is seen to start: it has printed its version, or has begun to set up a communicator."""
        return bool(self.marks) or any(comm.started for comm in self.communicators.values())

    @property
    def main(self) -> Communicator | None:
        """Return the widest communicator in use, or the first of several equal ones: usually the world."""
        return max(self.communicators.values(), key=lambda c: (not c.shrunk, c.nranks), default=None)

    @property
    def rank(self) -> int:
        """Return the rank in the widest communicator, -1 when unknown."""
        return self.main.rank if self.main else -1

    @property
    def says_nothing(self) -> bool:
        """Tell whether it set up a communicator of several nodes, and no line says by which path it reaches them."""
        path = self.channels or self.intra or self.collnet or self.torn
        # Every release with IB lists its devices too, so a list of interfaces alone is no path to other nodes.
        named = self.selections or self.ib_devices or self.provider
        return self.has_finished and self.leaves_node and not (path or named)

    @property
    def stays_on_node(self) -> bool:
        """Tell whether every communicator is known to stay inside its node."""
        known = [comm.crosses_nodes for comm in self.communicators.values()]
        return not self.crossed and bool(known) and all(crosses is False for crosses in known)

    @property
    def inside(self) -> bool:
        """Tell whether its ranks are known to reach their peers without a network; NVLink is not a network."""
        return bool(self.intra) and (
            self.stays_on_node or (any(c.mnnvl for c in self.communicators.values()) and not self.leaves_node)
        )

    @property
    def leaves_node(self) -> bool:
        """Tell whether a communicator is known to span nodes over a network."""
        return self.crossed or any(
            c.crosses_nodes and not (c.mnnvl and self.intra) for c in self.communicators.values()
        )


def merge_channels(processes: Iterable[Process]) -> Channels:
    """Add up the channels of several processes."""
    total: Counter[tuple[str, int]] = Counter()
    for process in processes:
        for network, device, count in process.uses():
            total[network, int(device)] += count
    merged: Channels = {}
    for (network, number), count in sorted(total.items()):
        merged.setdefault(network, {})[str(number)] = count
    return merged
