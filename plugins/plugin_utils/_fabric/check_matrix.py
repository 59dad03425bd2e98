# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge the results of all hosts: one matrix, one line per cause, bandwidth verdicts. Private to the collection."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import isfinite
from typing import Any, get_args

from ansible_collections.gb10.cluster.plugins.module_utils._common.plain import align
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.check_results import (
    PF_INDEX,
    BandwidthResult,
    Layer,
    Meeting,
    PingResult,
    Verdict,
)

from .model import plan_rails, shared_rails

# Hosts and columns up to which a matrix fits on a screen. With more, the message names only the causes.
_SHOWN, _WIDEST = 24, 100
# Ends or directions that are named; the matrix has all of them.
_NAMED = 4
_ADDRESS = re.compile(r"\b\d+\.\d+\.\d+\.\d+(?:/\d+)?|\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b")
# Characters of a name and of a reason that a host may send.
_NAME = 256
_REASON = 4000


def rounds(hosts: Iterable[str]) -> list[list[tuple[str, str]]]:
    """Return a round-robin schedule in which each host has at most one partner per round and every pair meets once."""
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


def meetings(hosts: Iterable[str], plan: Mapping[str, Any]) -> list[dict[str, Meeting]]:
    """Return the rounds as ``{host: {partner, side}}``, with only the pairs that share a rail of the plan."""
    rails = plan_rails(plan)
    found: list[dict[str, Meeting]] = []
    for schedule in rounds(hosts):
        pairs = [pair for pair in schedule if shared_rails(rails, *pair)]
        if pairs:
            found.append({one: {"partner": two, "side": "server"} for one, two in pairs})
            found[-1] |= {two: {"partner": one, "side": "client"} for one, two in pairs}
    return found


def own_results(host: str, found: Any) -> list[PingResult] | None:
    """Return what a host found about its own directions; None if what it sent is anything else."""
    if not isinstance(found, list) or not all(_is_ping(each) and each["host"] == host for each in found):
        return None
    return found


def _is_ping(found: Any) -> bool:
    if not isinstance(found, dict) or not found.keys() >= PingResult.__required_keys__:
        return False
    texts = all(isinstance(found[key], str) and len(found[key]) <= _NAME for key in ("host", "peer", "rail"))
    return (
        texts
        and isinstance(found["reason"], str)
        and len(found["reason"]) <= _REASON
        and isinstance(found["ok"], bool)
        and isinstance(found["vf_index"], int)
        and not isinstance(found["vf_index"], bool)
        and found["layer"] in get_args(Layer)
        and found["ok"] is not bool(found["layer"])
    )


def _is_bandwidth(found: Any, hosts: Sequence[str]) -> bool:
    if not isinstance(found, dict) or not found.keys() >= BandwidthResult.__required_keys__:
        return False
    pair, measured = found["pair"], found["measured"]
    return (
        isinstance(pair, list)
        and len(pair) == 2
        and all(host in hosts for host in pair)
        and isinstance(measured, dict)
        and all(value is None or (type(value) in (int, float) and isfinite(value)) for value in measured.values())
        and isinstance(found["ok"], bool)
        and isinstance(found["msg"], str)
        and len(found["msg"]) <= _REASON
    )


def ping_verdict(results: Mapping[str, Any], hosts: Iterable[str]) -> Verdict:
    """Judge the ping results of every host of the play.

    The verdict fails if a host has no results, or if there are several hosts but no direction was checked.
    """
    expected = sorted(hosts)
    own = {host: own_results(host, results.get(host)) for host in expected}
    everything = [result for host in expected for result in own[host] or []]
    failed = sum(not result["ok"] for result in everything)
    reasons = [f"{host}: gave no result" for host in expected if own[host] is None] + blame(everything)
    if not everything and len(expected) > 1:
        reasons.append("no direction was checked: the hosts have no VF of the same rail and index, or no pod holds one")
    table = matrix(everything)
    head = (
        f"{failed} of {len(everything)} directions fail"
        if reasons
        else f"{len(everything)} directions on all rails and VFs pass with full-size packets"
    )
    lossy = [f"{describe(result)}: {result['reason']}" for result in everything if result["ok"] and result["reason"]]
    shown = table if len(expected) <= _SHOWN and max(map(len, table)) <= _WIDEST else []
    return {"ok": not reasons, "table": table, "msg": "\n".join([head, *reasons, *shown, *lossy])}


def matrix(results: Iterable[PingResult]) -> list[str]:
    """Return a table, rows send and columns receive; a cell counts the VFs that pass and names the broken layers."""
    cells: dict[tuple[str, str], list[PingResult]] = {}
    for result in results:
        cells.setdefault((result["host"], result["peer"]), []).append(result)
    return tabulate("from \\ to", {pair: cell(found) for pair, found in cells.items()})


