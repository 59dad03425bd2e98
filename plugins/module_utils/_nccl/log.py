# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read an NCCL log of any length into processes, communicators and channels. Private to the collection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from . import causes
from . import statements as says
from .statements import LONGEST, NOTHING, Communicator, Origin, Process, Reading, Via, is_tcp

# pod, host, and process number or device: what names a process in a log
_Key = tuple[str, str, str]
# The writer of all statements without NCCL's own prefix; this device can't occur in a log.
_UNSIGNED: _Key = ("", "", "dev-")
# Different lines, and different texts before "NCCL INFO", that are remembered.
_LINES, _WRITERS = 1 << 13, 4096


@dataclass(slots=True, eq=False)
class _Line:
    """A line that is remembered: who wrote it, and what it says; ``count`` is how often it was not recorded yet."""

    key: _Key
    tid: str
    reading: Reading
    count: int = 0


class NcclLog:
    """Collects the processes of one log: ``read()`` a stream, then look at ``processes``.

    ``one_start`` says that all processes belong to one start of a server, so none of them replaced another one.
    ``own_files`` says that NCCL wrote the lines to files of its own, so nothing else is in them.
    """

    def __init__(self, one_start: bool = False, own_files: bool = False) -> None:
        self.one_start, self.own_files = one_start, own_files or one_start
        self.processes: list[Process] = []
        self.earlier: list[Process] = []
        self.version = ""
        # Whether NCCL or its server was started again, and NCCL has set nothing up since.
        self.mute = False
        # {pod: when a server started there, or NCCL printed its version as it does with a log level below INFO}
        self._started: dict[str, int] = {}
        self._by_key: dict[_Key, Process] = {}
        # {text before "NCCL INFO", without time stamps: who wrote it}
        self._writers: dict[bytes, tuple[_Key, str]] = {}
        # {line without time stamps; None if it says nothing}
        self._known: dict[bytes, _Line | None] = {}
        self._paths: dict[tuple[_Key, str, Via], _Line] = {}
        # Channel lines that are only counted, up to the next statement of another kind.
        self._counted: list[_Line] = []
        self._clock = 0

    def read(
        self, read: Callable[[int], bytes], size: int = says.CHUNK, keep: Callable[[list[bytes]], None] | None = None
    ) -> NcclLog:
        """Read a binary stream to its end in bounded memory; call ``keep`` with the lines that may be from NCCL."""
        last_words: list[bytes] = []
        for blocks in says.candidate_lines(read, last_words, size):
            for block in blocks:
                self._add(block)
            if keep:
                keep(blocks)
        for line in last_words:
            self._without_prefix(says.plain(line))
        if keep:
            keep(last_words)
        return self._finish()

    def _add(self, block: bytes) -> None:
        """Add whole lines that may contain statements, in the order of the log."""
        known = self._known
        lines = block.split(b"\n")
        # One substitution per block is faster than one per line. Most logs have a time in every line, or in none.
        keys = says.TIME.sub(b"", block).split(b"\n") if says.TIME.search(lines[0]) else lines
        for line, key in zip(lines, keys, strict=True):
            if key in known:
                found = known[key]
            else:
                self._record_counted()
                found = self._new(line)
            if found is None:
                continue
            if found.reading.kind == "channel":
                if not found.count:
                    self._counted.append(found)
                found.count += 1
            else:
                self._record_counted()
                self._said(self._process(found.key), found.tid, found.reading, line)
        self._record_counted()

    def _record_counted(self) -> None:
        for found in self._counted:
            self._process(found.key).connect(found.reading.values, found.tid, found.count)
            found.count = 0
        self._counted.clear()

    def _new(self, whole: bytes) -> _Line | None:
        """Read a line that is not remembered."""
        if b"CCL" not in whole and b"NET" not in whole and b"ocket/" not in whole:
            if start := says.ENGINE.search(whole):
                self._started[says.parse_origin(says.plain(whole[: start.start()])).pod] = self._clock
            return None
        line = says.TIME.sub(b"", whole)
        head, level, raw = line.partition(b" NCCL INFO ")
        if not level or says.LEVELS.search(head) or says.LEVELS.search(raw):
            for part in says.LINE_END.split(whole) if b"\\" in whole else [whole]:
                self._pieces(part)
            return None
        reading = NOTHING if raw.startswith(says.BORING) else says.read_statement(says.plain(raw))
        found = None
        if reading is not NOTHING:
            found = _Line(*self._writer(head), reading)
            if reading.kind == "channel":
                # The channels of one connection differ in their numbers alone. ``read_via`` returns equal paths as one.
                found = self._paths.setdefault((found.key, found.tid, reading.values), found)
        if len(line) <= LONGEST:
            if len(self._known) >= _LINES:
                self._known.clear()
                self._paths.clear()
            self._known[line] = found
        return found

    def _writer(self, head: bytes) -> tuple[_Key, str]:
        """Return the writer of a line and its thread, from all text before ``NCCL INFO``."""
        if b"NET/" in head:
            # The end of another rank's line precedes this line.
            self._without_prefix(says.plain(head))
        start = head[-LONGEST:]
        if (writer := self._writers.get(start)) is None:
            if len(self._writers) >= _WRITERS:
                self._writers.clear()
            origin = says.parse_origin(says.plain(head[-200:]))
            writer = self._writers[start] = _key(origin), origin.tid
        return writer

    def _process(self, key: _Key, anew: bool = False) -> Process:
        """Return the process of this name, which writes now; a new one if there is none, or if it starts ``anew``."""
        self._clock += 1
        process = None if anew else self._by_key.get(key)
        if process is None:
            pod, host, name = key
            process = Process(pod, host, "" if name.startswith("dev") else name, name, first=self._clock)
            self._by_key[key] = process
            self.processes.append(process)
        process.last = self._clock
        return process

    def _torn_host(self, origin: Origin) -> _Key:
        """Return the name of the known process whose host name is torn here: its start is missing, or text precedes."""
        pod, host, name = key = _key(origin)
        if not origin.pid or key in self._by_key:
            return key
        torn = (
            each
            for each in self._by_key
            if each[1] and (each[0], each[2]) == (pod, name) and (host.endswith(each[1]) or each[1].endswith(host))
        )
        return next(torn, key)

    def _pieces(self, line: bytes) -> None:
        """Record a line that may contain several statements, or part of one."""
        for origin, level, text in says.split_line(says.TIME.sub(b"", line)):
            if not level:
                self._without_prefix(text)
                continue
            # Only for lines that ran into each other: in whole lines, two hosts may use the same process number.
            process = self._process(self._torn_host(origin))
            if level == "INFO":
                self._said(process, origin.tid, says.read_statement(text), line)
            elif cause := causes.find_cause(text):
                process.hit(cause, says.quoted(line))

    def _said(self, process: Process, tid: str, reading: Reading, line: bytes) -> None:
        """Record one INFO statement of a process."""
        kind, values, once, cause = reading
        process = self._started_again(process, once, values if kind == "version" else "")
        if cause:
            process.hit(cause, says.quoted(line))
        if kind == "mtu":
            process.mtus.setdefault(values, says.quoted(line))
        elif kind == "selected":
            process.select(tid, self._without_host(values))
        elif kind == "channel":
            process.connect(values, tid)
        elif kind == "init":
            process.set_up = self._clock
            _init(process, tid, *values)
        elif kind == "nodes":
            comm = process.communicator(tid, *values[:3])
            comm.nodes, comm.local_ranks, comm.mnnvl = values[3], values[4], values[5] == 1
        elif kind == "banner":
            socket, devices = values
            listed = process.socket_devices if socket else process.ib_devices
            listed += [device for device in devices if device not in listed]
        elif kind == "connected":
            named = process.communicators.get(values) or process.current.get(tid)
            for comm in [named] if named else list(process.communicators.values())[-1:]:
                comm.connected = True
        elif kind == "collnet":
            process.collnet[values] += 1
        elif kind == "version":
            process.version = process.version or values
        # A provider of TCP stays: the worse of two counts.
        elif kind == "provider" and process.provider.partition(";")[0] not in says.TCP_PROVIDERS:
            process.provider = values

    def _without_host(self, name: str) -> str:
        """Return the network's name without the host name of the line that ran into it (``Socketspark1``)."""
        if says.KNOWN_NAME.fullmatch(name):
            return name
        hosts = {host for _pod, host, _name in self._by_key}
        return next((name[:end] for end in range(1, len(name)) if name[end:] in hosts), name)

    def _without_prefix(self, text: str) -> None:
        """Record what a line without ``NCCL INFO`` still proves: starts, versions, errors, and channel statements."""
        if found := says.VERSION.search(text) or says.NAMED_VERSION.search(text):
            self.version = self.version or found[1]
            if start := says.BARE_VERSION.search(text):
                self._started[says.parse_origin(text[: start.start()]).pod] = self._clock
        end = text[-LONGEST:]
        if "->" in end and (found := says.CHANNEL.search(end)):
            self._process(_UNSIGNED).connect(says.read_via(found[1]))
        elif self.processes and (says.TCP_FRAGMENT.search(end) or says.TORN.search(end)):
            # A torn line may only make the verdict worse, never better.
            self._process(_UNSIGNED).connect(says.read_torn(end))
        at = min((at for word in says.TROUBLE if (at := text.find(word)) >= 0), default=-1)
        if at >= 0 and (cause := causes.find_cause(text[max(0, at - LONGEST) : at + LONGEST])):
            self._process(_UNSIGNED).hit(cause, text.strip()[:400])

    def _started_again(self, process: Process, mark: str, version: str) -> Process:
        """Return the process, or a new one if it prints again the ``mark`` that each process prints once."""
        if not mark:
            return process
        process.marks[mark] += 1
        # Another version in the same process means a second copy of the library, not a restart.
        again = process.version == version
        worked = bool(process.hits) or any(comm.started for comm in process.communicators.values())
        if self.one_start or process.marks[mark] < 2 or not again or not worked:
            return process
        fresh = self._process((process.pod, process.host, process.name), anew=True)
        fresh.marks[mark] = 1
        return fresh

    def _finish(self) -> NcclLog:
        """Set earlier starts aside and fill in the values that require the whole log; return self."""
        # These only make reading quicker.
        self._known.clear()
        self._paths.clear()
        late = False
        if not self.one_start:
            self.processes, self.earlier = _set_aside(self.processes, self._started)
            late = _is_unready(self.processes)
        self.mute = late or _is_mute([*self.processes, *self.earlier], self._started)
        _infer_nodes(self.processes)
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
            log.version = log.version or each.version
            log._clock += each._clock
        return log._finish()


