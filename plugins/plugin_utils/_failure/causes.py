# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reduce the causes of all ranks to those that explain the others. Private to the collection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._screen.screen import Cause, names

PROBABLE = 0.3
"""A cause with less confidence is only a hint."""
CONSEQUENCES = frozenset(
    {
        "bootstrap",
        "completion_flushed",
        "nccl_error",
        "net_mismatch",
        "peer_gone",
        "proxy_failed",
        "rank_missing",
        "segfault",
        "watchdog",
        "wrong_peer_type",
    }
)
"""Causes by which a rank reports what another rank, or an earlier line of its own, did to it."""


def roots(causes: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the causes (of module nccl_transport) that no other one explains, the most telling first.

    A rank has one cause, the most telling of its log. Where another rank shows why it failed, the ranks that only
    noticed that have none.
    """
    best: dict[Any, Mapping[str, Any]] = {}
    for cause in sorted((c for c in causes if c["confidence"] >= PROBABLE), key=lambda c: -c["confidence"]):
        best.setdefault(_rank(cause), cause)
    found = list(best.values())
    own = [cause for cause in found if cause["id"] not in CONSEQUENCES]
    return own or found


def merged(causes: Sequence[Mapping[str, Any]], total: int) -> list[Cause]:
    """Return each cause once; with the ranks that have it unless all ``total`` ranks do."""
    ranks: dict[str, list[Any]] = {}
    for cause in causes:
        ranks.setdefault(cause["id"], []).append(_rank(cause))
    first = {cause["id"]: cause for cause in reversed(causes)}
    return [
        Cause(
            first[name]["summary"],
            first[name]["remedy"],
            "" if len(who) >= total else names([_who(rank) for rank in sorted(who, key=str)], total),
        )
        for name, who in ranks.items()
    ]


def _rank(cause: Mapping[str, Any]) -> Any:
    return cause["source"] if cause["rank"] is None else cause["rank"]


def _who(rank: Any) -> str:
    return f"rank {rank}" if isinstance(rank, int) else f"pod {rank}"
