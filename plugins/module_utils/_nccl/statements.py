# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find and read the statements of NCCL 2.3 to 2.32, of RCCL and of plugins in a byte stream. Private to the collection.

``Process`` collects what they say. Few lines of a serving log come from NCCL, so chunks are searched as bytes and only
hits become Python objects. Each pattern comes from NVIDIA/nccl's sources or a public log;
tests/unit/fixtures/nccl/cases.txt has a line for each.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from . import causes

SOCKETS = ("Socket", "FastSocket")
"""NCCL's own TCP transport and Google's TCP plugin."""
TCP = (*SOCKETS, "GPUDirectTCPX*", "FasTrak*")
"""Patterns of the networks that are always TCP."""
RDMA = ("IB", "IBext*", "IB-*", "gIB", "SPCX*", "AINIC*", "NCCL RDMA Plugin*", "SHARP")
"""Patterns of the networks that are RDMA. Those of libfabric are missing: their provider determines the transport."""
LIBFABRIC = ("*Libfabric", "OFI")
"""Patterns of the networks of libfabric; HPE's plugin calls itself OFI."""
TCP_PROVIDERS = ("tcp", "sockets", "udp", "net")
"""Providers of libfabric that use TCP or UDP."""
# They limit the memory for a program that creates and destroys communicators, each in another thread, for days.
_THREADS, _COMMUNICATORS = 256, 128

_K = TypeVar("_K")
_V = TypeVar("_V")
# {network: {device: channels}}
Channels = dict[str, dict[str, int]]


def put(known: dict[_K, _V], key: _K, value: _V, limit: int) -> _V | None:
    """Set a value in a dictionary of limited size; return the oldest value, if it had to go."""
    full = key not in known and len(known) >= limit
    oldest = known.pop(next(iter(known))) if full else None
    known[key] = value
    return oldest


# A log of many communicators asks for the same few names very often.
@lru_cache(1024)
def matches(network: str, patterns: tuple[str, ...]) -> bool:
    """Tell whether a network's name matches one of these glob patterns."""
    return any(fnmatchcase(network, pattern) for pattern in patterns)


@lru_cache(1024)
def is_tcp(network: str) -> bool:
    """Tell whether a network is TCP by its name; NCCL_NET accepts the name in upper or lower case."""
    return matches(network, TCP) or network.lower() in {name.lower() for name in SOCKETS}


@dataclass(frozen=True, slots=True, eq=False)
class Via:
    """The path of a connection: a network with its device, a path inside the node, or an unreadable rest."""

    network: str = ""
    device: str = ""
    gdr: bool = False
    intra: str = ""
    torn: str = ""


# Compared by identity, because two ranks may have equal values.
@dataclass(slots=True, eq=False)
class Communicator:
    """One communicator as one rank reports it; 0 and empty where the log does not say."""

    identity: str
    rank: int = -1
    nranks: int = 0
    nodes: int = 0
    local_ranks: int = 0
    shared_id: str = ""
    device: str = ""
    mnnvl: bool = False
    network: str = ""
    started: bool = False
    complete: bool = False
    connected: bool = False
    # Whether its thread began another one later. It sets one up after the other, so the end of this one was torn.
    passed: bool = False
    # Whether ncclCommShrink made a smaller one from it, without the ranks that failed.
    shrunk: bool = False
    channels: Channels = field(default_factory=dict)
    gdr: int = 0

    @property
    def crosses_nodes(self) -> bool | None:
        """Tell whether this communicator spans several nodes; None if the log does not say."""
        if self.nranks == 1 or self.nodes == 1:
            return False
        return True if self.nodes > 1 else None

    @property
    def finished(self) -> bool:
        """Tell whether the communicator finished its set-up.

        Old releases print no COMPLETE, and no START either. "Connected all rings" may name no communicator, so it does
        not finish one that was begun.
        """
        return self.complete or self.passed or (self.connected and not self.started)