def _key(origin: Origin) -> _Key:
    return origin.pod, origin.host, origin.pid or f"dev{origin.device}"


def _set_aside(processes: Sequence[Process], started: Mapping[str, int]) -> tuple[list[Process], list[Process]]:
    """Return the current processes, and those that a later one replaced, with all their ranks.

    The later one has the same name, or the same GPU of the same host, and is seen to start; if the earlier one used
    TCP, by its version line or by the start of a server between them (``started``).
    """

    def begins(before: Process, process: Process) -> bool:
        tcp = not before.stays_on_node and any(map(is_tcp, before.channels | before.selections))
        between = (when for pod, when in started.items() if pod in ("", process.pod))
        anew = bool(process.marks) or any(before.last <= when < process.first for when in between)
        # It has printed its version, or has begun to set up a communicator.
        return anew if tcp else bool(process.marks) or any(c.started for c in process.communicators.values())

    last: dict[_Key, Process] = {}
    # {commId of a process that was replaced: when}
    over: dict[str, int] = {}
    replaced: set[Process] = set()
    for process in sorted(processes, key=lambda p: p.first):
        named = process.communicators.values() if process.host or process.pod else ()
        for place in {process.name} | {comm.device for comm in named} - {""}:
            before = last.get((process.pod, process.host, place))
            # Ranks of one communicator run at the same time, regardless of how their logs were concatenated. NCCL never
            # uses a commId again, so containers of one name (docker --hostname) are told apart from a restart.
            later = before is not None and before.last < process.first and not before.groups & process.groups
            if before and later and begins(before, process):
                replaced.add(before)
                over |= dict.fromkeys(before.groups, process.first)
            last[process.pod, process.host, place] = process
    kept: list[Process] = []
    earlier: list[Process] = []
    for process in processes:
        ended = min((over[group] for group in process.groups & over.keys()), default=0)
        (earlier if process in replaced or process.last < ended else kept).append(process)
    return kept, earlier


