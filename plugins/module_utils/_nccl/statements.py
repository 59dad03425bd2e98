# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read one statement of NCCL 2.3 to 2.32, of RCCL or of a plugin. Private to the collection.

Each pattern comes from NVIDIA/nccl's sources or a public log; tests/unit/fixtures/nccl/cases.txt has a line for each.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from . import causes
from .model import Reading, Via
from .networks import SOCKETS

# "Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0/GDRDMA", "Ring 00 : 1 -> 0 [receive] via NET/IB/0"
CHANNEL = re.compile(
    r"(?<!\d)\d+(?:/\d+)? ?: ?-?\d+(?:\[[^\]]*\])? -> -?\d+(?:\[[^\]]*\])?(?: \[\w+\])? via (.*)$", re.S
)
NET = re.compile(r"NET/([A-Za-z][^/:\n\"\\]{0,40})/(\d{1,4})")
COLLNET = re.compile(r"via COLLNET/([A-Za-z][^/:\n\"\\]{0,40})/\d")
# After "via", or alone in a line, which is then the end of a torn one: "a NET/Socket/0", "T/Socket/0", "Socket/0"
TCP_FRAGMENT = re.compile(
    rf"(?:via NET/|^(?:(?:(?:i?a )?N)?E)?T?/?(?=\w+/\d+(?:/\w+)*\s*$))({'|'.join(SOCKETS)})/(\d{{1,4}})"
)
# Without its start, and anywhere: in the end of a torn line, or in a line that ran into another one.
TCP_NAME = re.compile(rf"NET/({'|'.join(SOCKETS)})/(\d{{1,4}})")
TORN = re.compile(
    r"(?:via )NET/([A-Za-z]?[^/\s]*)$|via(?: N(?:E(?:T)?)?)?$|(?:\[send\]|\[receive\])(?: v(?:i)?)?$|"
    r"Channel \d[^>]*->[^v]*$"
)
INTRA = re.compile(r"(P2P/(?:direct pointer|\w+)|SHM|direct shared memory|direct pointer)")
SELECTED = re.compile(
    r"(?:Using (?:network|internal Network)|Assigned NET plugin) "
    r"(NCCL RDMA Plugin(?: v\d+)?|[A-Za-z][\w.+-]*(?: Libfabric)?)"
)
BANNER = re.compile(rf"NET/(\w*IB\w*|{'|'.join(SOCKETS)}) ?: Using(.*)$")
IB_DEVICE = re.compile(r"(?<![\w.+-])([A-Za-z][\w.+-]*+):\d+(?:/|:rail|$)")
IF_DEVICE = re.compile(r"\[\d+\]([^\s:\[\]]+)")
# verbs numbers the MTUs: 3 is 1024 bytes, 5 is 4096.
MTU = re.compile(r"NET/IB ?: (?>.*?\bqp\w* \d+ ).*?mtu (\d)\b")
PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([\w.-]+)")
NODES = re.compile(
    r"comm (\w+) rank (\d{1,9}) nRanks (\d{1,9}) nNodes (\d{1,9}) localRanks (\d{1,9}) localRank \d+(?: MNNVL (\d+))?"
)
# communicator, rank, ranks, CUDA device, PCI bus, identity shared by all ranks, START or COMPLETE. Only the first busId
# and commId can match, so a line with many of them costs no time. Possessive groups would do the same, but Python
# 3.11.2 (Debian 12) loses what they captured.
INIT = re.compile(
    r"comm (\w+) rank (\d{1,9}) n[rR]anks (\d{1,9})(?: cudaDev (\d+))?(?:(?:(?! busId ).)* busId (\w+))?"
    r"(?:(?:(?! commId ).)* commId (\w+))?.*Init (START|COMPLETE)"
)
SHRUNK = re.compile(r"ncclCommShrink comm .* parent (\w+)")
CONNECTED = re.compile(r"Connected all (rings|trees)(?:.* comm (\w+))?")
VERSION = re.compile(r"[NR]CCL version ?:? ?v?(\d+\.\d+(?:\.\d+)?[^\s\"\\,;)]*)")
# NCCL's first line with NCCL_DEBUG=VERSION or WARN: alone, without a prefix of NCCL, after whatever a collector writes.
# PyTorch's errors end with "NCCL version 2.20.5", without the version of CUDA.
BARE_VERSION = re.compile(
    r"(?:^\s*|(?=NCCL version \d+(?:\.\d+)+\+(?:cuda|hip)[\d.]+(?:\\[nr]|[\"'},\s])*(?:$|\")))NCCL version"
)
NAMED_VERSION = re.compile(r"nccl==(?<!\wnccl==)(\d+\.\d+\.\d+)")
# A process prints each of these once. A second one means that a process of the same name has started again.
ONCE = ("NCCL version", "cudaDriverVersion")
KNOWN_NAMES = frozenset({*SOCKETS, "IB", "gIB", "AWS Libfabric", "Libfabric", "UCX", "SPCX", "IB-CAST"})
IBEXT = re.compile(r"IBext(?:_v\d+)?")
# The start of frequent statements that say nothing about the transport, so they are skipped.
BORING = (
    b"Bootstrap t",
    b"CC Off",
    b"Check ",
    b"Could ",
    b"Init t",
    b"New pr",
    b"P2P Ch",
    b"[Proxy",
    b"thread",
    b"Trees ",
)
# What PyTorch, Gloo and a driver say when a process ends. It need not name NCCL.
LAST_WORDS = (
    "DistStoreError",
    " clients joined",
    "Segfault encountered",
    "Fatal Python error: Segmentation fault",
    "Unable to find address for: ",
    "erdma",
)
# Words that may show a cause in a line without NCCL's prefix.
TROUBLE = ("NCCL error", "NCCL WARN", "NCCL.cpp:", "NET plugin", "Error: network", *LAST_WORDS)
# NCCL cuts its lines at this length.
LONGEST = 1024
NOTHING = Reading()


