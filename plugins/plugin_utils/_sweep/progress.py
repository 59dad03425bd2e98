# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compute the state of a sweep from its plan and journal: cells left, time left, best cell, reason to stop.

Records have ``kind`` (``plan``, ``start``, ``result``) and ``at``, an ISO time. A result also has ``key`` and
``workloads_id``, which identify its engine and its work.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

from .._load.stats import Workload
from .failure import CellStatus
from .plan import cell_name

NOT_FINAL: frozenset[CellStatus] = frozenset({"infrastructure", "shared"})
"""Statuses that say nothing about the setting: the cluster failed, or others used the server. The cell runs again."""


def workloads_id(workloads: Sequence[Mapping[str, Any]]) -> str:
    """Return a text that is equal for equal workloads; a value that equals its default counts as left out."""
    asked = [Workload(**w) for w in workloads]
    said = [{f.name: getattr(w, f.name) for f in fields(w) if getattr(w, f.name) != f.default} for w in asked]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def last_plan(records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the plan with which the last run began, or an empty one."""
    return next((r for r in reversed(records) if r.get("kind") == "plan"), {"cells": [], "workloads": []})


def single_cell(server: str, preset: str) -> dict[str, Any]:
    """Return name and cells of the plan for one running server: the group of a preset, or only a host name."""
    labels = {"preset": preset} if preset else {"server": server}
    name = f"{server}-{preset}" if preset else server
    cell = {"id": name, "labels": labels, "overlay": {"preset": preset} if preset else {}, "status": "run"}
    return {"sweep": f"bench-{server}", "cells": [cell]}


def identity(cell: str, plan: Mapping[str, Any]) -> dict[str, str]:
    """Return what identifies a result of this plan, whatever the cell's name: the command line and the work."""
    key = next((str(c.get("key", "")) for c in plan["cells"] if c["id"] == cell), "")
    return {"key": key, "workloads_id": workloads_id(plan.get("workloads") or [])}


def current(records: Sequence[Mapping[str, Any]], plan: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the records without results of engines or workloads that the plan no longer has.

    Profile or workloads may have changed since; old and new figures are never mixed. Results without this
    identification are left out too.
    """
    return [r for r in records if r.get("kind") != "result" or identity(r["cell"], plan).items() <= r.items()]


def _results(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [r for r in records if r.get("kind") == "result"]


def remaining(cells: Sequence[Mapping[str, Any]], records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the cells that still have to run; a cell with a final result is done, whatever the result is."""
    done = {r["cell"] for r in _results(records) if r.get("status") not in NOT_FINAL}
    return [c for c in cells if c["status"] == "run" and c["id"] not in done]


def estimate_s(cells: Sequence[Mapping[str, Any]], records: Sequence[Mapping[str, Any]], first_guess_s: float) -> float:
    """Return the seconds that the remaining cells will take, estimated from the finished cells if there are any."""
    short = {*NOT_FINAL, "duplicate"}
    took = [float(r["took_s"]) for r in _results(records) if r.get("took_s") and r.get("status") not in short]
    each = sum(took) / len(took) if took else first_guess_s
    return each * len(remaining(cells, records))


def engines(cell: str, plan: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the cells with a final result by the engine to which the image resolved them, if all else is as in a cell.

    All else is what a key has after the command line: transport, image and variables that are not SGLang's own.
    """

    def rest(name: str) -> str:
        return identity(name, plan)["key"].partition("|")[2]

    final = (r for r in _results(records) if r.get("status") not in {*NOT_FINAL, "duplicate"})
    known = {r.get("environment", {}).get("engine"): r["cell"] for r in final if rest(r["cell"]) == rest(cell)}
    return {engine: name for engine, name in known.items() if engine and name != cell}


def best_so_far(
    cells: Sequence[Mapping[str, Any]], records: Sequence[Mapping[str, Any]]
) -> dict[str, tuple[str, float]]:
    """Return for each workload the cell with the highest mean peak rate in tok/s among those that may be ranked."""
    names = {c["id"]: cell_name(c["labels"]) for c in cells}
    best: dict[str, tuple[str, float]] = {}
    for record in _results(records):
        for measured in record.get("measurements") or []:
            rate = (measured.get("peak_tok_s") or {}).get("mean")
            workload = measured["workload"]["name"]
            if measured["status"] == "ok" and rate and rate > best.get(workload, ("", 0.0))[1]:
                best[workload] = (names.get(record["cell"], record["cell"]), rate)
    return best


def stop_reason(
    rules: Mapping[str, Any], records: Sequence[Mapping[str, Any]], now: datetime, run: str | None = None
) -> str:
    """Return why no further cell may start, or an empty string.

    ``rules``: ``hours`` since the first start of this ``run``; ``infrastructure`` and ``failures``, how many
    consecutive cells may end that way. Only the records of this run count, so that a new run starts counting at zero.
    """
    mine = [r for r in records if run is None or r.get("run") == run]
    starts = [datetime.fromisoformat(r["at"]) for r in mine if r.get("kind") == "start"]
    hours = rules.get("hours")
    if hours is not None and starts and (now - starts[0]).total_seconds() > 3600 * float(hours):
        return f"the sweep's limit of {hours} hours is reached"
    states = [r.get("status") for r in _results(mine)]
    for key, ends in (
        ("infrastructure", lambda s: s in NOT_FINAL),
        ("failures", lambda s: s not in {*NOT_FINAL, "ok", "duplicate"}),
    ):
        limit = rules.get(key)
        if limit and len(states) >= int(limit) and all(map(ends, states[-int(limit) :])):
            return f"{limit} cells in a row ended with {', '.join(dict.fromkeys(map(str, states[-int(limit) :])))}"
    return ""


def progress_line(
    cell: str, cells: Sequence[Mapping[str, Any]], records: Sequence[Mapping[str, Any]], first_guess_s: float
) -> str:
    """Return the progress line of a cell that starts: its number, the total, the time left and the best cell so far."""
    total = sum(c["status"] == "run" for c in cells)
    left = len(remaining(cells, records))
    name = next((cell_name(c["labels"]) for c in cells if c["id"] == cell), cell)
    minutes = estimate_s(cells, records, first_guess_s) / 60
    when = f"{minutes / 60:.1f} h" if minutes >= 90 else f"{minutes:.0f} min"
    best = "; ".join(f"{w} {rate:.1f} tok/s ({who})" for w, (who, rate) in best_so_far(cells, records).items())
    return f"cell {total - left + 1} of {total}: {name}; about {when} left; best so far: {best or 'nothing yet'}"
