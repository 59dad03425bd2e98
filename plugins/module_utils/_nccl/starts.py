# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Determine which processes are earlier starts, and how many nodes took part, from the whole log.

Private to the collection.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

from .model import Communicator, Process
from .networks import TCP_PROVIDERS, is_tcp


def set_aside(processes: Sequence[Process], earlier: Sequence[Process]) -> tuple[list[Process], list[Process]]:
    """Return the current processes, and those that a later one on the same GPU replaced, with all their ranks.

    The later one must be seen to start, in lines that begin like those of the earlier one. Quotations replace none.
    """
    last: dict[tuple[str, str, str, str], Process] = {}
    over: dict[str, int] = {}
    for process in sorted(processes, key=lambda p: p.first):
        for gpu, lead in product(process.gpus if process.host or process.pod else (), process.leads):
            before = last.get((process.pod, process.host, gpu, lead))
            # Ranks of one communicator run at the same time, regardless of how their logs were concatenated.
            if before and before.last < process.first and process.begins and not before.groups & process.groups:
                before.replaced = True
                over |= dict.fromkeys(before.groups, process.first)
            last[process.pod, process.host, gpu, lead] = process
    kept: list[Process] = []
    gone: list[Process] = []
    for process in processes:
        begun_after = min((over[group] for group in process.groups & over.keys()), default=0)
        (gone if process.replaced or process.last < begun_after else kept).append(process)
    # NCCL never reuses a commId. A process that shares one with a running rank is therefore not an earlier start, but
    # another container with the same host name and process number (docker --hostname).
    groups = set().union(*(process.groups for process in kept))
    kept += [process for process in earlier if process.groups & groups]
    return kept, [process for process in earlier if not process.groups & groups] + gone


def doubt_restart(processes: Sequence[Process], earlier: Iterable[Process]) -> None:
    """Note that text can't tell a restart from a quotation, if processes over TCP are set aside for others."""
    infer_nodes(earlier := list(earlier))
    before = next((f"{process.host}:{process.pid}" for process in earlier if _talked_tcp(process)), "")
    after = [p for p in processes if p.channels or p.intra or p.collnet or p.selections or p.ib_devices or p.provider]
    if before and after:
        after[0].doubt = (
            f"{before} used TCP, and {after[0].host}:{after[0].pid} later says something else: it may be a restart or "
            "a quotation"
        )
    mute = next((f"{p.host}:{p.pid}" for p in (*earlier, *processes) if p.says_nothing and not p.unsigned), "")
    if mute and (process := next((p for p in after if p.claims and not p.doubt), None)):
        process.doubt = (
            f"{mute} set up a communicator and never says over which network, and {process.host}:{process.pid} does: "
            "its lines may be a quotation"
        )


def doubt_order(processes: Iterable[Process]) -> None:
    """Note that text can't tell whether NCCL named a network, if it names it too late or beside another one."""
    for process in processes:
        who, tcp = f"{process.host}:{process.pid}", [name for name in process.selections if is_tcp(name)]
        used = [name for name in process.channels if not is_tcp(name)]
        if process.doubt or process.stays_on_node:
            continue
        late = process.selections or (process.unconnected and used)
        if (process.unnamed and process.selections) or (process.unselected and late):
            process.doubt = (
                f"{who} completed a communicator before any line named its network, which NCCL does first: lines are "
                "missing, or those that follow are a quotation"
            )
        elif tcp and used:
            process.doubt = f"{who} takes network {tcp[0]}, and its channel lines name {used[0]}: one is a quotation"


def doubt_whole(processes: Iterable[Process], bare: set[str], early: str) -> None:
    """Note that the only log may be a quotation: NCCL says its version below INFO, in a line that begins otherwise.

    ``early`` is a version that NCCL printed alone where a log level of INFO would not print it.
    """
    seen = [process for process in processes if process.leads]
    if early and any(process.claims for process in seen) and not seen[0].doubt:
        seen[0].doubt = (
            f"NCCL {early} prints its version as it does below INFO, and lines of {seen[0].host}:{seen[0].pid} at INFO "
            "follow: they may be a quotation"
        )
    if seen and bare.difference(*(process.leads for process in seen)) and not seen[0].doubt:
        seen[0].doubt = (
            f"NCCL prints its version as it does below INFO, and {seen[0].host}:{seen[0].pid} begins its lines "
            "differently: they may be a quotation"
        )


def _talked_tcp(process: Process) -> bool:
    """Tell whether a process had connections over TCP, or has chosen TCP between nodes."""
    if process.dropped_tcp or any(is_tcp(network) for network in process.channels):
        return True
    if process.provider.partition(";")[0] in TCP_PROVIDERS:
        return True
    comms = process.communicators.values()
    chosen = {comm.network for comm in comms if comm.crosses_nodes is not False and not comm.channels}
    if not process.stays_on_node and not process.channels:
        chosen |= process.selections.keys()
    return not process.inside and any(is_tcp(network) for network in chosen)


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
