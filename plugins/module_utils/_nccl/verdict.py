# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide what a log proves about the transport, and whether that satisfies an expectation. Private to the collection.

Channel lines prove, a selection promises, a device list allows, and silence proves nothing (docs/transport.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from .catalogue import BY_ID
from .causes import ranked
from .log import NcclLog
from .model import Channels, Communicator, Process, merge_channels

EVIDENCE = ("none", "failure", "banner", "selection", "channels")
_RDMA = ("IB", "IBext*", "IB-*", "IB_*", "gIB", "*Libfabric", "SPCX*", "AINIC*", "NCCL RDMA Plugin*", "SHARP")
_TCP = ("Socket", "FastSocket", "GPUDirectTCPX*", "FasTrak*")
_TCP_PROVIDERS = ("tcp", "sockets", "udp", "net")


@dataclass(frozen=True)
class Verdict:
    """What one log, or one process of it, proves."""

    verdict: str
    transport_class: str
    evidence: str


UNKNOWN = Verdict("unknown", "unknown", "none")


def transport_class(network: str, process: Process | None = None) -> str:
    """Return ``rdma``, ``tcp`` or ``unknown`` for the name that NCCL prints for a network."""
    if any(fnmatchcase(network, pattern) for pattern in _TCP):
        return "tcp"
    if network.endswith("Libfabric") and process and process.provider.partition(";")[0] in _TCP_PROVIDERS:
        return "tcp"
    if any(fnmatchcase(network, pattern) for pattern in _RDMA):
        return "rdma"
    # UCX and unknown plugins may be TCP underneath; reading GPU memory directly they are not.
    return "rdma" if process and process.gdr else "unknown"


def name_verdict(network: str) -> str:
    """Return the verdict that a network's name stands for."""
    return {"IB": "ib", "Socket": "socket"}.get(network, f"plugin:{network}")


def _infer_nodes(processes: Iterable[Process]) -> None:
    """Fill in the number of nodes where NCCL is too old to print it, from who took part."""
    groups: dict[tuple[str, int], list[tuple[str, Communicator]]] = {}
    for process in processes:
        for comm in process.communicators.values():
            if comm.nranks > 1 and not comm.nodes and process.host:
                groups.setdefault((comm.shared_id, comm.nranks), []).append((process.host, comm))
    for (_unused, nranks), members in groups.items():
        hosts = {host for host, _unused in members}
        ranks = {comm.rank for _unused, comm in members}
        # compared by length first: a torn line may say any number of ranks, and a set of billions takes all memory
        complete = len(ranks) == nranks and ranks == set(range(nranks))
        devices = {comm.device for _unused, comm in members}
        if len(hosts) > 1 or (complete and len(devices) == nranks and "" not in devices):
            for _unused, comm in members:
                comm.nodes = len(hosts)


def promise(process: Process) -> tuple[str, list[str]]:
    """Return the best evidence below channels of a process, and the networks it names."""
    if process.stays_on_node:
        return "none", []
    if names := list(process.selections):
        # The start of another name is a line that was cut off.
        return "selection", [n for n in names if not any(other != n and other.startswith(n) for other in names)]
    if process.ib_devices:
        return "banner", ["IB"]
    if process.provider:
        return "banner", ["Libfabric"]
    return ("banner", ["Socket"]) if process.socket_devices else ("none", [])


def judge_communicator(comm: Communicator, process: Process) -> Verdict:
    """Return what one communicator of a process proves by itself."""
    names = Counter({network: sum(devices.values()) for network, devices in comm.channels.items()})
    level = "channels"
    if not names:
        if comm.nranks == 1 or comm.crosses_nodes is False or not comm.network:
            return UNKNOWN
        names, level = Counter([comm.network]), "selection"
    classes = {transport_class(network, process) for network in names}
    if len(classes) > 1:
        return Verdict("mixed", "mixed", level)
    return Verdict(name_verdict(names.most_common(1)[0][0]), classes.pop(), level)


def _kinds(process: Process) -> set[str]:
    return {BY_ID[identity].kind for identity in process.hits}


def _proved(processes: Iterable[Process]) -> tuple[Counter[str], set[str]]:
    """Return the networks that channel lines name, with their counts, and their classes."""
    names: Counter[str] = Counter()
    classes: set[str] = set()
    for process in processes:
        found = {network: sum(devices.values()) for network, devices in process.channels.items()} or process.collnet
        for network, count in found.items():
            names[network] += count
            classes.add(transport_class(network, process))
    return names, classes


def decide(processes: list[Process]) -> Verdict:
    """Return what these processes prove together; the worst of them counts."""
    names, classes = _proved(processes)
    if names:
        level = "channels"
    elif any("init" in _kinds(process) for process in processes):
        return Verdict("error", "unknown", "failure")
    else:
        promises = [promise(process) for process in processes]
        intra = any(process.intra for process in processes)
        crossing = any(process.leaves_node for process in processes)
        if intra and not crossing:
            return Verdict("intra", "intra", "channels")
        level = max((level for level, _unused in promises), key=EVIDENCE.index, default="none")
        if level in ("none", "banner") and any(_kinds(p) & {"fatal", "failure"} for p in processes):
            return Verdict("error", "unknown", "failure")
    for process in processes:
        for comm in process.communicators.values():
            # A communicator across nodes that has not talked yet must not have selected another kind either.
            # The name may be torn; what is not known is no other kind.
            kind = transport_class(comm.network, process)
            idle = comm.crosses_nodes and not comm.channels and not (comm.mnnvl and process.intra)
            if idle and comm.network and kind != "unknown":
                names[comm.network] += 1
                classes.add(kind)
        # A rank that only selected its network must not have selected another kind than the one that is in use.
        own, networks = promise(process)
        silent = not process.channels and not (process.intra and not process.leaves_node)
        if silent and own != "none" and own in (level, "selection"):
            for network in networks:
                names[network] += 1
                classes.add(transport_class(network, process))
    if not names:
        return UNKNOWN
    if len(classes) > 1:
        return Verdict("mixed", "mixed", level)
    return Verdict(name_verdict(names.most_common(1)[0][0]), classes.pop(), level)


@dataclass
class Report:
    """The judgement of one source; ``failures`` say why it does not satisfy, in words."""

    source: str
    verdict: Verdict
    channels: Channels
    processes: list[Process]
    earlier: list[Process]
    version: str
    causes: list[dict[str, Any]]
    failures: list[str] = field(default_factory=list)

    @property
    def satisfied(self) -> bool:
        """Tell whether the expectation is met."""
        return not self.failures

    @property
    def complete(self) -> bool:
        """Tell whether every communicator that was begun came to the end of its set-up."""
        return all(comm.finished for comm in begun(self.processes))

    @property
    def msg(self) -> str:
        """Return the judgement in one line."""
        on = shown(self.channels) or self.verdict.evidence
        head = f"{self.source}: {self.verdict.verdict} ({on})"
        if self.satisfied:
            return head
        cause = next((c for c in self.causes if c["confidence"] >= 0.3), None)
        because = f". Probable cause: {cause['summary']}. {cause['remedy']}" if cause else ""
        return f"{head}: {'; '.join(self.failures)}{because}"

    def as_dict(self) -> dict[str, Any]:
        """Return the judgement as plain data, the same keys whatever it is."""
        return {
            "source": self.source,
            "verdict": self.verdict.verdict,
            "transport_class": self.verdict.transport_class,
            "evidence": self.verdict.evidence,
            "satisfied": self.satisfied,
            "failures": self.failures,
            "channels": self.channels,
            "gdr_channels": sum(process.gdr for process in self.processes),
            "intra": dict(sum((process.intra for process in self.processes), Counter())),
            "complete": self.complete,
            "nccl_version": self.version,
            "causes": self.causes,
            "ranks": [_rank(process, self.source) for process in self.processes if speaks(process)],
            "earlier_starts": [_rank(process, self.source) for process in self.earlier],
            "msg": self.msg,
        }


def report_on(log: NcclLog, source: str) -> Report:
    """Say what the log of one source proves, without expecting anything of it."""
    _infer_nodes(log.processes)
    version = next((p.version for p in log.processes if p.version), log.version)
    channels = merge_channels(log.processes)
    verdict = decide(log.processes)
    return Report(source, verdict, channels, log.processes, log.earlier, version, ranked(log.processes, source))


def begun(processes: Iterable[Process]) -> list[Communicator]:
    """Return the communicators of more than one rank whose set-up was begun."""
    return [c for p in processes for c in p.communicators.values() if c.started and c.nranks > 1]


def speaks(process: Process) -> bool:
    """Tell whether a process said anything about communication."""
    return bool(process.host or process.pid or process.channels) and bool(
        process.communicators or process.channels or process.selections or process.hits or process.intra
    )


def seen_ranks(processes: Iterable[Process]) -> set[tuple[str, int]]:
    """Return the ranks that took part, each with its widest communicator's identity, which several groups differ in.

    Where the log names no communicator, its processes are numbered.
    """
    speaking = [process for process in processes if speaks(process)]
    seen = set()
    for process in speaking:
        if main := process.main:
            # One process may drive several GPUs, each a rank of the same communicator.
            alike = (
                c for c in process.communicators.values() if (c.shared_id, c.nranks) == (main.shared_id, main.nranks)
            )
            seen |= {(main.shared_id, comm.rank) for comm in alike}
    return seen or {("", number) for number in range(len(speaking))}


def shown(channels: Channels) -> str:
    """Return channels as a person reads them: ``NET/IB/0 x4, NET/IB/1 x4``."""
    parts = (f"NET/{net}/{dev} x{count}" for net, devices in channels.items() for dev, count in devices.items())
    return ", ".join(parts)


def _rank(process: Process, source: str) -> dict[str, Any]:
    own = decide([process])
    return {
        "host": process.host,
        "pid": process.pid,
        "rank": process.rank if process.rank >= 0 else None,
        "pod": process.pod,
        "source": source,
        "verdict": own.verdict,
        "transport_class": own.transport_class,
        "evidence": own.evidence,
        "channels": merge_channels([process]),
        "gdr_channels": process.gdr,
        "nccl_version": process.version,
        "communicators": [
            comm.as_dict() | asdict(judge_communicator(comm, process)) for comm in process.communicators.values()
        ],
    }
