# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read an NCCL log of any length into processes, communicators and channels. Private to the collection."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from . import causes, scan
from . import statements as says
from .model import Process, Reading, Via
from .read import NOTHING, find_path, read_statement, read_via
from .recorders import Recorders, record_channel, record_torn
from .scan import CHUNK, NOBODY, Origin
from .starts import find_mute, find_unready, infer_nodes, set_aside

# The process number can't occur in a log.
_UNSIGNED = NOBODY._replace(device="-")
_LEVELS = (b"NCCL INFO", b"NCCL WARN", b"NCCL ATTN")


class _Writer:
    """The process and the thread of all lines that begin alike; a restart gives them another process."""

    __slots__ = ("process", "tid")

    def __init__(self, process: Process, tid: str) -> None:
        self.process, self.tid = process, tid


class _Line:
    """The writer of a line, and what it says; no writer if it says nothing.

    Channel lines of one writer with the same path share it. ``count`` is how many of them are not recorded yet.
    """

    __slots__ = ("count", "reading", "writer")

    def __init__(self, writer: _Writer | None, reading: Reading) -> None:
        self.writer, self.reading, self.count = writer, reading, 0


_IGNORED = _Line(None, NOTHING)


class NcclLog:
    """Collects the processes of one log: ``read()`` a stream or ``add_lines()``, then look at ``processes``.

    ``one_start`` says that all processes belong to one start of a server, so none of them replaced another one.
    ``own_files`` says that NCCL wrote the lines to files of its own, so nothing else is in them.
    """

    def __init__(self, one_start: bool = False, own_files: bool = False) -> None:
        self.one_start, self.own_files = one_start, own_files or one_start
        self.processes: list[Process] = []
        self.earlier: list[Process] = []
        self.version = ""
        # Whether NCCL or its server was started again and NCCL has logged nothing since; whether the log has more
        # processes than can be told apart; the name of a process that replaces the others and is not ready yet.
        self.mute, self.crowded, self.unready = False, False, ""
        # {pod: when a server started there, or NCCL printed its version as it does with a log level below INFO}
        self._started: dict[str, int] = {}
        self._by_key: dict[tuple[str, str, str], Process] = {}
        self._by_pid: dict[tuple[str, str], list[Process]] = {}
        # {text before "NCCL INFO", without time stamps: who wrote it}
        self._writers: dict[bytes, _Writer] = {}
        # {line without time stamps: who wrote it and what it says}; channel lines also by writer and what follows "via"
        self._lines: dict[bytes, _Line] = {}
        self._paths: dict[tuple[bytes, bytes], _Line] = {}
        self._pending: list[_Line] = []
        self._clock = 0
        self._recorders = Recorders()

    def read(
        self, read: Callable[[int], bytes], size: int = CHUNK, keep: Callable[[list[bytes]], None] | None = None
    ) -> NcclLog:
        """Read a binary stream to its end in bounded memory; call ``keep`` with the lines that may be from NCCL."""
        last_words: list[bytes] = []
        for blocks in scan.candidate_lines(read, last_words, size):
            self.add_lines(blocks)
            if keep:
                keep(blocks)
        for line in last_words:
            if cause := causes.find_cause(scan.plain(line[-says.LONGEST :])):
                self._unsigned().hit(cause, scan.quoted(line))
        if keep:
            keep(last_words)
        return self.finish()

    def add_lines(self, blocks: list[bytes]) -> None:
        """Add lines, or blocks of whole lines, that may contain statements, in the order of the log."""
        known, record = self._lines.get, self._recorders.by_kind
        for block in blocks:
            lines = block.split(b"\n")
            # One substitution per block is faster than one per line. Most logs have a time in every line, or in none.
            keys = scan.without_time(block).split(b"\n") if scan.TIME.search(lines[0]) else lines
            for line, found in zip(lines, map(known, keys), strict=True):
                if found is None and (found := self._new(line)) is None:
                    continue
                self._clock += 1
                if found.reading.kind == "channel":
                    if not found.count:
                        self._pending.append(found)
                    found.count += 1
                elif writer := found.writer:
                    self._record_pending()
                    reading, process = found.reading, writer.process
                    process.last = self._clock
                    if reading.plain:
                        record[reading.kind](process, writer.tid, reading.values)
                    else:
                        self._said(process, writer.tid, reading, line)

    def _record_pending(self) -> None:
        """Record the channel lines that were only counted, before a statement of another kind or a new process."""
        for line in self._pending:
            if writer := line.writer:
                writer.process.last = self._clock
                record_channel(writer.process, writer.tid, line.reading.values, line.count)
                line.count = 0
        self._pending.clear()

    def _new(self, whole: bytes) -> _Line | None:
        """Read a line that has not been read before, or only with other time stamps."""
        if b"CCL" not in whole and b"NET" not in whole and b"ocket/" not in whole:
            if (at := scan.engine_start(whole)) >= 0:
                self._start(scan.plain(whole[:at]))
            return None
        line = scan.without_time(whole)
        if found := self._lines.get(line):
            return found
        head, level, raw = line.partition(b" NCCL INFO ")
        if not level or b"NCCL" in head or any(level in raw for level in _LEVELS):
            for part in scan.parts(whole):
                self._pieces(part)
            return None
        if end := find_path(raw):
            if (found := self._paths.get((head, end))) is None:
                reading = Reading("channel", read_via(scan.plain(end)))
                found = self._paths[head, end] = _Line(self._writer(head), reading)
        else:
            reading = NOTHING if raw.startswith(says.BORING) else read_statement(scan.plain(raw))
            found = _IGNORED if reading is NOTHING else _Line(self._writer(head), reading)
        if len(line) <= says.LONGEST:
            self._lines[line] = found
        if len(line) > says.LONGEST or len(self._paths) > says.CACHE:
            self._paths.clear()
        if len(self._lines) > says.LINES:
            self._lines.clear()
        return found

    def _writer(self, head: bytes) -> _Writer:
        """Return the writer of a line, from all text before ``NCCL INFO``."""
        start = head[-says.LONGEST :]
        if (writer := self._writers.get(start)) is None:
            if len(self._writers) >= says.CACHE:
                self._record_pending()
                self._writers.clear()
                self._lines.clear()
                self._paths.clear()
            origin = scan.parse_origin(scan.plain(head[-200:]))
            writer = self._writers[start] = _Writer(self._process(origin), origin.tid)
        if b"NET/" in head:
            # The end of another rank's line precedes this line.
            self._without_prefix(scan.plain(head))
        return writer

    def _process(self, origin: Origin) -> Process:
        key = (origin.pod, origin.host, origin.pid or f"dev{origin.device}")
        self._clock += 1
        process = self._by_key.get(key)
        if process is None:
            if len(self.processes) >= says.PROCESSES and origin != NOBODY:
                self.crowded = True
                return self._process(NOBODY)
            self._record_pending()
            self._clock += 1
            process = Process(origin.pod, origin.host, origin.pid, first=self._clock)
            self._by_key[key] = process
            self.processes.append(process)
            self._recorders.starts += 1
            if origin.host and len(self._recorders.hosts) < says.CACHE:
                self._recorders.hosts.add(origin.host)
            alike = self._by_pid.setdefault((origin.pod, origin.pid), [])
            # A line runs into those of few other processes. Without this limit a hostile log makes the search long.
            if len(alike) < says.NEIGHBOURS:
                alike.append(process)
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
        for origin, level, text in scan.split_line(scan.without_time(line)):
            if not level and origin == NOBODY:
                self._without_prefix(text)
                continue
            # Only for lines that ran into each other: in whole lines, two hosts may use the same process number.
            process = self._torn_host(origin) or self._process(origin)
            if level == "INFO":
                self._said(process, origin.tid, read_statement(text), line)
            elif cause := causes.find_cause(text):
                process.hit(cause, scan.quoted(line))

    def _said(self, process: Process, tid: str, reading: Reading, line: bytes) -> None:
        """Record one INFO statement of a process."""
        self._record_pending()
        kind, values, once, cause = reading
        if once:
            process = self._restarted(process, once, values if kind == "version" else "")
        if cause:
            process.hit(cause, scan.quoted(line))
        if kind == "init":
            process.set_up = self._clock
        if kind == "mtu":
            process.mtus.setdefault(values, scan.quoted(line))
        elif kind:
            self._recorders.by_kind[kind](process, tid, values)

    def _without_prefix(self, text: str) -> None:
        """Record what a line without ``NCCL INFO`` still proves: starts, versions, errors, and channel statements."""
        if found := says.VERSION.search(text) or says.NAMED_VERSION.search(text):
            self.version = self.version or found[1]
            if start := says.BARE_VERSION.search(text):
                self._start(text[: start.start()])
        end = text[-says.LONGEST :]
        if "->" in end and (found := says.CHANNEL.search(end)):
            record_channel(self._unsigned(), "", read_via(found[1]))
        # A text may name Socket in a sentence; in files of its own, NCCL alone can have written the name.
        elif (found := (says.TCP_NAME if self.own_files else says.TCP_FRAGMENT).search(text)) and self.processes:
            # A torn line may only make the verdict worse, never better.
            self._unsigned().add_channel(Via(found[1], found[2]))
        elif self.processes and says.TORN.search(end):
            record_torn(self._unsigned(), "", end)
        at = min((at for word in says.TROUBLE if (at := text.find(word)) >= 0), default=-1)
        if at >= 0 and (cause := causes.find_cause(text[max(0, at - says.LONGEST) : at + says.LONGEST])):
            self._unsigned().hit(cause, text.strip()[:400])

    def _start(self, before: str) -> None:
        """Note that a server or NCCL starts, in a line that begins with ``before``."""
        self._record_pending()
        pod = scan.parse_origin(before).pod
        if pod in self._started or len(self._started) < says.CACHE:
            self._started[pod] = self._clock

    def _unsigned(self) -> Process:
        """Return the writer of all statements without NCCL's own prefix."""
        return self._process(_UNSIGNED)

    def _restarted(self, process: Process, mark: str, version: str) -> Process:
        """Set the process aside when a process of the same name starts again in the same log."""
        process.marks[mark] += 1
        # Another version in the same process means a second copy of the library, not a restart.
        again = process.version == version if mark == "NCCL version" else not process.version
        started = bool(process.hits) or any(comm.started for comm in process.communicators.values())
        if self.one_start or process.marks[mark] < 2 or not again or not started:
            return process
        self.processes.remove(process)
        self.earlier.append(process)
        self.crowded = self.crowded or len(self.earlier) > says.EARLIER
        del self.earlier[: -says.EARLIER]
        pod, host, name = key = next(key for key, known in self._by_key.items() if known is process)
        del self._by_key[key]
        fresh = self._process(Origin(pod, host, process.pid, "", name.removeprefix("dev")))
        for writer in self._writers.values():
            if writer.process is process:
                writer.process = fresh
        fresh.marks[mark] = 1
        return fresh

    def finish(self) -> NcclLog:
        """Set earlier starts aside and fill in the values that require the whole log; return self."""
        self._record_pending()
        if not self.one_start:
            self.processes, self.earlier = set_aside(self.processes, self.earlier, self._started)
            self.unready = find_unready(self.processes)
        self.mute = find_mute([*self.processes, *self.earlier], self._started)
        infer_nodes(self.processes)
        return self

    def forget(self) -> NcclLog:
        """Drop the lines that only make reading quicker; return self."""
        self._lines.clear()
        self._paths.clear()
        return self

    @classmethod
    def joined(cls, files: Iterable[NcclLog]) -> NcclLog:
        """Return the log of one start from its files, each of which was read before, in this order."""
        log = cls(one_start=True)
        for each in files:
            # Each file counts its own lines.
            base = log._clock
            log.processes += [
                replace(one, first=base + one.first, last=base + one.last, set_up=base + one.set_up)
                for one in each.processes
            ]
            log._started |= {pod: base + when for pod, when in each._started.items()}
            log.version, log.crowded = log.version or each.version, log.crowded or each.crowded
            log._clock += each._clock
        return log.finish()
