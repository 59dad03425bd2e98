# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find statements that may be quotations: text alone can't tell whether NCCL wrote them. Private to the collection.

A server prints prompts, and a prompt may quote NCCL. Such lines can take a pass away. They never decide a transport.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .catalogue import BY_ID
from .model import Channels, Process


def set_apart(processes: Sequence[Process]) -> tuple[list[Process], list[Process]]:
    """Return the processes that are seen to set NCCL up, and the writers of all other statements.

    An excerpt of a log has no such process. Then all writers with NCCL's own prefix count, or else all writers.
    """
    known = [process for process in processes if not process.unsigned]
    if any(process.leads for process in known):
        known = [process for process in known if _is_seen(process)]
    known = known or list(processes)
    apart = set(processes).difference(known)
    return known, [process for process in processes if process in apart]


def _is_seen(process: Process) -> bool:
    """Tell whether a process is seen to set NCCL up, in lines that begin with its own statement."""
    if process.communicators and not process.leads:
        return not (process.channels or process.odd)
    return bool(process.communicators or process.selections or process.marks)


def find_doubts(known: Sequence[Process], others: Sequence[Process]) -> list[str]:
    """Return what lines that may be quotations say about other networks than the known processes, or about failures."""
    named = {network for process in known for network in process.channels}
    found = [
        (path, f"begins differently from the other lines of {process.host}:{process.pid}")
        for process in known
        for path in _paths(process.odd, named)
    ]
    for process in others:
        why = (
            "has no prefix of NCCL, or another one than the process that it names"
            if process.unsigned
            else f"names {process.host}:{process.pid}, which set up no NCCL"
        )
        found += [(path, why) for path in _paths(process.channels | process.odd, named)]
        hits = (hit for hit in process.hits.values() if BY_ID[hit.cause].kind in ("init", "fatal"))
        found += [(hit.line[:200], why) for hit in hits]
    texts = [process.doubt for process in (*known, *others) if process.doubt]
    texts += [f'the line with "{text}" {why}, so it may be a quotation' for text, why in found]
    remedy = "Let NCCL write to files of its own (NCCL_DEBUG_FILE), and judge those files"
    return [f"{text}, and text alone can't tell. {remedy}" for text in texts]


def _paths(channels: Channels, named: set[str]) -> Iterator[str]:
    return (f"via NET/{net}/{next(iter(devices))}" for net, devices in channels.items() if net not in named)
