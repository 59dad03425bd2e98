# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read an NCCL log of any length into processes, communicators and channels. Private to the collection."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from . import causes, scan
from . import statements as says
from .bulk import ChannelBlocks
from .model import Communicator, Process
from .networks import is_tcp
from .read import NOTHING, Reading, Via, read_statement, read_via
from .scan import CHUNK, NOBODY, Origin
from .starts import find_unready, infer_nodes, set_aside


class NcclLog:
    """Collects the processes of one log: ``read()`` a stream or ``add_lines()``, then look at ``processes``.

    ``one_start`` says that all processes belong to one start of a server, so none of them replaced another one.
    """

    def __init__(self, one_start: bool = False) -> None:
        self._one_start = one_start
        self.processes: list[Process] = []
        self.earlier: list[Process] = []
        self.version = ""
        # Number of quoted log lines, and whether NCCL was restarted and has logged nothing since.
        self.quotations = 0
        self.silent_start = False
        # Whether the log has more processes than can be told apart.
        self.crowded = False
        # The name of a process that replaces the others and is not ready yet.
        self.unready = ""
        self._by_key: dict[tuple[str, str, str], Process] = {}
        self._by_pid: dict[tuple[str, str], list[Process]] = {}
        self._heads: dict[bytes, tuple[Process, Origin]] = {}
        self._channels = ChannelBlocks(self._lines, self._counted)
        self._readings: dict[bytes, Reading] = {}
        self._vias: dict[bytes, Via] = {}
        self._hosts: set[str] = set()
        self._clock = 0
        # {kind of statement: the method that records it}; arguments are process, writer and the statement's values.
        self._takers: dict[str, Callable[[Process, Origin, Any], None]] = {
            "init": self._init,
            "nodes": self._nodes,
            "channel": self._channel,
            "collnet": self._collnet,
            "selected": self._selected,
            "banner": self._banner,
            "connected": self._connected,
            "provider": self._provider,
            "version": self._versioned,
            "torn": self._torn,
        }

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
        """Add lines, or blocks of whole lines, that may contain statements, in the order of the log."""
        for block in blocks:
            self._channels.take(block)

    def _lines(self, lines: list[bytes]) -> None:
        """Record lines that are not channel lines of the usual form."""
        known, writer = self._readings.get, None
        for line in lines:
            head, level, raw = line.partition(b" NCCL INFO ")
            if not level:
                if b"CCL" in line or b"NET" in line:
                    self._pieces(line)
                    writer = None
                continue
            reading = known(raw) or self._new(head, raw)
            if reading is not NOTHING:
                if head != writer:
                    process, origin = self._of_head(head)
                    writer = head
                kind, values, once, cause = reading
                if once or cause or kind == "mtu":
                    self._said(process, origin, reading, line)
                    # The statement may have started a new record for a restarted process.
                    writer = None
                else:
                    self._takers[kind](process, origin, values)

    def _new(self, head: bytes, raw: bytes) -> Reading:
        """Read a statement whose text has not been read before."""
        if b"NCCL" in raw:
            self._pieces(head + b" NCCL INFO " + raw)
            return NOTHING
        if raw.startswith(b"Channel "):
            via = raw.rfind(b" via ") + 5
            if raw[via : via + 4] in says.FAST and (b"-> " in raw or b"u003e" in raw):
                self._counted(head, [(raw[via:], 1)])
                return NOTHING
        if len(self._readings) >= says.CACHE:
            self._readings.clear()
        reading = NOTHING if raw[:6] in says.BORING else read_statement(scan.plain(raw))
        self._readings[raw] = reading
        return reading

    def _counted(self, head: bytes, counts: Iterable[tuple[bytes, int]]) -> None:
        """Record the channel lines of one writer; ``counts`` has each text after ``via`` and how often it occurs."""
        process, origin = self._of_head(head)
        for raw, count in counts:
            via = self._vias.get(raw)
            if via is None:
                if len(self._vias) >= says.CACHE:
                    self._vias.clear()
                via = self._vias[raw] = read_via(scan.plain(raw))
            self._channel(process, origin, via, count)

    def _of_head(self, head: bytes) -> tuple[Process, Origin]:
        """Return the process that wrote a line, from all text before ``NCCL INFO``."""
        known = self._heads.get(head) or self._heads.get(head := scan.without_time(head))
        if known is None:
            origin = scan.parse_origin(scan.plain(head[-200:]))
            known = (self._process(origin), origin)
            if b"NET/" in head:
                # The end of another rank's line precedes this line.
                self._without_prefix(scan.plain(head))
            if len(self._heads) >= says.CACHE:
                self._heads.clear()
            self._heads[head] = known
        self._clock += 1
        known[0].last = self._clock
        self.silent_start = False
        return known

    def _process(self, origin: Origin) -> Process:
        key = (origin.pod, origin.host, origin.pid or f"dev{origin.device}")
        process = self._by_key.get(key)
        if process is None:
            if len(self.processes) >= says.PROCESSES and origin != NOBODY:
                self.crowded = True
                return self._process(NOBODY)
            process = Process(origin.pod, origin.host, origin.pid, first=self._clock + 1)
            self._by_key[key] = process
            self.processes.append(process)
            if origin.host and len(self._hosts) < says.CACHE:
                self._hosts.add(origin.host)
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
        for origin, level, text in scan.split_line(line):
            if not level and origin == NOBODY:
                self._without_prefix(text)
                continue
            # Only for lines that ran into each other: in whole lines, two hosts may use the same process number.
            process = self._torn_host(origin) or self._process(origin)
            if level == "INFO":
                self.silent_start = False
                self._said(process, origin, read_statement(text), line)
            elif cause := causes.find_cause(text):
                process.hit(cause, scan.quoted(line))

    def _said(self, process: Process, origin: Origin, reading: Reading, line: bytes) -> None:
        """Record one INFO statement of a process."""
        kind, values, once, cause = reading
        if once:
            process = self._restarted(process, origin, once, values if kind == "version" else "")
        if cause:
            process.hit(cause, scan.quoted(line))
        if kind == "mtu":
            process.mtus.setdefault(values, scan.quoted(line))
        elif kind:
            self._takers[kind](process, origin, values)

    def _without_prefix(self, text: str) -> None:
        """Record what a line without ``NCCL INFO`` still proves: versions, errors, and channel statements."""
        if found := says.VERSION.search(text) or says.NAMED_VERSION.search(text):
            # With NCCL_DEBUG=VERSION or WARN, NCCL prints this line at its start, alone and without a prefix.
            if text.lstrip().startswith("NCCL version"):
                self.silent_start = True
            self.version = self.version or found[1]
        end = text[-says.LONGEST :]
        if found := says.CHANNEL.search(end):
            self._channel(self._process(NOBODY), NOBODY, read_via(found[1]))
        elif (found := says.TCP_FRAGMENT.search(text)) and self.processes:
            # A torn line may only make the verdict worse, never better.
            self._process(NOBODY).add_channel(found[1], found[2], 1)
        elif self.processes and says.TORN.search(end):
            self._torn(self._process(NOBODY), NOBODY, end)
        at = min((at for word in says.TROUBLE if (at := text.find(word)) >= 0), default=-1)
        if at >= 0 and (cause := causes.find_cause(text[max(0, at - says.LONGEST) : at + says.LONGEST])):
            self._process(NOBODY).hit(cause, text.strip()[:400])

    def _restarted(self, process: Process, origin: Origin, mark: str, version: str) -> Process:
        """Set the process aside when a process of the same name starts again in the same log."""
        process.marks[mark] += 1
        # Another version in the same process means a second copy of the library, not a restart.
        again = process.version == version if mark == "NCCL version" else not process.version
        started = bool(process.hits) or any(comm.started for comm in process.communicators.values())
        if process.marks[mark] < 2 or not again or not started:
            return process
        self.processes.remove(process)
        self.earlier.append(process)
        self.crowded = self.crowded or len(self.earlier) > says.PROCESSES
        del self.earlier[: -says.PROCESSES]
        # The writer of a torn line is stored under a key that differs from the key of the torn text.
        origin = origin._replace(pod=process.pod, host=process.host)
        self._by_key.pop((process.pod, process.host, process.pid or f"dev{origin.device}"), None)
        self._heads.clear()
        fresh = self._process(origin)
        fresh.marks[mark] = 1
        return fresh

    def _channel(self, process: Process, origin: Origin, via: Via, count: int = 1) -> None:
        if via.network:
            process.add_channel(via.network, via.device, count, origin.tid, via.communicator, via.gdr)
            if len(process.channel_leads) < says.NAMES:
                process.channel_leads.add(origin.lead)
        elif via.intra:
            process.intra[says.bounded(via.intra, process.intra)] += count
        else:
            self._torn(process, origin, via.torn)

    def _collnet(self, process: Process, _origin: Origin, network: str) -> None:
        process.collnet[says.bounded(network, process.collnet)] += 1

    def _nodes(self, process: Process, origin: Origin, values: tuple[str, int, int, int, int, bool]) -> None:
        identity, rank, nranks, nodes, local_ranks, mnnvl = values
        comm = self._communicator(process, origin, identity, rank, nranks)
        comm.nodes, comm.local_ranks, comm.mnnvl = nodes, local_ranks, mnnvl

    def _init(self, process: Process, origin: Origin, values: tuple[str, int, int, str, str, bool]) -> None:
        identity, rank, nranks, device, shared, start = values
        known = process.communicators.get(identity)
        # NCCL reused the address if a communicator starts there again, or is completed there a second time.
        again = known is not None and (known.started if start else known.complete)
        comm = self._communicator(process, origin, identity, rank, nranks, fresh=again)
        process.settled = process.settled or not start
        comm.started, comm.complete = comm.started or start, comm.complete or not start
        comm.device = device or comm.device
        comm.shared_id = shared or comm.shared_id

    def _selected(self, process: Process, origin: Origin, name: str) -> None:
        name = says.bounded(self._without_host(name), process.selections)
        process.selections[name] += 1
        if len(process.pending_network) >= says.NAMES:
            process.pending_network.pop(next(iter(process.pending_network)))
        process.pending_network[origin.tid] = name

    def _connected(self, process: Process, origin: Origin, identity: str) -> None:
        named = process.communicators.get(identity) or process.current.get(origin.tid)
        for comm in [named] if named else list(process.communicators.values())[-1:]:
            comm.connected = True

    def _provider(self, process: Process, _origin: Origin, name: str) -> None:
        process.provider = name

    def _versioned(self, process: Process, _origin: Origin, version: str) -> None:
        process.version = process.version or version

    def _communicator(
        self, process: Process, origin: Origin, identity: str, rank: int, nranks: int, fresh: bool = False
    ) -> Communicator:
        comm = process.communicators.get(identity)
        if comm is None or fresh:
            comm = Communicator(identity, rank, nranks)
            self._forget(process, identity)
            process.communicators[identity] = comm
        if not process.settled and len(process.leads) < says.NAMES:
            process.leads.add(origin.lead)
        comm.rank, comm.nranks = rank, nranks
        comm.network = process.pending_network.pop(origin.tid, "") or comm.network
        process.start_communicator(origin.tid, comm)
        return comm

    def _forget(self, process: Process, identity: str) -> None:
        """Drop a communicator whose address is reused, and the oldest one when there are too many."""
        old = process.communicators.pop(identity, None)
        limit = says.COMMUNICATORS if len(self.processes) + len(self.earlier) < says.MANY else says.FEW_COMMUNICATORS
        if old is None and len(process.communicators) >= limit:
            old = process.communicators.pop(next(iter(process.communicators)))
            process.abandoned += old.started and not old.finished and old.nranks > 1
            if not old.channels and old.crosses_nodes is not False and is_tcp(old.network):
                process.dropped_tcp = old.network
        if old is not None and old.crosses_nodes and not old.mnnvl:
            process.crossed = True

    def _torn(self, process: Process, _origin: Origin, text: str) -> None:
        if found := says.TCP_FRAGMENT.search(text):
            process.add_channel(found[1], found[2], 1)
        else:
            name = text.strip().rpartition("NET/")[2][:40] if "NET/" in text else ""
            # Empty is the worst: it may hide TCP.
            process.torn[name if len(process.torn) < says.NAMES else ""] = None

    def _banner(self, process: Process, _origin: Origin, values: tuple[bool, list[str]]) -> None:
        socket, devices = values
        listed = process.socket_devices if socket else process.ib_devices
        listed += [device for device in devices if device not in listed and len(listed) < says.NAMES]

    def _without_host(self, name: str) -> str:
        """Return the network's name without the host name of the line that ran into it (``Socketspark1``)."""
        if name in says.KNOWN_NAMES or says.IBEXT.fullmatch(name):
            return name
        return next((name[:end] for end in range(1, len(name)) if name[end:] in self._hosts), name)

    def finish(self) -> NcclLog:
        """Set earlier starts aside and fill in the values that require the whole log; return self."""
        self.silent_start = self.silent_start and any(process.has_finished for process in self.processes)
        if not self._one_start:
            self.processes, self.earlier = set_aside(self.processes, self.earlier)
            self.unready = find_unready(self.processes)
        infer_nodes(self.processes)
        return self