@dataclass(slots=True, eq=False)
class Process:
    """One start of one process that uses NCCL (``host:pid``), with all of its communicators."""

    pod: str
    host: str
    pid: str
    # Its pid, or its device where the log has no pid.
    name: str = ""
    first: int = 0
    last: int = 0
    version: str = ""
    channels: Channels = field(default_factory=dict)
    intra: Counter[str] = field(default_factory=Counter)
    collnet: Counter[str] = field(default_factory=Counter)
    selections: Counter[str] = field(default_factory=Counter)
    ib_devices: list[str] = field(default_factory=list)
    socket_devices: list[str] = field(default_factory=list)
    provider: str = ""
    gdr: int = 0
    # The names of networks that torn lines end with; empty if a line ends before the name.
    torn: dict[str, None] = field(default_factory=dict)
    communicators: dict[str, Communicator] = field(default_factory=dict)
    # {cause: the first line that shows it, and the number of such lines}
    hits: dict[str, tuple[str, int]] = field(default_factory=dict)
    marks: Counter[str] = field(default_factory=Counter)
    current: dict[str, Communicator] = field(default_factory=dict)
    pending_network: dict[str, str] = field(default_factory=dict)
    # About communicators that were dropped: whether one spanned nodes, how many never finished their set-up, and a TCP
    # network that one had selected and not used.
    crossed: bool = False
    abandoned: int = 0
    dropped_tcp: str = ""
    # When it last wrote that a communicator starts or is complete, in the log's count of lines.
    set_up: int = 0
    # {MTU in the numbering of verbs: the first line that contains it}
    mtus: dict[int, str] = field(default_factory=dict)

    def connect(self, via: Via, tid: str = "", count: int = 1) -> None:
        """Count channels for the process and for the communicator that its thread set up last."""
        if via.intra:
            self.intra[via.intra] += count
        elif not via.network:
            self.torn[via.torn] = None
        if not via.network:
            return
        comm = self.current.get(tid)
        if comm is None and len(self.communicators) == 1:
            comm = next(iter(self.communicators.values()))
        for owner in (self, comm):
            if owner is not None:
                devices = owner.channels.setdefault(via.network, {})
                devices[via.device] = devices.get(via.device, 0) + count
                owner.gdr += via.gdr * count

    def select(self, tid: str, network: str) -> None:
        """Note the network that a thread chose for the communicator that it sets up next."""
        self.selections[network] += 1
        put(self.pending_network, tid, network, _THREADS)

    def communicator(self, tid: str, identity: str, rank: int, nranks: int, again: bool = False) -> Communicator:
        """Return the communicator that a thread sets up; a new one if its address is unknown or used ``again``."""
        comm = None if again else self.communicators.get(identity)
        if comm is None:
            old = self.communicators.pop(identity, None)
            comm = Communicator(identity, rank, nranks)
            if old := put(self.communicators, identity, comm, _COMMUNICATORS) or old:
                self.abandoned += old.started and not old.finished and old.nranks > 1
                if not old.channels and old.crosses_nodes is not False and is_tcp(old.network):
                    self.dropped_tcp = old.network
                self.crossed |= bool(old.crosses_nodes and not old.mnnvl)
        comm.rank, comm.nranks = rank, nranks
        comm.network = self.pending_network.pop(tid, "") or comm.network
        before = self.current.get(tid)
        if before is not None and before is not comm and before.started:
            before.passed = True
        put(self.current, tid, comm, _THREADS)
        return comm

    def hit(self, cause: str, line: str) -> None:
        """Record a line that shows a cause."""
        first, count = self.hits.get(cause, (line, 0))
        self.hits[cause] = first, count + 1

    def uses(self) -> Iterator[tuple[str, str, int]]:
        """Yield the networks and devices of its channels, with the number of channels."""
        for network, devices in self.channels.items():
            for device, count in devices.items():
                yield network, device, count

    @property
    def groups(self) -> set[str]:
        """Return the commId values shared across ranks."""
        return {comm.shared_id for comm in self.communicators.values()} - {""}

    @property
    def speaks(self) -> bool:
        """Tell whether it logged anything about communication."""
        return bool(self.host or self.pid or self.channels) and bool(
            self.communicators or self.channels or self.selections or self.hits or self.intra
        )

    @property
    def has_finished(self) -> bool:
        """Tell whether a communicator of several ranks finished its set-up."""
        return any(comm.finished and comm.nranks > 1 for comm in self.communicators.values())

    @property
    def main(self) -> Communicator | None:
        """Return the widest communicator in use, or the first of several equal ones: usually the world."""
        return max(self.communicators.values(), key=lambda c: (not c.shrunk, c.nranks), default=None)

    @property
    def rank(self) -> int:
        """Return the rank in the widest communicator, -1 when unknown."""
        return self.main.rank if self.main else -1

    @property
    def says_nothing(self) -> bool:
        """Tell whether it set up a communicator of several nodes, and no line says by which path it reaches them."""
        path = self.channels or self.intra or self.collnet or self.torn
        # Every release with IB lists its devices too, so a list of interfaces alone is no path to other nodes.
        named = self.selections or self.ib_devices or self.provider
        return self.has_finished and self.leaves_node and not (path or named)

    @property
    def stays_on_node(self) -> bool:
        """Tell whether every communicator is known to stay inside its node."""
        known = [comm.crosses_nodes for comm in self.communicators.values()]
        return not self.crossed and bool(known) and all(crosses is False for crosses in known)

    @property
    def inside(self) -> bool:
        """Tell whether its ranks are known to reach their peers without a network; NVLink is not a network."""
        return bool(self.intra) and (
            self.stays_on_node or (any(c.mnnvl for c in self.communicators.values()) and not self.leaves_node)
        )

    @property
    def leaves_node(self) -> bool:
        """Tell whether a communicator is known to span nodes over a network."""
        return self.crossed or any(
            c.crosses_nodes and not (c.mnnvl and self.intra) for c in self.communicators.values()
        )


