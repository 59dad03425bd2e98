# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Constants and literal types that several parts of this collection share."""

from __future__ import annotations

from typing import Literal, get_args

RdmaMode = Literal["privileged", "ipc_lock", "restricted", "none"]
"""How a pod gets access to RDMA devices; ``none`` leaves NCCL with TCP sockets."""

Transport = Literal["roce", "socket"]
"""The transport that the ranks of a group are configured to use."""

TransportClass = Literal["rdma", "tcp", "intra", "mixed", "unknown"]
"""The transport that the ranks of a group were observed to use."""

TransportGate = Literal["enforce", "warn", "off"]
"""Whether a group gets requests only while its transport is proven; ``warn`` only reports it."""

AnswersGate = Literal["report", "enforce", "off"]
"""Whether a head that answers with noise is only reported, or gets no requests."""

Evidence = Literal["none", "failure", "banner", "selection", "channels"]
"""The kinds of evidence for a transport verdict, weakest first."""
EVIDENCE: tuple[Evidence, ...] = get_args(Evidence)

DEFAULT_MTU = 9000
"""Default MTU of the fabric in bytes; RoCE then uses an active MTU of 4096."""
ROCE_HEADER_BYTES = 96
"""Bytes of headers in a RoCE packet: GRH 40, UDP 8, BTH 12, XRC 4, atomic 28, ICRC 4 (iboe_get_mtu() in Linux
include/rdma/ib_addr.h)."""