@lru_cache(1024)
def read_via(text: str) -> Via:
    """Read the text after ``via``. If two lines ran into each other, the worse of them counts."""
    if " via " in text and TORN.search(text):
        return Via(torn=text[text.rindex("via ") :])
    if found := TCP_NAME.search(text) or NET.match(text):
        return Via(found[1], found[2], "/GDRDMA" in text)
    if found := INTRA.match(text):
        return Via(intra=found[1])
    return Via(torn=f"via {text}")


def read_statement(text: str) -> Reading:
    """Read the text after ``NCCL INFO``."""
    text = text[:LONGEST]
    once = next(filter(text.startswith, ONCE), "")
    for hint, pattern, kind, values in _FORMS:
        if hint in text and (found := pattern.search(text)):
            # The devices may be soft-RoCE, which is only remarked.
            return Reading(kind, values(found), once, (causes.find_cause(text) or "") if kind == "banner" else "")
    # A complete channel line has matched above.
    if text.startswith("Channel ") and "->" in text:
        return Reading("torn", text)
    if ("->" in text or "via" in text) and (TORN.search(text) or TCP_FRAGMENT.search(text)):
        return Reading("torn", text)
    mtu = MTU.search(text) if " mtu " in text else None
    reading = Reading("mtu", int(mtu[1]), once) if mtu else Reading(once=once)
    cause = causes.find_cause(text)
    return reading._replace(cause=cause) if cause else NOTHING if reading == NOTHING else reading


def _init(found: re.Match[str]) -> tuple[str, int, int, str, str, bool, str]:
    identity, rank, nranks, device, bus, shared, what = found.groups(default="")
    shrunk = SHRUNK.search(found.string) if "Shrink" in found.string else None
    gpu = f"{device}/{bus}" if bus else ""
    return identity, int(rank), int(nranks), gpu, shared, what == "START", shrunk[1] if shrunk else ""


def _nodes(found: re.Match[str]) -> tuple[str, int, int, int, int, bool]:
    identity, rank, nranks, nodes, local, mnnvl = found.groups()
    return identity, int(rank), int(nranks), int(nodes), int(local), mnnvl == "1"


def _banner(found: re.Match[str]) -> tuple[bool, list[str]]:
    listed = found[2].partition("; OOB")[0]
    socket = found[1] in SOCKETS
    return socket, (IF_DEVICE if socket else IB_DEVICE).findall(listed)


def _first(found: re.Match[str]) -> str:
    return str(found[1])


def _named(found: re.Match[str]) -> str:
    return str(found[2] or "")


# The first item is a substring of every match. It is searched for first, which is ten times cheaper.
_FORMS: tuple[tuple[str, re.Pattern[str], str, Callable[[re.Match[str]], Any]], ...] = (
    ("Init ", INIT, "init", _init),
    (" nNodes ", NODES, "nodes", _nodes),
    (" via ", CHANNEL, "channel", lambda found: read_via(found[1])),
    ("COLLNET/", COLLNET, "collnet", _first),
    ("Using ", SELECTED, "selected", _first),
    ("Assigned ", SELECTED, "selected", _first),
    (" Using", BANNER, "banner", _banner),
    ("Connected all", CONNECTED, "connected", _named),
    ("rovider is ", PROVIDER, "provider", _first),
    (" version", VERSION, "version", _first),
)