def merge_channels(processes: Iterable[Process]) -> Channels:
    """Add up the channels of several processes."""
    merged: Channels = {}
    uses = ((network, int(device), count) for process in processes for network, device, count in process.uses())
    for network, number, count in sorted(uses):
        devices = merged.setdefault(network, {})
        devices[str(number)] = devices.get(str(number), 0) + count
    return merged


# From 128 KiB on, glibc takes each chunk from the kernel, page by page: reading then costs twice the time. Python reads
# whole blocks of 8 KiB in one call.
CHUNK = 15 << 13
# NCCL cuts its lines at this length.
LONGEST = 1024
# A line longer than this limit is not text; it is read in pieces.
_LONGEST_LINE = 1 << 20
# What PyTorch, Gloo and a driver say when a process ends. It need not name NCCL.
LAST_WORDS = (
    "DistStoreError",
    " clients joined",
    "client socket has timed out",
    "Segfault encountered",
    "Fatal Python error: Segmentation fault",
    "ignal 11 (S",
    "Unable to find address for: ",
    "erdma",
)
# Words that may show a cause in a line without NCCL's prefix.
TROUBLE = ("NCCL error", "NCCL WARN", "NCCL.cpp:", "NET plugin", "Error: network", *LAST_WORDS)

# Each of these three begins with a letter that is rare in a serving log. bytes.find looks for it four times faster than
# re does. "NCCL INFO …", PyTorch's watchdog (ProcessGroupNCCL.cpp), and the start of vLLM:
_HIT = re.compile(
    rb"L(?:(?<=NCCL)(?: (?:INFO|WARN|ATTN|version|error)|\.cpp:)|"
    rb"(?<=vL)LM API server version|(?:(?<= V\d L)|(?<=zing an L))LM engine)"
)
# Statements whose prefix was torn off, and the start of SGLang:
_RARE = (re.compile(rb"E(?<=NE)T(?:/[A-Za-z]| plugin)"), re.compile(rb"A(?<=server_args=ServerA)rgs\("))
_ARGS = ord("A")
# The lines that SGLang (0.4 to 0.5.16) and vLLM (0.6 to 0.15) print when they start.
ENGINE = re.compile(
    rb"server_args=ServerArgs\(|FO \d\d-\d\d [\d:]+ \[?\w+\.py:\d+\] "
    rb"(?:vLLM API server version|Initializing an?(?: V\d)? LLM engine)"
)
# A burst continues while NCCL occurs within _NEAR bytes after it. It grows by _BURST bytes at first, then doubles.
_NEAR, _BURST = 256, 1024