def _is_unready(processes: Sequence[Process]) -> bool:
    """Tell whether a process started after the set-up of all finished ones, and is not ready itself."""
    end = max((process.set_up or process.last for process in processes if process.has_finished), default=None)
    return any(end is not None and p.first > end and p.marks and not p.communicators for p in processes)


def _is_mute(processes: Sequence[Process], started: Mapping[str, int]) -> bool:
    """Tell whether a server or NCCL started again, and no process has set NCCL up since.

    ``started`` has the time of the last start of each pod that named no process.
    """

    def silent(pod: str, when: int) -> bool:
        own = [process for process in processes if process.pod == pod or not pod]
        # A rank that had finished and goes on, for example with another connection, did not start again.
        new = (max(p.first, p.set_up) > when or (p.last > when and not p.has_finished) for p in own)
        return any(p.has_finished or p.channels for p in own) and not any(new)

    return any(silent(pod, when) for pod, when in started.items())


def _infer_nodes(processes: Iterable[Process]) -> None:
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


def _init(
    process: Process, tid: str, identity: str, rank: int, nranks: int, device: str, shared: str, start: bool, old: str
) -> None:
    known = process.communicators.get(identity)
    # NCCL reused the address if a communicator starts there again, or is completed there a second time.
    again = known is not None and (known.started if start else known.complete)
    comm = process.communicator(tid, identity, rank, nranks, again)
    comm.started, comm.complete = comm.started or start, comm.complete or not start
    comm.device = device or comm.device
    comm.shared_id = shared or comm.shared_id
    if old in process.communicators:
        # Ranks that were shrunk away are no longer missing.
        process.communicators[old].shrunk = True
