# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Patterns of NCCL's statements, 2.3 to 2.32, of RCCL and of plugins. Private to the collection.

Each comes from NVIDIA/nccl's sources or a public log; tests/unit/fixtures/nccl/cases.txt has a line for each pattern.
"""

from __future__ import annotations

import re
from collections.abc import Collection

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
RCCL_COMM = re.compile(r" comm (0x\w+) nRanks (\d+)")
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
# Words that may show a cause in a line without NCCL's prefix.
TROUBLE = ("NCCL error", "NCCL WARN", "NCCL.cpp:", "NET plugin", "Error: network")
CACHE = 4096
# Different lines that are remembered; a job of 256 ranks has about 13,000.
LINES = 1 << 14
NEIGHBOURS = 16
# Limits the memory for a program that creates and destroys communicators for days.
COMMUNICATORS = 256
# Limits for logs that no NCCL wrote: processes of one log and earlier starts in it, communicators of each if there are
# more than _MANY, and different names of one kind.
PROCESSES, EARLIER = 4096, 1024
MANY, FEW_COMMUNICATORS = 256, 16
NAMES = 256
OTHER = "other"
# NCCL cuts its lines at this length.
LONGEST = 1024


def bounded(name: str, known: Collection[str]) -> str:
    """Return a name, or OTHER if too many different ones are known."""
    return name if name in known or len(known) < NAMES else OTHER
