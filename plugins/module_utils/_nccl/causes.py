# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rank the causes from the catalogue that explain NCCL's choice of transport. Private to the collection."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from .catalogue import BY_ID, CATALOGUE, EXPLAINED, PINS
from .model import WEIGHT, Cause, Hit, Process
from .networks import is_tcp

# An escape, a class, the start of a group, a repetition count, or one character.
_TOKEN = re.compile(r"\\.|\[(?:\\.|[^\]])+\]|\(\?[:!=>]|\{[^}]*\}|.")

_CMA = re.compile(r"^Cma(Total|Free): +(\d+)", re.M)


def literals(pattern: str) -> tuple[str, ...]:
    """Return the longest literal text of each alternative of a pattern; every matching line contains one of them.

    Groups and classes in an alternative are skipped. The tuple is empty if one alternative has no literal text.
    """
    alternatives, depth, runs = [], 0, [""]
    for token in _TOKEN.findall(f"{pattern}|"):
        depth += token.startswith("(") - (token == ")")
        plain = token[1] if len(token) == 2 and token[0] == "\\" and not token[1].isalnum() else token
        if token == "|" and not depth:
            alternatives.append(max(runs, key=len))
            runs = [""]
        elif token in "?*" or token.startswith("{"):
            # The preceding character is optional.
            runs[-1] = runs[-1][:-1]
            runs.append("")
        elif depth or len(plain) > 1 or (plain == token and token in ".+^$)"):
            runs.append("")
        else:
            runs[-1] += plain
    return tuple(alternatives) if all(alternatives) else ()


@cache
def _hints() -> tuple[tuple[str, Cause], ...]:
    """Return literal texts, each with a cause whose pattern requires it, the most telling cause first."""
    named = (cause for cause in CATALOGUE if cause.pattern)
    return tuple((hint, cause) for cause in named for hint in literals(cause.pattern) or [""])


def find_cause(text: str) -> str | None:
    """Return the identifier of the first matching cause; the catalogue lists the most telling causes first."""
    # A literal text is found ten times faster than a pattern, and most lines contain none of them. Most logs match no
    # pattern, and compiling all of them takes longer than reading such a log.
    for cause in [cause for hint, cause in _hints() if hint in text]:
        if re.search(cause.pattern, text):
            return cause.id
    return None


def _relevant(hit: Hit, process: Process) -> float:
    """Return how much a hit explains, 0 to 1, given the other statements of its process."""
    cause = BY_ID[hit.cause]
    weight = cause.confidence if cause.confidence is not None else WEIGHT[cause.kind]
    if cause.kind == "fallback" and _found_rdma(process):
        # RDMA was found, so this fallback message is harmless.
        return 0.05 if cause.id != "ofi_no_provider" else 0.3
    if cause.kind == "fallback" and process.stays_on_node and not process.channels:
        return 0.1
    if cause.id == "use_inline" or (cause.id == "inline_and_prepost" and "use_inline" not in process.hits):
        return 0.0
    return weight


def _found_rdma(process: Process) -> bool:
    used = process.channels or process.selections
    return any(not is_tcp(name) for name in used) if used else bool(process.ib_devices)


def _entry(cause: Cause, process: Process, source: str, line: str, confidence: float) -> dict[str, Any]:
    return {
        "id": cause.id,
        "kind": cause.kind,
        "rank": process.rank if process.rank >= 0 else None,
        "source": process.pod or source,
        "summary": cause.summary,
        "remedy": cause.remedy,
        "line": line,
        "confidence": confidence,
        "count": 0,
    }


def mtu_differs(processes: Iterable[Process], source: str) -> list[dict[str, Any]]:
    """Return the cause for connections with different MTUs in these processes, or nothing."""
    seen = {mtu: (process, line) for process in processes for mtu, line in process.mtus.items()}
    if len(seen) < 2:
        return []
    process, line = seen[min(seen)]
    return [_entry(BY_ID["mtu_differs"], process, source, line, BY_ID["mtu_differs"].confidence or 0.0) | {"count": 1}]


def ranked(processes: Sequence[Process], source: str) -> list[dict[str, Any]]:
    """Return the causes of all processes, most telling first; one entry per cause with the first line that shows it.

    A cause that another one explains is not listed.
    """
    found = {entry["id"]: entry for entry in mtu_differs(processes, source)}
    for process in processes:
        for hit in process.hits.values():
            confidence = round(_relevant(hit, process), 2)
            if not confidence:
                continue
            cause = BY_ID[hit.cause]
            entry = found.setdefault(cause.id, _entry(cause, process, source, hit.line, confidence))
            entry["count"] += hit.count
            entry["confidence"] = max(entry["confidence"], confidence)
    weak = ("nccl_error", "segfault")
    telling = [entry for entry in found.values() if entry["confidence"] >= 0.3 and entry["id"] not in weak]
    named = {word for entry in telling for word in (entry["id"], entry["kind"])}
    listed = (entry for entry in found.values() if not named.intersection(EXPLAINED.get(entry["id"], ())))
    return sorted(listed, key=lambda c: (-c["confidence"], c["id"]))


def kernel_refuses_pins(meminfo: str) -> bool:
    """Tell from /proc/meminfo whether the kernel frees CMA that it does not count, and so refuses pins.

    CmaFree is then above CmaTotal, which is 0 (NV-Kernels#590).
    """
    values = dict(_CMA.findall(meminfo))
    return values.get("Total") == "0" and values.get("Free", "0") != "0"


def name_pins(causes: Iterable[dict[str, Any]], pins: Mapping[str, str]) -> None:
    """Put the reason why memory could not be pinned into ``reg_mr``; ``pins`` has a key of PINS per source."""
    for cause in causes:
        if cause["id"] == "reg_mr" and (why := PINS.get(pins.get(cause["source"], ""))):
            cause["summary"], cause["remedy"] = why
