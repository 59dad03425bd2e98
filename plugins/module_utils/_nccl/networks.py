# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Classify NCCL's networks as RDMA or TCP by their names. Private to the collection."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import lru_cache

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


# A log of many communicators asks for the same few names very often.
@lru_cache(1024)
def matches(network: str, patterns: tuple[str, ...]) -> bool:
    """Tell whether a network's name matches one of these glob patterns."""
    return any(fnmatchcase(network, pattern) for pattern in patterns)


@lru_cache(1024)
def is_tcp(network: str) -> bool:
    """Tell whether a network is TCP by its name; NCCL_NET accepts the name in upper or lower case."""
    return matches(network, TCP) or network.lower() in {name.lower() for name in SOCKETS}
