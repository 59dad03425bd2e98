# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read an NCCL log of any length into its processes, communicators and channels. Private to the collection."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from . import _nccl_causes as causes
from . import _nccl_statements as says
from ._nccl_model import Communicator, Process
from ._nccl_scan import CHUNK, NOBODY, Origin, Statement, candidate_lines, parse_origin, plain, split_line


class NcclLog:
    """Collects the processes of one log: ``read()`` a stream or ``add_lines()``, then look at ``processes``."""

    def __init__(self) -> None:
        self.processes: list[Process] = []
        self.earlier: list[Process] = []
        self.version = ""
        self._by_key: dict[tuple[str, str, str], Process] = {}
        self._heads: dict[bytes, tuple[Process, Origin]] = {}
        self._fast: dict[tuple[bytes, bytes], int] = {}
        self._texts: dict[bytes, str] = {}
        self._hosts: set[str] = set()
        self._clock = 0

    def read(
        self, read: Callable[[int], bytes], size: int = CHUNK, keep: Callable[[list[bytes]], None] | None = None
    ) -> NcclLog:
        """Read a binary stream to its end in bounded memory; ``keep`` is shown the lines that may be NCCL's."""
        for lines in candidate_lines(read, size):
            self.add_lines(lines)
            if keep:
                keep(lines)
        return self.finish()

    def add_lines(self, lines: list[bytes]) -> None:
        """Add lines, or blocks of lines, that may hold statements, in the order of the log."""
        for line in lines:
            if len(line) > says.BLOCK:
                self._block(line)
            else:
                self._line(line, 1)
        self._flush()

    def _block(self, block: bytes) -> None:
        """Add many lines at once: channel lines that differ only in their ranks become one, up to the next set-up."""
        # Channels belong to the communicator that was begun last, so nothing is counted across the begin of one.
        for part in block.replace(b"Init START", b"Init START\0").split(b"\0"):
            for line, count in Counter(says.SAME.sub(b" NCCL INFO Channel -> via ", part).split(b"\n")).items():
                if b"NCCL" in line or b"NET" in line:
                    self._line(line, count)

    def _line(self, line: bytes, count: int) -> None:
        level = line.find(b" NCCL INFO ")
        if level < 0 or line.find(b"NCCL", level + 11) >= 0:
            for statement in split_line(line):
                self._statement(statement, line)
            return
        if line.startswith(b"Channel ", level + 11):
            via = line.rfind(b" via ") + 5
            if line[via : via + 4] in says.FAST and (line.find(b"-> ", level) > 0 or line.find(b"u003e", level) > 0):
                key = (line[:level], line[via:])
                self._fast[key] = self._fast.get(key, 0) + count
                return
        elif line[level + 11 : level + 17] in says.BORING:
            return
        process, origin = self._of_head(line[:level])
        self._said(process, origin, plain(line[level + 11 :]), line)

    def _flush(self) -> None:
        """Count the channel lines that were set aside since the last statement of another kind."""
        if not self._fast:
            return
        pending, self._fast = self._fast, {}
        if len(self._texts) >= says.CACHE:
            self._texts.clear()
        for (head, via), count in pending.items():
            process, origin = self._of_head(head)
            text = self._texts.get(via)
            if text is None:
                text = self._texts[via] = plain(via)
            self._via(process, origin.tid, text, count)

    def _of_head(self, head: bytes) -> tuple[Process, Origin]:
        """Return the process that wrote a line, from everything before ``NCCL INFO``."""
        known = self._heads.get(head)
        if known is None:
            origin = parse_origin(plain(head[-200:]))
            known = (self._process(origin), origin)
            if len(self._heads) >= says.CACHE:
                self._heads.clear()
            self._heads[head] = known
        self._clock += 1
        known[0].last = self._clock
        return known

    def _process(self, origin: Origin) -> Process:
        key = (origin.pod, origin.host, origin.pid or f"dev{origin.device}")
        process = self._by_key.get(key)
        if process is None:
            self._flush()
            process = Process(origin.pod, origin.host, origin.pid, first=self._clock + 1)
            self._by_key[key] = process
            self.processes.append(process)
            if origin.host:
                self._hosts.add(origin.host)
        self._clock += 1
        process.last = self._clock
        return process

    def _statement(self, statement: Statement, line: bytes) -> None:
        origin, level, text = statement
        if not level and origin == NOBODY:
            self._without_prefix(text)
            return
        process = self._process(origin)
        if level == "INFO":
            self._said(process, origin, text, line)
        elif cause := causes.find(full := line.decode("utf-8", "replace").strip()):
            process.hit(cause, full[:400])

    def _said(self, process: Process, origin: Origin, text: str, line: bytes) -> None:
        """Take in one INFO statement of a process."""
        process = self._restarted(process, origin, text)
        if not self._info(process, origin.tid, text) and (cause := causes.find(text)):
            process.hit(cause, line.decode("utf-8", "replace").strip()[:400])

    def _without_prefix(self, text: str) -> None:
        """Take what a line without ``NCCL INFO`` still proves: versions, errors, and channel statements."""
        if found := says.VERSION.search(text) or says.NAMED_VERSION.search(text):
            self.version = self.version or found[1]
        if found := says.CHANNEL.search(text):
            self._via(self._process(NOBODY), "", found[1], 1)
        elif (found := says.TCP_FRAGMENT.search(text)) and self.processes:
            # A torn line may take a pass away but never give one.
            self._process(NOBODY).add_channel(found[1], found[2], 1)
        elif self.processes and says.TORN.search(text):
            self._torn(self._process(NOBODY), text)
        looks_bad = "NCCL error" in text or "NCCL WARN" in text or "NET plugin" in text or "Error: network" in text
        if looks_bad and (cause := causes.find(text)):
            self._process(NOBODY).hit(cause, text.strip()[:400])

    def _restarted(self, process: Process, origin: Origin, text: str) -> Process:
        """Set a process aside when the same name starts again in the same log."""
        if not text.startswith(says.ONCE):
            return process
        mark = text.split(maxsplit=1)[0]
        process.marks[mark] += 1
        # Another version in the same process is a second copy of the library, not another start.
        again = process.version in text if mark == "NCCL" else not process.version
        started = any(comm.started for comm in process.communicators.values())
        if process.marks[mark] < 2 or not again or not started:
            return process
        self._flush()
        self.processes.remove(process)
        self.earlier.append(process)
        del self._by_key[(origin.pod, origin.host, origin.pid or f"dev{origin.device}")]
        self._heads.clear()
        fresh = self._process(origin)
        fresh.marks[mark] = 1
        return fresh

    def _info(self, process: Process, tid: str, text: str) -> bool:
        """Let the reader of a statement take it in, and tell whether there was one."""
        for hint, pattern, reader in _READERS:
            if hint in text and (found := pattern.search(text)):
                reader(self, process, tid, found)
                return True
        if ("->" in text or "via" in text) and (says.TORN.search(text) or says.TCP_FRAGMENT.search(text)):
            self._torn(process, text)
            return True
        return False

    def _channel(self, process: Process, tid: str, found: re.Match[str]) -> None:
        self._via(process, tid, found[1], 1)

    def _collnet(self, process: Process, _tid: str, found: re.Match[str]) -> None:
        process.collnet[found[1]] += 1

    def _nodes(self, process: Process, tid: str, found: re.Match[str]) -> None:
        comm = self._communicator(process, tid, found[1], int(found[2]), int(found[3]))
        comm.nodes, comm.local_ranks, comm.mnnvl = int(found[4]), int(found[5]), found[6] == "1"

    def _init(self, process: Process, tid: str, found: re.Match[str]) -> None:
        start = found[5] == "START"
        comm = self._communicator(process, tid, found[1], int(found[2]), int(found[3]), fresh=start)
        comm.started, comm.complete = comm.started or start, comm.complete or not start
        if bus := says.BUS.search(found[4]):
            comm.device = f"{bus[1]}/{bus[2]}"
        if shared := says.COMM_ID.search(found[4]):
            comm.shared_id = shared[1]

    def _selected(self, process: Process, tid: str, found: re.Match[str]) -> None:
        name = self._unglued(found[1])
        process.selections[name] += 1
        process.pending_network[tid] = name

    def _connected(self, process: Process, tid: str, found: re.Match[str]) -> None:
        named = process.communicators.get(found[2] or "") or process.current.get(tid)
        for comm in [named] if named else list(process.communicators.values())[-1:]:
            comm.connected = True

    def _provider(self, process: Process, _tid: str, found: re.Match[str]) -> None:
        process.provider = found[1]

    def _versioned(self, process: Process, _tid: str, found: re.Match[str]) -> None:
        process.version = process.version or found[1]

    def _communicator(
        self, process: Process, tid: str, identity: str, rank: int, nranks: int, fresh: bool = False
    ) -> Communicator:
        self._flush()
        comm = process.communicators.get(identity)
        if comm is None or (fresh and comm.started and comm.finished):
            comm = Communicator(identity, rank, nranks)
            self._forget(process, identity)
            process.communicators[identity] = comm
        comm.rank, comm.nranks = rank, nranks
        comm.network = comm.network or process.pending_network.pop(tid, "")
        process.current[tid] = comm
        return comm

    def _forget(self, process: Process, identity: str) -> None:
        """Let go of a communicator whose address is used again, and of the oldest finished one of very many."""
        old = process.communicators.pop(identity, None)
        if old is None and len(process.communicators) >= says.COMMUNICATORS:
            first = next((name for name, comm in process.communicators.items() if comm.finished), None)
            old = process.communicators.pop(first) if first else None
        if old is not None and old.crosses_nodes and not old.mnnvl:
            process.crossed = True

    def _via(self, process: Process, tid: str, via: str, count: int) -> None:
        if found := says.NET.match(via):
            device, name = found[2], found[1]
            rccl = says.RCCL_COMM.search(via) if " comm " in via else None
            process.add_channel(name, device, count, tid, rccl[1] if rccl else "")
            if "/GDRDMA" in via:
                process.gdr += count
        elif found := says.INTRA.match(via):
            process.intra[found[1].strip()] += count
        else:
            self._torn(process, f"via {via}")

    def _torn(self, process: Process, text: str) -> None:
        if found := says.TCP_FRAGMENT.search(text):
            process.add_channel(found[1], found[2], 1)
        elif len(process.torn) < 8:
            process.torn.append(text.strip()[:200])

    def _banner(self, process: Process, _tid: str, found: re.Match[str]) -> None:
        listed = found[2].partition("; OOB")[0]
        if found[1] == "Socket":
            process.socket_devices += [d for d in says.IF_DEVICE.findall(listed) if d not in process.socket_devices]
        else:
            process.ib_devices += [d for d in says.IB_DEVICE.findall(listed) if d not in process.ib_devices]

    def _unglued(self, name: str) -> str:
        """Return the network's name without the host of the line that ran into it (``Socketspark1``)."""
        if name in says.KNOWN_NAMES or says.IBEXT.fullmatch(name):
            return name
        for host in self._hosts:
            if host and name.endswith(host) and len(name) > len(host):
                return name[: -len(host)]
        return name

    def finish(self) -> NcclLog:
        """Set aside the starts that a later process of the same rank on the same GPU replaced; return self."""
        last: dict[tuple[str, str, int, int, str], Process] = {}
        for process in sorted(self.processes, key=lambda p: p.first):
            comm = process.main
            if comm is None or not comm.device or not (process.host or process.pod):
                continue
            key = (process.pod, process.host, comm.rank, comm.nranks, comm.device)
            if (before := last.get(key)) and before.last < process.first:
                self.processes.remove(before)
                self.earlier.append(before)
            last[key] = process
        return self


# A substring that every match contains, looked for first because it is ten times cheaper.
_READERS: tuple[tuple[str, re.Pattern[str], Callable[[NcclLog, Process, str, re.Match[str]], None]], ...] = (
    ("Init ", says.INIT, NcclLog._init),
    (" nNodes ", says.NODES, NcclLog._nodes),
    (" via ", says.CHANNEL, NcclLog._channel),
    ("COLLNET/", says.COLLNET, NcclLog._collnet),
    ("Using ", says.SELECTED, NcclLog._selected),
    ("Assigned ", says.SELECTED, NcclLog._selected),
    (" Using", says.BANNER, NcclLog._banner),
    ("Connected all", says.CONNECTED, NcclLog._connected),
    ("rovider is ", says.PROVIDER, NcclLog._provider),
    (" version", says.VERSION, NcclLog._versioned),
)