LEVELS = re.compile(rb"NCCL (?:INFO|WARN|ATTN)")
# NCCL 2.32 introduced ATTN.
_LEVEL = re.compile(r"NCCL (INFO|WARN|ATTN)\b ?")
# It begins with fixed characters, because re finds those four times faster than a set of them. Times before 2000 stay.
TIME = re.compile(rb"20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d[0-9.,]*(?:Z|[+-]\d\d:?\d\d)?")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_ESCAPED = {"&gt;": ">", "&lt;": "<", "\\u003e": ">", "\\u003c": "<", "\\t": "\t", "\\u001b": "\x1b", "\\/": "/"}
# Between the lines of a log that stands in one string, as in JSON.
LINE_END = re.compile(rb"(?:\\+r)?(?:\\+n|\\+u000[aA])")
# host:pid:tid [cudaDev] at the end of the text before "NCCL INFO"; the host may be empty, numeric or redacted.
_ORIGIN = re.compile(r"([^\s:\"'|()\[\]{}]*):(\d+):(\d+)(?:[ \t]*\[(-?\d+)\])?")
_BARE_DEVICE = re.compile(r"\[(-?\d+)\]\s*$")
_POD = re.compile(r"\[pod/([^/\]]+)/([^\]/]+)\]|^\[?([a-z0-9.-]+ [a-z0-9.-]+)\] ")
_BEFORE = 80


class Origin(NamedTuple):
    """The writer of a statement; empty strings where the log does not say."""

    pod: str = ""
    host: str = ""
    pid: str = ""
    tid: str = ""
    device: str = ""


class Reading(NamedTuple):
    """The content of a statement: ``kind`` names the function that records ``values``; empty: no content.

    ``once`` is the start of a statement that a process prints once, at its start; ``cause`` is the cause it shows.
    """

    kind: str = ""
    values: Any = ()
    once: str = ""
    cause: str = ""


NOTHING = Reading()


def candidate_lines(read: Callable[[int], bytes], last_words: list[bytes], size: int = CHUNK) -> Iterator[list[bytes]]:
    """Yield, per chunk, the lines that may contain an NCCL statement; where hits are dense, whole blocks of lines.

    ``read(n)`` returns at most n bytes and ``b""`` at the end, as a binary file does. ``last_words`` gets the
    lines at the end of the log that may say why a process ended.
    """
    rest = last = b""
    start = end = 0
    while chunk := read(size):
        start = 0
        if rest:
            # Copy only the line that spans two chunks.
            start = chunk.find(b"\n") + 1 or len(chunk)
            rest += chunk[:start]
            if chunk[start - 1 : start] != b"\n" and len(rest) < _LONGEST_LINE:
                continue
            if lines := _blocks(rest, 0, len(rest)):
                yield lines
        end = chunk.rfind(b"\n", start) + 1 or start
        if lines := _blocks(chunk, start, end):
            yield lines
        rest, last = chunk[end:], chunk
    if rest and (lines := _blocks(rest, 0, len(rest))):
        yield lines
    ends = (last[:end] + rest).split(b"\n")
    last_words += [
        line
        for line in ends
        if any(word.encode() in line for word in LAST_WORDS) and not any(each.search(line) for each in (_HIT, *_RARE))
    ]


