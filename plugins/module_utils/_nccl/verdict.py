# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide what processes prove about the transport. Private to the collection.

Only channel lines prove a transport. A selected network, a list of devices or silence does not (docs/transport.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .._common.terms import EVIDENCE, Evidence, TransportClass
from .catalogue import BY_ID
from .model import Communicator, Process
from .networks import LIBFABRIC, RDMA, TCP_PROVIDERS, is_tcp, matches


@dataclass(frozen=True)
class Verdict:
    """What a log, or one of its processes, proves; ``verdict`` has the values that ``name_verdict`` returns."""

    verdict: str
    transport_class: TransportClass
    evidence: Evidence


UNKNOWN = Verdict("unknown", "unknown", "none")


def transport_class(network: str, process: Process | None = None) -> TransportClass:
    """Return ``rdma``, ``tcp`` or ``unknown`` for the name that NCCL prints for a network."""
    if is_tcp(network):
        return "tcp"
    if matches(network, RDMA):
        return "rdma"
    # UCX, libfabric and unknown plugins may run over TCP, but not when they read GPU memory directly.
    if matches(network, LIBFABRIC) and process and process.provider:
        return "tcp" if process.provider.partition(";")[0] in TCP_PROVIDERS else "rdma"
    # A NIC may read a GPU's memory in one direction only, which is half of the lines.
    lines = sum(sum(devices.values()) for devices in process.channels.values()) if process else 0
    return "rdma" if process and 0 < lines <= 2 * process.gdr else "unknown"


def name_verdict(network: str) -> str:
    """Return the verdict for the name of a network."""
    return {"IB": "ib", "Socket": "socket"}.get(network, f"plugin:{network}")


def promise(process: Process) -> tuple[Evidence, list[str]]:
    """Return the best evidence of a process other than channels, and the networks that this evidence names."""
    if process.stays_on_node:
        return "none", []
    if names := list(process.selections):
        # A name that is the start of another name comes from a line that was cut off.
        return "selection", [n for n in names if not any(other != n and other.startswith(n) for other in names)]
    if process.ib_devices:
        return "banner", ["IB"]
    if process.provider:
        return "banner", ["Libfabric"]
    return ("banner", ["Socket"]) if process.socket_devices else ("none", [])


def communicator_verdict(comm: Communicator, process: Process) -> Verdict:
    """Return what one communicator of a process proves, regardless of the others."""
    names = Counter({network: sum(devices.values()) for network, devices in comm.channels.items()})
    level: Evidence = "channels"
    if not names:
        if comm.nranks == 1 or comm.crosses_nodes is False or not comm.network:
            return UNKNOWN
        names, level = Counter([comm.network]), "selection"
    classes = {transport_class(network, process) for network in names}
    return _used(names, classes, level)


def _kinds(process: Process) -> set[str]:
    return {BY_ID[identity].kind for identity in process.hits}


def _proved(processes: Iterable[Process]) -> tuple[Counter[str], set[TransportClass]]:
    """Return the networks that channel lines name, with their counts and their transport classes."""
    names: Counter[str] = Counter()
    classes: set[TransportClass] = set()
    for process in processes:
        found = {network: sum(devices.values()) for network, devices in process.channels.items()} or process.collnet
        for network, count in found.items():
            names[network] += count
            classes.add(transport_class(network, process))
    return names, classes


def decide(processes: list[Process]) -> Verdict:
    """Return what these processes prove together; the worst verdict counts."""
    names, classes = _proved(processes)
    level: Evidence = "channels"
    if not names:
        if any("init" in _kinds(process) for process in processes):
            return Verdict("error", "unknown", "failure")
        if any(process.intra for process in processes) and not any(process.leaves_node for process in processes):
            return Verdict("intra", "intra", "channels") if _is_intra(processes) else UNKNOWN
        level = max((promise(process)[0] for process in processes), key=EVIDENCE.index, default="none")
        if level in ("none", "banner") and any(_kinds(p) & {"fatal", "failure"} for p in processes):
            return Verdict("error", "unknown", "failure")
    for network, process in _promised(processes, level):
        names[network] += 1
        classes.add(transport_class(network, process))
    if not names:
        return UNKNOWN
    return _used(names, classes, level)


def _used(names: Counter[str], classes: set[TransportClass], level: Evidence) -> Verdict:
    """Return the verdict on these networks, of which the most frequent one gives the name."""
    if len(classes) > 1 and (len(names) > 1 or classes == {"rdma", "tcp"}):
        return Verdict("mixed", "mixed", level)
    # The ranks use one network, and some do not say over what. TCP anywhere is TCP.
    kind: TransportClass = "tcp" if "tcp" in classes else "unknown" if "unknown" in classes else "rdma"
    return Verdict(name_verdict(names.most_common(1)[0][0]), kind, level)


def _is_intra(processes: list[Process]) -> bool:
    """Tell whether all paths stay inside nodes; several hosts, or a torn line, may also mean an unseen network."""
    if any(process.torn for process in processes):
        return False
    hosts = {process.host for process in processes if process.intra or process.communicators}
    return len(hosts) < 2 or all(process.inside for process in processes if process.intra or process.communicators)


def _promised(processes: list[Process], level: Evidence) -> Iterator[tuple[str, Process]]:
    """Yield networks that were selected but not used yet; they must have the same transport as those in use."""
    lists_ib = any(process.ib_devices for process in processes)
    for process in processes:
        if process.dropped_tcp:
            yield process.dropped_tcp, process
        for comm in process.communicators.values():
            # An unrecognised network name, which may be torn, does not count as a different transport.
            idle = comm.crosses_nodes is not False and not comm.channels and not process.inside
            if idle and comm.network and transport_class(comm.network, process) != "unknown":
                yield comm.network, process
        own, networks = promise(process)
        # NCCL 2.4 prints the Socket banner first, even if it finds another network later.
        too_early = own == "banner" and networks == ["Socket"] and lists_ib and "no_rdma_device" not in process.hits
        if not process.channels and not process.inside and own != "none" and own in (level, "selection"):
            yield from ((network, process) for network in networks if not too_early)
