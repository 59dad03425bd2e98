# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Result types of the modules fabric_ping and fabric_bandwidth, and of their verdicts. Private to the collection."""

from __future__ import annotations

from typing import Literal, TypedDict

Layer = Literal["", "sriov", "link", "address", "mtu", "ethernet", "ip"]
"""The lowest broken layer; empty if the peer answered a full-size packet."""

PF_INDEX = -1
"""The VF index of a result about PFs."""

Side = Literal["server", "client"]
"""The side of a host in a bandwidth measurement."""


class PingResult(TypedDict):
    """What a verdict reads of one direction between two hosts on one VF index of one rail."""

    host: str
    peer: str
    rail: str
    vf_index: int
    ok: bool
    layer: Layer
    reason: str


class BandwidthResult(TypedDict):
    """The Gb/s of the rails between a client and a server (``pair``); None if a rail moved nothing."""

    pair: list[str]
    measured: dict[str, float | None]
    ok: bool
    msg: str


class Meeting(TypedDict):
    """The part of one host in one round of bandwidth measurements."""

    partner: str
    side: Side


class Verdict(TypedDict):
    """The verdict on all pairs of hosts; ``table`` is a matrix in lines of text."""

    ok: bool
    table: list[str]
    msg: str
