# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Determine which processes are earlier starts, and how many nodes took part, from the whole log.

Private to the collection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .model import Communicator, Process
from .networks import is_tcp


def set_aside(
    processes: Sequence[Process], earlier: Sequence[Process], started: Mapping[str, int]
) -> tuple[list[Process], list[Process]]:
    """Return the current processes, and those that a later one on the same GPU replaced, with all their ranks.

    The later one must be seen to start; if the earlier one used TCP, by its version line or the start of a server
    between them (``started``).
    """

    def begins(before: Process, process: Process) -> bool:
        tcp = not before.stays_on_node and any(map(is_tcp, before.channels | before.selections))
        between = (when for pod, when in started.items() if pod in ("", process.pod))
        anew = bool(process.marks) or any(before.last <= when < process.first for when in between)
        return anew if tcp else process.begins

    last: dict[tuple[str, str, str], Process] = {}
    over: dict[str, int] = {}
    replaced: set[Process] = set()
    for process in sorted(processes, key=lambda p: p.first):
        for gpu in process.gpus if process.host or process.pod else ():
            before = last.get((process.pod, process.host, gpu))
            # Ranks of one communicator run at the same time, regardless of how their logs were concatenated.
            if (
                before
                and before.last < process.first
                and not before.groups & process.groups
                and begins(before, process)
            ):
                replaced.add(before)
                over |= dict.fromkeys(before.groups, process.first)
            last[process.pod, process.host, gpu] = process
    kept: list[Process] = []
    gone: list[Process] = []
    for process in processes:
        begun_after = min((over[group] for group in process.groups & over.keys()), default=0)
        (gone if process in replaced or process.last < begun_after else kept).append(process)
    # NCCL never reuses a commId. A process that shares one with a running rank is therefore not an earlier start, but
    # another container with the same host name and process number (docker --hostname).
    groups = set().union(*(process.groups for process in kept))
    kept += [process for process in earlier if process.groups & groups]
    return kept, [process for process in earlier if not process.groups & groups] + gone


def find_mute(processes: Sequence[Process], started: Mapping[str, int]) -> bool:
    """Tell whether a server started, or NCCL printed its version alone, and no process has set NCCL up since.

    ``started`` has the time of the last such start of each pod.
    """

    def is_mute(pod: str, when: int) -> bool:
        own = [process for process in processes if process.pod == pod or not pod]
        # A rank that had finished and goes on, for example with another connection, did not start again.
        new = (max(p.first, p.set_up) > when or (p.last > when and not p.has_finished) for p in own)
        return any(p.has_finished or p.channels for p in own) and not any(new)

    return any(is_mute(pod, when) for pod, when in started.items())


def find_unready(processes: Sequence[Process]) -> str:
    """Return the name of a process that started after the set-up of all finished ones, and is not ready itself."""
    end = max((process.set_up or process.last for process in processes if process.has_finished), default=None)
    late = (p for p in processes if end is not None and p.first > end and p.marks and not p.communicators)
    return next((f"{process.host}:{process.pid}" for process in late), "")


def infer_nodes(processes: Iterable[Process]) -> None:
    """Derive the number of nodes from the participants if NCCL is too old to print it."""
    groups: dict[tuple[str, int], list[tuple[str, Communicator]]] = {}
    for process in processes:
        for comm in process.communicators.values():
            if comm.nranks > 1 and not comm.nodes and process.host:
                groups.setdefault((comm.shared_id, comm.nranks), []).append((process.host, comm))
    for (_shared_id, nranks), members in groups.items():
        hosts = {host for host, _comm in members}
        ranks = {comm.rank for _host, comm in members}
        # Compare lengths first: a torn line may state billions of ranks, and a set of that size would use all memory.
        complete = len(ranks) == nranks and ranks == set(range(nranks))
        devices = {comm.device for _host, comm in members}
        if len(hosts) > 1 or (complete and len(devices) == nranks and "" not in devices):
            for _host, comm in members:
                comm.nodes = len(hosts)
