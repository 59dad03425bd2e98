# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the links and the error counters of a host with those of the previous run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .._common.findings import Finding
from .._rdma.counters import ERRORS, delta, parse_counters
from .._sriov.physical_functions import read_link, read_pfs


def snapshot(root: Path, counted: str) -> dict[str, Any]:
    """Return the links of the ports and the counters of RDMA devices; ``counted`` is what counters.SCRIPT prints."""
    links = {pf.name: read_link(root, pf.name) for pf in read_pfs(str(root))}
    return {"links": links, "counters": parse_counters(counted)["rdma"]}


def compare(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Finding]:
    """Return what happened between two snapshots since the same start of the host."""
    for port, link in now["links"].items():
        old = before["links"].get(port, link)
        changes = (link["carrier_changes"] or 0) - (old["carrier_changes"] or 0)
        if changes:
            reason = "the link went down or came up this many times since the previous run"
            yield _finding("link", port, changes, reason, "Reseat or replace the cable, unless somebody unplugged it.")
        if link["speed"] != old["speed"] and min(link["speed"] or -1, old["speed"] or -1) > 0:
            reason = f"the speed in Mb/s was {old['speed']} in the previous run"
            yield _finding(
                "speed", port, link["speed"], reason, "Reseat the cable, and compare the switch port's speed."
            )
    for device, counters in delta(before["counters"], now["counters"]).items():
        errors = {name: counters[name] for name in ERRORS if counters.get(name)}
        if errors:
            found = ", ".join(f"{name} +{count}" for name, count in errors.items())
            reason = "errors, drops or retransmissions since the previous run; RDMA slows down with them"
            remedy = "Check the cable, and on a switch the lossless class (docs/fabric.md)."
            yield _finding("errors", device, found, reason, remedy)


def _finding(rule: str, key: str, value: object, reason: str, remedy: str) -> Finding:
    return Finding("warning", f"health.{rule}", key, value, reason, remedy)
