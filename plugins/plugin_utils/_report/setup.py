# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe the environment and the setup of a report's cells, and how to repeat the measurement.

A record's environment holds facts by name and, in addition, ``arguments`` (the requested arguments of the server),
``server`` (the arguments that it reports) and ``transport`` (the proof).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from shlex import quote
from typing import Any

from .._sglang.items import options_of
from .rows import Report, Row

FABRIC = ("nodes", "networks", "rdma_devices", "mtu")
APART = frozenset({"arguments", "server", "transport", "inventory", "commit"})
RANK_COLUMNS = ("rank", "host", "verdict", "evidence")


@dataclass(frozen=True)
class Setup:
    """The setup of one cell: its transport proof, its differences from the base, and facts that not all cells share."""

    cell: str
    transport: Mapping[str, Any]
    arguments: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """Return the verdicts of the transport proof and of the counters as one line."""
        said = self.transport.get("msg") or self.transport.get("verdict") or "its transport was not proved"
        counters = (self.transport.get("counters") or {}).get("msg")
        return f"{said}. {counters}" if counters else str(said)

    @property
    def ranks(self) -> list[list[str]]:
        """Return the evidence of every rank as a table, the header first; an empty list if there is none."""
        lines = []
        for rank in self.transport.get("ranks") or []:
            devices = [(net, d, n) for net, devs in rank.get("channels", {}).items() for d, n in devs.items()]
            channels = ", ".join(f"{net}/{device}: {n}" for net, device, n in devices)
            lines.append([*(str(rank.get(k, "")) for k in RANK_COLUMNS), channels])
        return [[*RANK_COLUMNS, "channels"], *lines] if lines else []


def _text(value: Any) -> str:
    if isinstance(value, list) and not any(isinstance(v, (list, Mapping)) for v in value):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _differences(base: Mapping[str, Any], mine: Mapping[str, Any], prefix: str) -> list[str]:
    def shown(values: Mapping[str, Any], key: str) -> str:
        return _text(values[key]) if key in values else "not set"

    changed = [k for k in dict.fromkeys([*base, *mine]) if shown(base, k) != shown(mine, k)]
    return [f"{prefix}{k}: {shown(base, k)} → {shown(mine, k)}" for k in changed]


def base_of(report: Report) -> Row | None:
    """Return the row with which the others are compared: the baseline, otherwise the first row with arguments."""
    known = [r for r in report.rows if r.environment.get("arguments")]
    return next(iter([*(r for r in known if r is report.baseline), *known]), None)


def shared_facts(report: Report) -> dict[str, str]:
    """Return the facts that are equal for all cells that have them."""
    seen: dict[str, set[str]] = {}
    for row in report.rows:
        for key, value in row.environment.items():
            if key not in APART:
                seen.setdefault(key, set()).add(_text(value))
    return {key: next(iter(values)) for key, values in seen.items() if len(values) == 1}


def setups(report: Report) -> list[Setup]:
    """Return the setup of every cell that was served."""
    base = base_of(report)
    shared = shared_facts(report)
    found = []
    for row in report.rows:
        if not row.environment:
            continue
        changes: list[str] = []
        ours, theirs = row.environment, base.environment if base else {}
        if ours.get("arguments") and theirs.get("arguments"):
            changes += _differences(options_of(theirs["arguments"]), options_of(ours["arguments"]), "")
        if ours.get("server") and theirs.get("server"):
            changes += _differences(theirs["server"], ours["server"], "resolved ")
        facts = {k: _text(v) for k, v in row.environment.items() if k not in APART and k not in shared}
        found.append(Setup(row.name, row.environment.get("transport") or {}, changes, facts))
    return found


def again(report: Report) -> list[str]:
    """Return the commands that repeat the measurement: the collection's commit, the command, and its workloads."""
    environments = [r.environment for r in report.rows if r.environment]
    commits = sorted({e["commit"] for e in environments if e.get("commit")})
    inventories = dict.fromkeys(path for e in environments for path in e.get("inventory") or [])
    words = "".join(f" -i {quote(path)}" for path in inventories)
    workloads = {m["workload"]["name"]: m["workload"] for r in report.rows for m in r.measurements}
    lines = [f"git checkout {commit}" for commit in commits]
    # A sweep of which no cell was served has no environment, and there is no default inventory.
    lines += [f"{c}{words or ('' if ' -i ' in c else ' -i inventory/mine')}" for c in report.reproduce.splitlines()]
    for name, workload in workloads.items():
        kept = ", ".join(f"{k} {_text(v)}" for k, v in workload.items() if k != "name" and v)
        lines.append(f"# {name}: {kept}")
    return lines