def _blocks(buffer: bytes, position: int, end: int) -> list[bytes]:
    """Return the lines around the hits; statements come in bursts, and each burst becomes one block."""
    blocks: list[bytes] = []
    while True:
        hit = next(_search(_HIT, buffer, position, end), None)
        start = buffer.rfind(b"\n", position, hit.start()) + 1 or position if hit else end
        for at, after in sorted(each.span() for rare in _RARE for each in _search(rare, buffer, position, start)):
            if at >= position:
                begin = buffer.rfind(b"\n", position, at) + 1 or position
                position = buffer.find(b"\n", after, start) + 1 or start
                # The rest of the line of a server's start is not needed, and it may contain a key.
                blocks.append(buffer[begin : after if buffer[at] == _ARGS else position])
        if not hit:
            return blocks
        position, size = buffer.find(b"\n", hit.end(), end) + 1 or end, _BURST
        if hit[0].startswith(b"LLM"):
            blocks.append(buffer[start : hit.end()])
            continue
        while buffer.find(b"NCCL", position, min(position + _NEAR, end)) >= 0:
            position, size = buffer.find(b"\n", min(position + size, end - 1), end) + 1 or end, size * 2
        blocks.append(buffer[start:position])


def _search(pattern: re.Pattern[bytes], buffer: bytes, position: int, end: int) -> Iterator[re.Match[bytes]]:
    at = buffer.find(pattern.pattern[:1], position, end)
    return pattern.finditer(buffer, at, end) if at >= 0 else iter(())


def parse_origin(head: str) -> Origin:
    """Return the writer of a statement, from the text before ``NCCL INFO``."""
    label = _POD.search(head) if "[" in head else None
    pod = (label[1] or label[3] or "") if label else ""
    if found := list(_ORIGIN.finditer(head[-160:])):
        return Origin(pod, *found[-1].groups(default=""))
    bare = _BARE_DEVICE.search(head)
    return Origin(pod, device=bare[1] if bare else "")


def plain(line: bytes) -> str:
    """Return a line as text without ANSI colours, line ends and the escapes of Docker's JSON files and of HTML."""
    text = line.decode("utf-8", "replace").rstrip("\r\n")
    if "\\u00" in text or "&gt;" in text or "\\/" in text:
        for escape, character in _ESCAPED.items():
            text = text.replace(escape, character)
    return _ANSI.sub("", text) if "\x1b" in text else text


def quoted(line: bytes) -> str:
    """Return a line in the form in which a cause quotes it."""
    return line.decode("utf-8", "replace").strip()[:400]


def split_line(line: bytes) -> list[tuple[Origin, str, str]]:
    """Return writer, level and text of each statement of a line; it has several if those of two ranks ran together.

    The level is INFO, WARN, ATTN or empty (no prefix: torn, stripped, or printed bare). The text of WARN and ATTN
    contains the level and what precedes it.
    """
    text = plain(line)
    levels = list(_LEVEL.finditer(text))
    if not levels:
        return [(Origin(), "", text)]
    statements = []
    for before, level, following in zip([None, *levels], levels, [*levels[1:], None], strict=False):
        begin = before.end() if before else 0
        body = text[level.end() : following.start() if following else None]
        if following and (after := parse_origin(body)).pid:
            # Without the next statement's host:pid:tid [dev]. If two processes write to the same line, no space
            # separates the host name from the word before: "Socketspark1". NcclLog separates them.
            body = body[: body.rfind(f":{after.pid}:{after.tid}")]
        if level[1] != "INFO":
            # Some causes are known by the source file, which precedes the level.
            body = text[max(begin, level.end() - _BEFORE) : level.end()] + body
        statements.append((parse_origin(text[begin : level.start()]), level[1], body[:LONGEST]))
    return statements


