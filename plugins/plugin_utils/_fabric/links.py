# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell which hosts reach each other on which rails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, TypeAlias

Rails: TypeAlias = "Mapping[str, Sequence[str]]"
"""The rails of every host, in rail order."""


def plan_rails(plan: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return the rails on which each host of a fabric plan has VFs."""
    return {
        name: tuple(dict.fromkeys(vf["rail"] for vf in sorted(host["vfs"], key=lambda vf: int(vf["rail_index"]))))
        for name, host in plan.get("hosts", {}).items()
    }


def shared_rails(rails: Rails, first: str, *others: str) -> tuple[str, ...]:
    """Return the rails that all these hosts are on, in rail order."""
    return tuple(rail for rail in rails[first] if all(rail in rails[other] for other in others))


def neighbours(rails: Rails, host: str) -> tuple[str, ...]:
    return tuple(other for other in rails if other != host and shared_rails(rails, host, other))


def unlinked(rails: Rails, hosts: Sequence[str]) -> list[tuple[str, str]]:
    return [pair for pair in combinations(hosts, 2) if not shared_rails(rails, *pair)]


def connected(rails: Rails) -> bool:
    """Tell whether every host reaches every other one, directly or through others."""
    reached: set[str] = set()
    ahead = list(rails)[:1]
    while ahead:
        host = ahead.pop()
        reached.add(host)
        ahead += [other for other in neighbours(rails, host) if other not in reached]
    return len(reached) == len(rails)


def ring_order(rails: Rails, hosts: Sequence[str]) -> tuple[str, ...] | None:
    """Return ``hosts`` in an order in which each shares a rail with the next and the last with the first, if any."""

    def extend(path: tuple[str, ...]) -> tuple[str, ...] | None:
        if len(path) == len(hosts):
            return path if shared_rails(rails, path[-1], path[0]) else None
        steps = (host for host in hosts if host not in path and shared_rails(rails, path[-1], host))
        return next((found for step in steps if (found := extend((*path, step)))), None)

    return extend((hosts[0],))
