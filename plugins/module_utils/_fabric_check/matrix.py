# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Put the results of all hosts together: matrix, who is to blame, bandwidth verdicts. Private to the collection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

DEGRADED_GBPS = 20.0  # measured: a ConnectX-7 of a GB10 that came up degraded moves about 13 Gb/s with a healthy link


def rounds(hosts: Iterable[str]) -> list[list[tuple[str, str]]]:
    """Return a round-robin schedule: in a round every host has at most one partner, after all of them all pairs met."""
    ring: list[str | None] = [*sorted(hosts)]
    if len(ring) % 2:
        ring.append(None)
    schedule = []
    for _turn in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        schedule.append([(one, two) for one, two in pairs if one is not None and two is not None])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return schedule


def summarize(results: Mapping[str, Sequence[Mapping[str, Any]] | None], hosts: Iterable[str]) -> dict[str, Any]:
    """Return ``ok``, ``table`` (lines), ``failures`` and ``msg`` of the ping results of every host of the play.

    A host without results counts as a failure, and so do several hosts with nothing to check: no evidence is no pass.
    """
    expected = sorted(hosts)
    everything = [dict(result) for host in expected for result in results.get(host) or []]
    failures = [result for result in everything if not result["ok"]]
    silent = [host for host in expected if results.get(host) is None]
    reasons = [f"{host}: gave no result" for host in silent] + blame(everything)
    if not everything and len(expected) > 1:
        reasons.append("no direction was checked: the plan has no common VFs, or no pod holds one")
    table = matrix(everything)
    good = not failures and not reasons
    head = (
        f"{len(everything)} directions on all rails and VFs pass with full-size packets"
        if good
        else f"{len(failures)} of {len(everything)} directions fail"
    )
    lossy = [f"{describe(result)}: {result['reason']}" for result in everything if result["ok"] and result["reason"]]
    return {"ok": good, "table": table, "failures": failures, "msg": "\n".join([head, *reasons, *table, *lossy])}


def matrix(results: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a table, senders down and receivers across; a cell counts VFs that pass and names the broken layers."""
    cells: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for result in results:
        cells.setdefault((result["host"], result["peer"]), []).append(result)
    return tabulate("from \\ to", {pair: cell(found) for pair, found in cells.items()})


def tabulate(corner: str, cells: Mapping[tuple[str, str], str]) -> list[str]:
    """Return the lines of a table with the first of each pair down and the second across; ``-`` where nothing is."""
    down = sorted({one for one, _other in cells})
    across = sorted({other for _one, other in cells})
    rows = [[corner, *across], *([one, *(cells.get((one, other), "-") for other in across)] for one in down)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def cell(results: Sequence[Mapping[str, Any]]) -> str:
    """Return ``8/8`` or ``7/8 mtu``."""
    layers = Counter(result["layer"] for result in results if not result["ok"])
    return " ".join([f"{len(results) - layers.total()}/{len(results)}", *sorted(layers)])


def describe(result: Mapping[str, Any]) -> str:
    """Return which direction a result is of."""
    return f"{result['host']} → {result['peer']} {result['rail']} VF {result['vf_index']}"


def blame(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line a cause: an end that fails with every peer is named once instead of once a pair."""
    lines = []
    explained: set[int] = set()
    ends = sorted({(result["host"], result["rail"], result["vf_index"]) for result in results})
    for host, rail, index in ends:
        touching = [
            (number, result)
            for number, result in enumerate(results)
            if (result["rail"], result["vf_index"]) == (rail, index) and host in (result["host"], result["peer"])
        ]
        if len(touching) > 2 and all(not result["ok"] for _number, result in touching):
            own = next(result for _number, result in touching if result["host"] == host)
            lines.append(f"{host} {rail} VF {index}: no pair with it works ({own['layer']}): {own['reason']}")
            explained |= {number for number, _result in touching}
    for number, result in enumerate(results):
        if not result["ok"] and number not in explained:
            lines.append(f"{describe(result)} ({result['layer']}): {result['reason']}")
    return lines


def judge_bandwidth(measured: Mapping[str, float | None], half_floor: float, full_floor: float) -> tuple[bool, str]:
    """Judge the Gb/s of the rails of one pair, measured at the same time; None is a rail that moved nothing.

    Tells a degraded ConnectX (all rails crawl though links are up) from a fabric that uses one half only.
    """
    values = {rail: value or 0.0 for rail, value in sorted(measured.items())}
    shown = ", ".join(f"{rail} {value:.1f}" for rail, value in values.items()) + " Gb/s"
    dead = ", ".join(rail for rail, value in values.items() if value == 0.0)
    crawling = ", ".join(rail for rail, value in values.items() if 0.0 < value < min(DEGRADED_GBPS, half_floor))
    slow = ", ".join(rail for rail, value in values.items() if value < half_floor)
    verdicts = [
        (not values, "no rail in common, so nothing was measured"),
        (
            not any(values.values()),
            f"no RDMA traffic at all ({shown}): see the errors below; if pings pass, something drops UDP 4791"
            " (an ACL of the switch, a firewall)",
        ),
        (bool(dead), f"half-rail: {dead} moved nothing while the other half works ({shown})"),
        (
            bool(crawling),
            f"degraded: {crawling} crawls at a healthy link ({shown}): take power away from both hosts for"
            " a minute, a restart is not enough",
        ),
        (bool(slow), f"slow: {slow} below {half_floor:g} Gb/s ({shown})"),
        (len(values) > 1 and sum(values.values()) < full_floor, f"slow: together below {full_floor:g} Gb/s ({shown})"),
    ]
    return next(((False, text) for wrong, text in verdicts if wrong), (True, shown))


def summarize_bandwidth(results: Iterable[Mapping[str, Any]], hosts: Iterable[str]) -> dict[str, Any]:
    """Return ``ok``, ``table`` (lines) and ``msg`` of the fabric_bandwidth results of all clients.

    A pair of ``hosts`` that was not measured counts as a failure: no evidence is no pass.
    """
    measured = {frozenset(result["pair"]): result for result in results}
    missing = [pair for pair in combinations(sorted(hosts), 2) if frozenset(pair) not in measured]
    slow = [str(result["msg"]) for result in measured.values() if not result["ok"]]
    reasons = [*sorted(slow), *(f"{one} and {other}: not measured" for one, other in missing)]
    cells = {
        (result["pair"][0], result["pair"][1]): f"{sum(value or 0.0 for value in result['measured'].values()):.1f}"
        + ("" if result["ok"] else " slow")
        for result in measured.values()
    }
    table = tabulate("Gb/s from \\ to", cells)
    head = f"{len(measured) - len(slow)} of {len(measured) + len(missing)} pairs reach the floors"
    shown = [str(result["msg"]) for result in measured.values() if result["ok"]]
    return {"ok": not reasons, "table": table, "msg": "\n".join([head, *reasons, *table, *sorted(shown)])}
