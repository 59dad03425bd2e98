# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report what the log of one source proves, and which ranks it shows. Private to the collection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from .catalogue import BY_ID
from .causes import ranked
from .log import NcclLog
from .model import Channels, Communicator, Process, merge_channels
from .verdict import UNKNOWN, Verdict, communicator_verdict, decide


@dataclass
class Report:
    """The judgement of one source; ``failures`` say in words why the expectation is not met."""

    source: str
    verdict: Verdict
    channels: Channels
    processes: list[Process]
    earlier: list[Process]
    version: str
    causes: list[dict[str, Any]]
    own_files: bool = False
    mute: bool = False
    failures: list[str] = field(default_factory=list)

    @property
    def satisfied(self) -> bool:
        """Tell whether the expectation is met."""
        return not self.failures

    @property
    def troubles(self) -> list[str]:
        """Return the causes that stopped NCCL, at once or later. They do not change the proved transport."""
        return sorted({h for p in self.processes for h in p.hits if BY_ID[h].kind in ("init", "fatal", "failure")})

    @property
    def complete(self) -> bool:
        """Tell whether every communicator that was begun finished its set-up."""
        return all(comm.finished for comm in begun(self.processes))

    @property
    def msg(self) -> str:
        """Return the judgement in one line."""
        on = shown(self.channels) or self.verdict.evidence
        head = f"{self.source}: {self.verdict.verdict} ({on})"
        if self.satisfied:
            return head + (f", not healthy: {', '.join(self.troubles)}" if self.troubles else "")
        cause = next((c for c in self.causes if c["confidence"] >= 0.3), None)
        because = f". Probable cause: {cause['summary']}. {cause['remedy']}" if cause else ""
        return f"{head}: {'; '.join(self.failures)}{because}"

    def as_dict(self) -> dict[str, Any]:
        """Return the judgement as plain data, with the same keys for every result."""
        return {
            "source": self.source,
            "verdict": self.verdict.verdict,
            "transport_class": self.verdict.transport_class,
            "evidence": self.verdict.evidence,
            "satisfied": self.satisfied,
            "healthy": not self.troubles,
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


def make_report(log: NcclLog, source: str) -> Report:
    """Return what the log of one source proves, without comparing it with an expectation."""
    version = next((p.version for p in log.processes if p.version), log.version)
    return Report(
        source,
        UNKNOWN if log.mute else decide(log.processes),
        merge_channels(log.processes),
        log.processes,
        log.earlier,
        version,
        ranked(log.processes, source),
        log.own_files,
        log.mute,
    )


def absent_ranks(processes: Iterable[Process]) -> list[str]:
    """Return the missing ranks of jobs on several hosts; the log of one host need not contain other hosts' ranks."""
    groups: dict[tuple[str, int], dict[str, set[int]]] = {}
    # Nodes of the same name (docker --hostname), or without one, have more ranks than one node has.
    shared: set[tuple[str, int]] = set()
    for process in processes:
        if main := process.main:
            job = (main.shared_id, main.nranks)
            ranks = groups.setdefault(job, {}).setdefault(process.host, set())
            ranks |= {c.rank for c in process.communicators.values() if c.nranks == main.nranks}
            if 0 < main.local_ranks < len(ranks):
                shared.add(job)
    return [
        f"{seen} of {job[1]} ranks of a communicator were seen"
        for job, hosts in groups.items()
        if (seen := len(set().union(*hosts.values()))) < job[1] and (len(hosts.keys() - {""}) > 1 or job in shared)
    ]


def begun(processes: Iterable[Process]) -> list[Communicator]:
    """Return the communicators of more than one rank that began their set-up."""
    return [c for p in processes for c in p.communicators.values() if c.started and c.nranks > 1]


def speaks(process: Process) -> bool:
    """Tell whether a process logged anything about communication."""
    return bool(process.host or process.pid or process.channels) and bool(
        process.communicators or process.channels or process.selections or process.hits or process.intra
    )


def seen_ranks(processes: Iterable[Process]) -> set[tuple[str, int]]:
    """Return the ranks that took part, each with the identity of its widest communicator, which tells groups apart.

    Processes are numbered instead where the log names no communicator.
    """
    speaking = [process for process in processes if speaks(process)]
    seen = set()
    for process in speaking:
        if main := process.main:
            # One process may drive several GPUs, each of which is a rank of the same communicator.
            alike = (
                c for c in process.communicators.values() if (c.shared_id, c.nranks) == (main.shared_id, main.nranks)
            )
            seen |= {(main.shared_id, comm.rank) for comm in alike}
    return seen or {("", number) for number in range(len(speaking))}


def shown(channels: Channels) -> str:
    """Return channels as readable text: ``NET/IB/0 x4, NET/IB/1 x4``."""
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
            comm.as_dict() | asdict(communicator_verdict(comm, process)) for comm in process.communicators.values()
        ],
    }