def tabulate(corner: str, cells: Mapping[tuple[str, str], str]) -> list[str]:
    """Return a table with the first of each pair as row and the second as column; a pair without a value gets ``-``."""
    down, across = sorted({pair[0] for pair in cells}), sorted({pair[1] for pair in cells})
    return align([[corner, *across], *([one, *(cells.get((one, other), "-") for other in across)] for one in down)])


def cell(results: Sequence[PingResult]) -> str:
    """Return ``8/8`` or ``7/8 mtu``."""
    layers: Counter[str] = Counter(result["layer"] for result in results if not result["ok"])
    return " ".join([f"{len(results) - layers.total()}/{len(results)}", *sorted(layers)])


def describe(result: PingResult) -> str:
    return f"{result['host']} → {result['peer']} {result['rail']} {_function(result['vf_index'])}"


def _function(index: int) -> str:
    return "PF" if index == PF_INDEX else f"VF {index}"


def blame(results: Sequence[PingResult]) -> list[str]:
    """Return one line per cause: an end that fails with every peer is named once, and what ends share is said once."""
    ends, directions = _Causes(), _Causes()
    explained: set[int] = set()
    # By end, in one pass: 254 hosts have 1,500 ends and 385,000 directions.
    touching: dict[tuple[str, str, int], list[int]] = {}
    for number, result in enumerate(results):
        for host in (result["host"], result["peer"]):
            touching.setdefault((host, result["rail"], result["vf_index"]), []).append(number)
    for end, numbers in sorted(touching.items()):
        own = next((results[number] for number in numbers if results[number]["host"] == end[0]), None)
        if own and len(numbers) > 2 and not any(results[number]["ok"] for number in numbers):
            host, rail, index = end
            ends.add(f"{host} {rail} {_function(index)}", own)
            explained.update(numbers)
    for number, result in enumerate(results):
        if not result["ok"] and number not in explained:
            directions.add(describe(result), result)
    return [*ends.lines(": no pair with it works"), *directions.lines("")]


class _Causes:
    """Causes with those that have them; reasons that differ only in hosts and addresses are the same one."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], tuple[list[str], str]] = {}

    def add(self, who: str, result: PingResult) -> None:
        hosts = rf"\b(?:{re.escape(result['host'])}|{re.escape(result['peer'])})\b"
        masked = _ADDRESS.sub("", re.sub(hosts, "", result["reason"]))
        self._found.setdefault((result["layer"], masked), ([], result["reason"]))[0].append(who)

    def lines(self, what: str) -> list[str]:
        """Return one line per cause, with up to four of those that have it."""
        shown = []
        for (layer, _masked), (whos, reason) in self._found.items():
            more = f" and {len(whos) - _NAMED} more" if len(whos) > _NAMED else ""
            shown.append(f"{', '.join(whos[:_NAMED])}{more}{what} ({layer}): {reason}")
        return shown


def bandwidth_verdict(results: Iterable[Any], hosts: Iterable[str], plan: Mapping[str, Any]) -> Verdict:
    """Judge the fabric_bandwidth results of all clients.

    A pair of ``hosts`` that shares a rail of the plan and was not measured counts as failed, and so does a run without
    such a pair, for example with --limit of one host: it would pass without a measurement.
    """
    expected = sorted(hosts)
    usable: list[BandwidthResult] = [result for result in results if _is_bandwidth(result, expected)]
    measured = {frozenset(result["pair"]): result for result in usable}
    rails = plan_rails(plan)
    linked = [pair for pair in combinations(expected, 2) if shared_rails(rails, *pair)]
    missing = [pair for pair in linked if frozenset(pair) not in measured]
    slow = [result["msg"] for result in measured.values() if not result["ok"]]
    reasons = [*sorted(slow), *(f"{one} and {other}: not measured" for one, other in missing)]
    if not linked:
        reasons.append(
            "nothing was measured: no two hosts of this run share a rail. Name two hosts that do in --limit, for "
            "example the new one and another, or leave out fabric_check_bandwidth"
        )
    cells = {
        (result["pair"][0], result["pair"][1]): f"{sum(value or 0.0 for value in result['measured'].values()):.1f}"
        + ("" if result["ok"] else " slow")
        for result in measured.values()
    }
    table = tabulate("Gb/s from \\ to", cells)
    head = f"{len(measured) - len(slow)} of {len(measured) + len(missing)} pairs reach the floors"
    shown = [result["msg"] for result in measured.values() if result["ok"]]
    return {"ok": not reasons, "table": table, "msg": "\n".join([head, *reasons, *table, *sorted(shown)])}