# "Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0/GDRDMA", "Ring 00 : 1 -> 0 [receive] via NET/IB/0"
CHANNEL = re.compile(
    r"(?<!\d)\d+(?:/\d+)? ?: ?-?\d+(?:\[[^\]]*\])? -> -?\d+(?:\[[^\]]*\])?(?: \[\w+\])? via (.*)$", re.S
)
_NET = re.compile(r"NET/([A-Za-z][^/:\n\"\\]{0,40})/(\d{1,4})")
_COLLNET = re.compile(r"via COLLNET/([A-Za-z][^/:\n\"\\]{0,40})/\d")
# After "via", or alone in a line, which is then the end of a torn one: "a NET/Socket/0", "T/Socket/0", "Socket/0"
TCP_FRAGMENT = re.compile(
    rf"(?:via NET/|^(?:(?:(?:i?a )?N)?E)?T?/?(?=\w+/\d+(?:/\w+)*\s*$))({'|'.join(SOCKETS)})/(\d{{1,4}})"
)
# Without its start, and anywhere: in the end of a torn line, or in a line that ran into another one.
_TCP_NAME = re.compile(rf"NET/({'|'.join(SOCKETS)})/(\d{{1,4}})")
TORN = re.compile(
    r"(?:via )NET/([A-Za-z]?[^/\s]*)$|via(?: N(?:E(?:T)?)?)?$|(?:\[send\]|\[receive\])(?: v(?:i)?)?$|"
    r"Channel \d[^>]*->[^v]*$"
)
_INTRA = re.compile(r"(P2P/(?:direct pointer|\w+)|SHM|direct shared memory|direct pointer)")
_SELECTED = re.compile(
    r"(?:Using (?:network|internal Network)|Assigned NET plugin) "
    r"(NCCL RDMA Plugin(?: v\d+)?|[A-Za-z][\w.+-]*(?: Libfabric)?)"
)
_BANNER = re.compile(rf"NET/(\w*IB\w*|{'|'.join(SOCKETS)}) ?: Using(.*)$")
_IB_DEVICE = re.compile(r"(?<![\w.+-])([A-Za-z][\w.+-]*+):\d+(?:/|:rail|$)")
_IF_DEVICE = re.compile(r"\[\d+\]([^\s:\[\]]+)")
# verbs numbers the MTUs: 3 is 1024 bytes, 5 is 4096.
_MTU = re.compile(r"NET/IB ?: (?>.*?\bqp\w* \d+ ).*?mtu (\d)\b")
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([\w.-]+)")
_NODES = re.compile(
    r"comm (\w+) rank (\d{1,9}) nRanks (\d{1,9}) nNodes (\d{1,9}) localRanks (\d{1,9}) localRank \d+(?: MNNVL (\d+))?"
)
# communicator, rank, ranks, CUDA device, PCI bus, identity shared by all ranks, START or COMPLETE. Only the first busId
# and commId can match, so a line with many of them costs no time. Possessive groups would do the same, but Python
# 3.11.2 (Debian 12) loses what they captured.
_INIT = re.compile(
    r"comm (\w+) rank (\d{1,9}) n[rR]anks (\d{1,9})(?: cudaDev (\d+))?(?:(?:(?! busId ).)* busId (\w+))?"
    r"(?:(?:(?! commId ).)* commId (\w+))?.*Init (START|COMPLETE)"
)
_SHRUNK = re.compile(r"ncclCommShrink comm .* parent (\w+)")
_CONNECTED = re.compile(r"Connected all (rings|trees)(?:.* comm (\w+))?")
VERSION = re.compile(r"[NR]CCL version ?:? ?v?(\d+\.\d+(?:\.\d+)?[^\s\"\\,;)]*)")
# NCCL's first line with NCCL_DEBUG=VERSION or WARN: alone, without a prefix of NCCL, after whatever a collector writes.
# PyTorch's errors end with "NCCL version 2.20.5", without the version of CUDA.
BARE_VERSION = re.compile(
    r"(?:^\s*|(?=NCCL version \d+(?:\.\d+)+\+(?:cuda|hip)[\d.]+(?:\\[nr]|[\"'},\s])*(?:$|\")))NCCL version"
)
NAMED_VERSION = re.compile(r"nccl==(?<!\wnccl==)(\d+\.\d+\.\d+)")
# A process prints each of these once. A second one means that a process of the same name has started again.
_ONCE = ("NCCL version", "cudaDriverVersion")
KNOWN_NAME = re.compile(rf"{'|'.join(SOCKETS)}|IB(?:ext(?:_v\d+)?|-CAST)?|gIB|(?:AWS )?Libfabric|UCX|SPCX")
# The start of frequent statements that say nothing about the transport, so they are skipped.
BORING = (
    *(b"Bootstrap t", b"CC Off", b"Check ", b"Could ", b"Init t", b"New pr", b"P2P Ch", b"[Proxy", b"thread"),
    b"Trees ",
)


