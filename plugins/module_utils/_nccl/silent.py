# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find starts of NCCL with a log level below INFO, which print a version alone. Private to the collection."""

from __future__ import annotations

from collections.abc import Iterable

from . import scan
from . import statements as says
from .model import Process
from .scan import Origin


class SilentStarts:
    """Collects versions without a prefix of NCCL, and drops those whose process logs at INFO after all.

    ``bare`` is what precedes such versions; ``early`` is one that a log level of INFO would not print there.
    """

    def __init__(self) -> None:
        self.bare: set[str] = set()
        self.early = ""
        # {pod: when NCCL printed its version there as it does with a log level below INFO}
        self._when: dict[str, int] = {}
        # What precedes the first INFO lines of the log.
        self._first: set[bytes] = set()
        # {pod: what precedes the writer in the lines that set communicators up}
        self._leads: dict[str, set[str]] = {}

    def note_first(self, head: bytes) -> None:
        """Note what precedes an INFO line."""
        if len(self._first) < says.NAMES:
            self._first.add(head[-says.LONGEST :])

    def version(self, text: str, version: str, clock: int) -> None:
        """Note a line with a version and without a prefix of NCCL."""
        if not (bare := says.BARE_VERSION.search(text)):
            return
        before = text[: bare.start()]
        pod = scan.parse_origin(before).pod
        # A progress bar or an unfinished line may precede it, which says nothing about its writer.
        if not before[-1:].isalnum() and "\r" not in before and len(self.bare) < says.NAMES:
            self.bare.add(_lead(before))
        self._when[pod if len(self._when) < says.CACHE else ""] = clock
        # Up to 2.22, rank 0 also prints it at INFO, but after it has said which interface it uses.
        if says.AFTER_2_22.match(version) or not any(
            scan.parse_origin(scan.plain(head)).pod in (pod, "") for head in self._first
        ):
            self.early = self.early or version

    def heard(self, process: Process, origin: Origin, sets_up: bool = False) -> None:
        """Note that a process logs at INFO while it sets itself up, so the version before was its own.

        Lines of other processes, and those that begin otherwise than all before, say nothing about the new start.
        """
        if not self._when:
            return
        own = sets_up or not (process.settled or process.has_finished) or process.first > self._last(process)
        leads = self._leads.get(process.pod)
        if own and (not leads or origin.lead in leads):
            for pod in (process.pod, ""):
                self._when.pop(pod, None)

    def set_up(self, process: Process, origin: Origin) -> None:
        """Note that a process sets a communicator up."""
        if self._when:
            # Also a second copy of the library in a known process, which has printed the version.
            self.heard(process, origin, sets_up=True)
        elif origin.lead != scan.JOINED and len(self._leads) < says.CACHE:
            leads = self._leads.setdefault(process.pod, set())
            if len(leads) < says.NAMES:
                leads.add(origin.lead)

    def found(self, processes: Iterable[Process]) -> bool:
        """Tell whether NCCL was started again below INFO after one of these processes had finished its set-up."""
        return bool(self._when) and any(p.first <= self._last(p) and p.has_finished for p in processes)

    def _last(self, process: Process) -> int:
        return max(self._when.get(pod, 0) for pod in (process.pod, ""))


def _lead(before: str) -> str:
    """Return the spaces and punctuation before a text without a writer, like ``Origin.lead``."""
    return scan.parse_origin(scan.plain(scan.without_time(before.encode())) + "a:1:1").lead
