# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read one NCCL statement. Private to the collection.

The meaning of a statement does not depend on its writer, so the log parses each distinct text once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from . import causes
from . import statements as says
from .model import Reading, Via
from .networks import SOCKETS

NOTHING = Reading()


# A channel line of the usual form up to "via". No part may contain a line end: otherwise the statement "Channel 00/02 :
# 0 1" and a prompt that says "] -> b] via NET/IB/0" would make one channel.
_USUAL = re.compile(rb"Channel [ -Z]*+\[[^\]\n]*+\] -> [ -Z]*+\[[^\]\n]*+\] (?:\[\w++\] )?+via ")


def find_path(raw: bytes) -> bytes:
    """Return the text after ``via`` in a channel line that needs no closer look, or nothing."""
    if not raw.startswith(b"Channel "):
        return b""
    if found := _USUAL.match(raw):
        return raw[found.end() :]
    end = raw[raw.rfind(b" via ") + 5 :]
    usual = end[:4] in (b"NET/", b"P2P/") and (b"-> " in raw or b"u003e" in raw)
    return end if usual else b""


def read_via(text: str) -> Via:
    """Read the text after ``via``. If two lines ran into each other, the worse of them counts."""
    if " via " in text and says.TORN.search(text):
        return Via(torn=text[text.rindex("via ") :])
    if found := says.TCP_NAME.search(text) or says.NET.match(text):
        rccl = says.RCCL_COMM.search(text) if " comm " in text else None
        return Via(found[1], found[2], "/GDRDMA" in text, rccl[1] if rccl else "")
    if found := says.INTRA.match(text):
        return Via(intra=found[1])
    return Via(torn=f"via {text}")


def read_statement(text: str) -> Reading:
    """Read the text after ``NCCL INFO``."""
    text = text[: says.LONGEST]
    once = next(filter(text.startswith, says.ONCE), "")
    for hint, pattern, kind, values in _FORMS:
        if hint in text and (found := pattern.search(text)):
            # The devices may be soft-RoCE, which is only remarked.
            return Reading(kind, values(found), once, (causes.find_cause(text) or "") if kind == "banner" else "")
    # A complete channel line has matched above.
    if text.startswith("Channel ") and "->" in text:
        return Reading("torn", text)
    if ("->" in text or "via" in text) and (says.TORN.search(text) or says.TCP_FRAGMENT.search(text)):
        return Reading("torn", text)
    mtu = says.MTU.search(text) if " mtu " in text else None
    reading = Reading("mtu", int(mtu[1]), once) if mtu else Reading(once=once)
    cause = causes.find_cause(text)
    return reading._replace(cause=cause) if cause else NOTHING if reading == NOTHING else reading


def _init(found: re.Match[str]) -> tuple[str, int, int, str, str, bool, str]:
    identity, rank, nranks, device, bus, shared, what = found.groups(default="")
    shrunk = says.SHRUNK.search(found.string) if "Shrink" in found.string else None
    gpu = f"{device}/{bus}" if bus else ""
    return identity, int(rank), int(nranks), gpu, shared, what == "START", shrunk[1] if shrunk else ""


def _nodes(found: re.Match[str]) -> tuple[str, int, int, int, int, bool]:
    identity, rank, nranks, nodes, local, mnnvl = found.groups()
    return identity, int(rank), int(nranks), int(nodes), int(local), mnnvl == "1"


def _banner(found: re.Match[str]) -> tuple[bool, list[str]]:
    listed = found[2].partition("; OOB")[0]
    socket = found[1] in SOCKETS
    return socket, (says.IF_DEVICE if socket else says.IB_DEVICE).findall(listed)


def _first(found: re.Match[str]) -> str:
    return str(found[1])


def _named(found: re.Match[str]) -> str:
    return str(found[2] or "")


# The first item is a substring of every match. It is searched for first, which is ten times cheaper.
_FORMS: tuple[tuple[str, re.Pattern[str], str, Callable[[re.Match[str]], Any]], ...] = (
    ("Init ", says.INIT, "init", _init),
    (" nNodes ", says.NODES, "nodes", _nodes),
    (" via ", says.CHANNEL, "channel", lambda found: read_via(found[1])),
    ("COLLNET/", says.COLLNET, "collnet", _first),
    ("Using ", says.SELECTED, "selected", _first),
    ("Assigned ", says.SELECTED, "selected", _first),
    (" Using", says.BANNER, "banner", _banner),
    ("Connected all", says.CONNECTED, "connected", _named),
    ("rovider is ", says.PROVIDER, "provider", _first),
    (" version", says.VERSION, "version", _first),
)