def read_torn(text: str) -> Via:
    """Read the start of a channel line whose end is missing, or its end."""
    if found := TCP_FRAGMENT.search(text):
        return Via(found[1], found[2])
    # An empty name is the worst: it may be TCP.
    return Via(torn=text.strip().rpartition("NET/")[2][:40] if "NET/" in text else "")


@lru_cache(1024)
def read_via(text: str) -> Via:
    """Read the text after ``via``. If two lines ran into each other, the worse of them counts."""
    if " via " in text and TORN.search(text):
        return read_torn(text[text.rindex("via ") :])
    if found := _TCP_NAME.search(text) or _NET.match(text):
        return Via(found[1], found[2], "/GDRDMA" in text)
    if found := _INTRA.match(text):
        return Via(intra=found[1])
    return read_torn(f"via {text}")


def read_statement(text: str) -> Reading:
    """Read the text after ``NCCL INFO``."""
    text = text[:LONGEST]
    once = next(filter(text.startswith, _ONCE), "")
    for hint, pattern, kind, values in _FORMS:
        if hint in text and (found := pattern.search(text)):
            # The devices may be soft-RoCE, which is only remarked.
            return Reading(kind, values(found), once, causes.find_cause(text) if kind == "banner" else "")
    # A complete channel line has matched above.
    channel = text.startswith("Channel ") and "->" in text
    if channel or (("->" in text or "via" in text) and (TORN.search(text) or TCP_FRAGMENT.search(text))):
        return Reading("channel", read_torn(text))
    mtu = _MTU.search(text) if " mtu " in text else None
    reading = Reading("mtu" if mtu else "", int(mtu[1]) if mtu else (), once, causes.find_cause(text))
    return NOTHING if reading == NOTHING else reading


def _init(found: re.Match[str]) -> tuple[str, int, int, str, str, bool, str]:
    identity, rank, nranks, device, bus, shared, what = found.groups(default="")
    shrunk = _SHRUNK.search(found.string) if "Shrink" in found.string else None
    gpu = f"{device}/{bus}" if bus else ""
    return identity, int(rank), int(nranks), gpu, shared, what == "START", shrunk[1] if shrunk else ""


def _banner(found: re.Match[str]) -> tuple[bool, list[str]]:
    listed = found[2].partition("; OOB")[0]
    socket = found[1] in SOCKETS
    return socket, (_IF_DEVICE if socket else _IB_DEVICE).findall(listed)


# The first item is a substring of every match. It is searched for first, which is ten times cheaper.
_FORMS: tuple[tuple[str, re.Pattern[str], str, Callable[[re.Match[str]], Any]], ...] = (
    # "comm 0x1 rank 0 nranks 2 … Init START" and "… Init COMPLETE"
    ("Init ", _INIT, "init", _init),
    # "comm 0x1 rank 0 nRanks 2 nNodes 2 …"
    (" nNodes ", _NODES, "nodes", lambda found: (found[1], *map(int, found.groups(default="0")[1:]))),
    # "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0": the path of a connection
    (" via ", CHANNEL, "channel", lambda found: read_via(found[1])),
    # "CollNet 00/0 : 0 [send] via COLLNET/SHARP/0": a reduction inside the network
    ("COLLNET/", _COLLNET, "collnet", itemgetter(1)),
    ("Using ", _SELECTED, "selected", itemgetter(1)),
    ("Assigned ", _SELECTED, "selected", itemgetter(1)),
    # "NET/IB : Using [0]rocep1s0f0:1/RoCE …": devices
    (" Using", _BANNER, "banner", _banner),
    # "Connected all rings": a communicator works
    ("Connected all", _CONNECTED, "connected", lambda found: found[2] or ""),
    # "NET/OFI Selected provider is efa"
    ("rovider is ", _PROVIDER, "provider", itemgetter(1)),
    (" version", VERSION, "version", itemgetter(1)),
)
