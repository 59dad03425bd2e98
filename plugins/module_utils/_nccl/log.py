# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read an NCCL log of any length into processes, communicators and channels. Private to the collection."""

from __future__ import annotations

from collections.abc import Callable

from . import causes, scan
from . import statements as says
from .model import NO_PATH, Line, Process, Reading
from .networks import is_tcp
from .read import NOTHING, find_path, read_statement, read_via
from .recorders import Recorders, is_odd, record_channel, record_pending, record_torn
from .scan import CHUNK, NOBODY, Origin
from .silent import SilentStarts
from .starts import doubt_order, doubt_restart, doubt_whole, find_unready, infer_nodes, set_aside

# The process number can't occur in a log.
_UNSIGNED = NOBODY._replace(device="-")
# Kinds of statements that also count where they may be a quotation, because they can take a pass away.
_QUOTABLE = frozenset({"channel", "torn"})
# Kinds of statements that the log itself looks at.
_TOLD = frozenset({"init", "mtu"})
_LEVELS = (b"NCCL INFO", b"NCCL WARN", b"NCCL ATTN")
# A line that says nothing is counted for a process that is not one of the log.
_IGNORED = Line(Process("", "", ""), NOBODY, NO_PATH, count=1)


class NcclLog:
    """Collects the processes of one log: ``read()`` a stream or ``add_lines()``, then look at ``processes``.

    ``one_start`` says that all processes belong to one start of a server, so none of them replaced another one.
    """

    def __init__(self, one_start: bool = False) -> None:
        self.one_start = one_start
        self.processes: list[Process] = []
        self.earlier: list[Process] = []
        self.version = ""
        # Number of quoted log lines; whether NCCL was restarted and has logged nothing since; whether the log has more
        # processes than can be told apart; the name of a process that replaces the others and is not ready yet.
        self.quotations, self.silent_start, self.crowded, self.unready = 0, False, False, ""
        self._silent = SilentStarts()
        self._by_key: dict[tuple[str, str, str], Process] = {}
        self._by_pid: dict[tuple[str, str], list[Process]] = {}
        # {text before "NCCL INFO", without time stamps: who wrote it}
        self._writers: dict[bytes, tuple[Process, Origin]] = {}
        # {line without time stamps: who wrote it and what it says}; channel lines also by writer and what follows "via"
        self._lines: dict[bytes, Line] = {}
        self._vias: dict[tuple[bytes, bytes], Line] = {}
        self._clock = 0
        self._recorders = Recorders()

    def read(
        self, read: Callable[[int], bytes], size: int = CHUNK, keep: Callable[[list[bytes]], None] | None = None
    ) -> NcclLog:
        """Read a binary stream to its end in bounded memory; call ``keep`` with the lines that may be from NCCL."""
        for blocks in scan.candidate_lines(read, size):
            self.add_lines(blocks)
            if keep:
                keep(blocks)
        return self.finish()

    def add_lines(self, blocks: list[bytes]) -> None:
        """Add lines, or blocks of whole lines, that may contain statements, in the order of the log.

        Nine of ten lines of an NCCL log are channel lines, so they are counted for now, and recorded before the next
        statement of another kind.
        """
        known, record = self._lines.get, self._recorders.by_kind
        for block in blocks:
            lines = block.split(b"\n")
            # One substitution per block is faster than one per line. Most logs have a time in every line, or in none.
            keys = scan.without_time(block).split(b"\n") if scan.TIME.search(lines[0]) else lines
            for line, found in zip(lines, map(known, keys), strict=True):
                if found is None and (found := self._new(line)) is None:
                    continue
                if found.reading is None:
                    if not found.count:
                        found.process.pending.append(found)
                    found.count += 1
                    continue
                process, reading = found.process, found.reading
                if process.pending:
                    record_pending(process)
                process.last = self._clock
                kind, values, once, cause = reading
                if once or cause or kind in _TOLD:
                    self._said(process, found.origin, reading, line)
                elif kind in _QUOTABLE or not is_odd(process, found.origin):
                    record[kind](process, found.origin, values)

    def _new(self, whole: bytes) -> Line | None:
        """Read a line that has not been read before, or only with other time stamps."""
        line = scan.without_time(whole)
        if found := self._lines.get(line):
            return found
        head, level, raw = line.partition(b" NCCL INFO ")
        if not level:
            if b"CCL" in line or b"NET" in line or b"ocket/" in line:
                self._pieces(whole)
            return None
        # The meaning of a statement that names NCCL depends on its writer: two lines may have run into each other.
        named = b"NCCL" in raw
        if named and (b"NCCL" in head or any(level in raw for level in _LEVELS) or head not in self._writers):
            self._silent.note_first(head)
            self._pieces(whole)
            return None
        long = len(line) > says.LONGEST
        if not named and (end := find_path(raw)):
            writer = self._writer(head)
            if long:
                return Line(*writer, NO_PATH, Reading("channel", read_via(scan.plain(end))))
            found = self._vias.get((head, end)) or Line(*writer, read_via(scan.plain(end)))
            self._vias[head, end] = found
        else:
            self._silent.note_first(head)
            reading = NOTHING if raw.startswith(says.BORING) and not named else read_statement(scan.plain(raw))
            found = _IGNORED if reading is NOTHING else Line(*self._writer(head), NO_PATH, reading)
        if not (named or long):
            self._lines[line] = found
        if len(self._lines) > says.LINES or len(self._vias) > says.CACHE:
            self._record_pending()
            self._lines.clear()
            self._vias.clear()
        return found

    def _writer(self, head: bytes) -> tuple[Process, Origin]:
        """Return the process and the origin of a line, from all text before ``NCCL INFO``."""
        known = self._writers.get(head[-says.LONGEST :])
        process, origin = known or self._new_writer(head[-says.LONGEST :])
        if (known is None or len(head) > says.LONGEST) and b"NET/" in head:
            # The end of another rank's line precedes this line.
            self._without_prefix(scan.plain(head))
        self._clock += 1
        self._silent.heard(process, origin)
        return process, origin

    def _new_writer(self, head: bytes) -> tuple[Process, Origin]:
        origin = scan.parse_origin(scan.plain(head[-200:]))
        process = self._process(origin)
        if len(self._writers) >= says.CACHE:
            self._forget_writers()
        self._writers[head] = process, origin
        return process, origin

    def _record_pending(self) -> None:
        for process in self.processes:
            self._record(process)

    def _record(self, process: Process) -> None:
        """Record the channel lines of a process that were only counted."""
        if process.pending:
            process.last = self._clock
            record_pending(process)

    def _forget_writers(self) -> None:
        self._record_pending()
        self._writers.clear()
        self._lines.clear()
        self._vias.clear()

    def _process(self, origin: Origin) -> Process:
        key = (origin.pod, origin.host, origin.pid or f"dev{origin.device}")
        process = self._by_key.get(key)
        if process is None:
            if len(self.processes) >= says.PROCESSES and origin != NOBODY:
                self.crowded = True
                return self._process(NOBODY)
            # The order of a process and the channel lines before it is known until the clock goes on.
            self._record_pending()
            process = Process(origin.pod, origin.host, origin.pid, first=self._clock + 1)
            self._by_key[key] = process
            self.processes.append(process)
            self._recorders.starts += 1
            if origin.host and len(self._recorders.hosts) < says.CACHE:
                self._recorders.hosts.add(origin.host)
            alike = self._by_pid.setdefault((origin.pod, origin.pid), [])
            # A line runs into those of few other processes. Without this limit a hostile log makes the search long.
            if len(alike) < says.NEIGHBOURS:
                alike.append(process)
        self._clock += 1
        process.last = self._clock
        return process

    def _torn_host(self, origin: Origin) -> Process | None:
        """Return the known process whose host name is torn here: its start is missing, or other text precedes it."""
        if not origin.pid or (origin.pod, origin.host, origin.pid) in self._by_key:
            return None
        for process in self._by_pid.get((origin.pod, origin.pid), ()):
            runs = process.host and self._by_key.get((process.pod, process.host, process.pid)) is process
            if runs and (origin.host.endswith(process.host) or process.host.endswith(origin.host)):
                return process
        return None

    def _pieces(self, line: bytes) -> None:
        """Record a line that may contain several statements, or part of one."""
        if scan.is_quotation(line):
            self.quotations += 1
            return
        # Time stamps must not make the start of a line differ from that of the lines that _writer reads.
        whole = scan.without_time(line) if any(level in line for level in _LEVELS) else line
        for origin, level, text in scan.split_line(whole):
            if not level and origin == NOBODY:
                self._without_prefix(text)
                continue
            # Only for lines that ran into each other: in whole lines, two hosts may use the same process number.
            process = self._torn_host(origin) or self._process(origin)
            if level == "INFO":
                self._silent.heard(process, origin)
                self._said(process, origin, read_statement(text), line)
            elif cause := causes.find_cause(text):
                self._hit(process, origin, cause, line)

    def _hit(self, process: Process, origin: Origin, cause: str, line: bytes) -> None:
        """Record a line that shows a cause; one that may be a quotation is not held against its process."""
        # NCCL writes the time in brackets before a warning, but not before its other lines.
        alike = origin._replace(lead=origin.lead.removesuffix("[] "))
        odd = is_odd(process, origin) and is_odd(process, alike) and origin.lead != scan.JOINED
        (self._unsigned() if odd else process).hit(cause, scan.quoted(line))

    def _said(self, process: Process, origin: Origin, reading: Reading, line: bytes) -> None:
        """Record one INFO statement of a process."""
        self._record(process)
        kind, values, once, cause = reading
        if is_odd(process, origin):
            # A quotation starts no process again and sets up no communicator. But ranks' lines may run into each other.
            joined = origin.lead == scan.JOINED and (kind != "selected" or is_tcp(values))
            once, kind = "", kind if kind in _QUOTABLE or joined else ""
        if once:
            process = self._restarted(process, origin, once, values if kind == "version" else "")
        if cause:
            self._hit(process, origin, cause, line)
        if kind == "init":
            process.set_up = self._clock
            self._silent.set_up(process, origin)
        if kind == "mtu":
            process.mtus.setdefault(values, scan.quoted(line))
        elif kind:
            self._recorders.by_kind[kind](process, origin, values)

    def _without_prefix(self, text: str) -> None:
        """Record what a line without ``NCCL INFO`` still proves: versions, errors, and channel statements."""
        if found := says.VERSION.search(text) or says.NAMED_VERSION.search(text):
            self._silent.version(text, found[1], self._clock)
            self.version = self.version or found[1]
        end = text[-says.LONGEST :]
        if "->" in end and (found := says.CHANNEL.search(end)):
            record_channel(self._unsigned(), NOBODY, read_via(found[1]))
        # A prompt may name Socket in a sentence; in files of its own, NCCL alone can have written the name.
        elif (found := (says.TCP_NAME if self.one_start else says.TCP_FRAGMENT).search(text)) and self.processes:
            # A torn line may only make the verdict worse, never better.
            self._unsigned().add_channel(found[1], found[2], 1)
        elif self.processes and says.TORN.search(end):
            record_torn(self._unsigned(), NOBODY, end)
        at = min((at for word in says.TROUBLE if (at := text.find(word)) >= 0), default=-1)
        if at >= 0 and (cause := causes.find_cause(text[max(0, at - says.LONGEST) : at + says.LONGEST])):
            self._unsigned().hit(cause, text.strip()[:400])

    def _unsigned(self) -> Process:
        """Return the writer of all statements without NCCL's own prefix."""
        process = self._process(_UNSIGNED)
        process.unsigned = True
        return process

    def _restarted(self, process: Process, origin: Origin, mark: str, version: str) -> Process:
        """Set the process aside when a process of the same name starts again in the same log."""
        if process.leads and origin.lead not in process.leads:
            return process
        process.marks[mark] += 1
        # Another version in the same process means a second copy of the library, not a restart.
        again = process.version == version if mark == "NCCL version" else not process.version
        started = bool(process.hits) or any(comm.started for comm in process.communicators.values())
        if self.one_start or process.marks[mark] < 2 or not again or not started:
            return process
        self.processes.remove(process)
        self.earlier.append(process)
        self.crowded = self.crowded or len(self.earlier) > says.PROCESSES
        del self.earlier[: -says.PROCESSES]
        # The writer of a torn line is stored under a key that differs from the key of the torn text.
        origin = origin._replace(pod=process.pod, host=process.host)
        self._by_key.pop((process.pod, process.host, process.pid or f"dev{origin.device}"), None)
        self._forget_writers()
        fresh = self._process(origin)
        fresh.marks[mark] = 1
        return fresh

    def finish(self) -> NcclLog:
        """Set earlier starts aside and fill in the values that require the whole log; return self."""
        self._record_pending()
        self.silent_start = self._silent.found(self.processes)
        if not self.one_start:
            self.processes, self.earlier = set_aside(self.processes, self.earlier)
            self.unready = find_unready(self.processes)
            doubt_restart(self.processes, self.earlier)
            doubt_order(self.processes)
            if not self.silent_start:
                doubt_whole(self.processes, self._silent.bare, self._silent.early)
        infer_nodes(self.processes)
        return self
