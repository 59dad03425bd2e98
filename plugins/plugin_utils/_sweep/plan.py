# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan a sweep: list its cells, find the invalid ones, and find those that resolve to the same engine.

Pure: the caller passes in the function that resolves a cell, so that the plan needs neither profiles nor a cluster.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, has_errors

from .file import OVERLAY_KEYS, check, label_of, overlay_of

Status = Literal["run", "invalid", "duplicate"]


@dataclass(frozen=True)
class Resolved:
    """The engine that a cell resolves to: ``key`` is equal for two cells exactly when SGLang runs the same engine."""

    key: str
    findings: Sequence[Finding] = ()


@dataclass
class Cell:
    """One setting to measure. ``labels`` maps axis names to value names; ``overlay`` is the change of the profile."""

    id: str
    labels: dict[str, str]
    overlay: dict[str, Any]
    status: Status = "run"
    duplicate_of: str | None = None
    reasons: list[dict[str, Any]] = field(default_factory=list)
    key: str = ""


@dataclass
class SweepPlan:
    """All cells of a sweep in execution order, and the findings about the file itself."""

    name: str
    cells: list[Cell]
    findings: list[Finding] = field(default_factory=list)

    def count(self, status: Status) -> int:
        return sum(c.status == status for c in self.cells)


SPEAKING = frozenset({"mode", "transport"})
"""Axes whose values a reader understands without the name of the axis."""


def cell_name(labels: Mapping[str, str]) -> str:
    """Return the labels as one text for people: the name of each axis with its value."""
    named = {"transport": {"roce": "RoCE", "socket": "Socket"}}
    shown = {k: named.get(k, {}).get(v, v) for k, v in labels.items()}
    words = (v if k in SPEAKING else f"{k.removesuffix('_backend').replace('_', ' ')} {v}" for k, v in shown.items())
    return ", ".join(words)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` merged with ``over``, mappings key by key."""
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        out[key] = merge(old, value) if isinstance(value, Mapping) and isinstance(old, Mapping) else value
    return out


def _matches(cell: Cell, condition: Mapping[str, Any]) -> bool:
    return all(
        cell.labels.get(axis) in ([label_of(v) for v in wanted] if isinstance(wanted, list) else [label_of(wanted)])
        for axis, wanted in condition.items()
    )


def _cell(labels: dict[str, str], overlay: dict[str, Any]) -> Cell:
    text = json.dumps([labels, overlay], sort_keys=True)
    readable = "-".join(labels.values()).replace("/", "_").replace(" ", "_") or "base"
    return Cell(f"{readable[:60]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}", labels, overlay)


def plan(sweep: Mapping[str, Any], resolve: Callable[[Mapping[str, Any]], Resolved]) -> SweepPlan:
    """Return the cells of a sweep: the product of its axes, minus ``exclude``, plus ``include``.

    ``resolve`` takes a cell's overlay on the sweep's ``base`` and returns the engine that it resolves to. If several
    cells have the same key, the first one runs and the others are its duplicates: the published 36-cell matrix measured
    12 of its cells on engines that it had already measured.
    """
    result = SweepPlan(str(sweep.get("name", "sweep")), [], check(sweep))
    if has_errors(result.findings):
        return result
    axes: Mapping[str, list[Any]] = sweep.get("axes") or {}
    base: Mapping[str, Any] = sweep.get("base") or {}
    for combination in itertools.product(*axes.values()) if axes else [()]:
        overlay: dict[str, Any] = dict(base)
        for axis, value in zip(axes, combination, strict=True):
            overlay = merge(overlay, overlay_of(axis, value))
        cell = _cell({a: label_of(v) for a, v in zip(axes, combination, strict=True)}, overlay)
        if not any(_matches(cell, condition) for condition in sweep.get("exclude") or []):
            result.cells.append(cell)
    for entry in sweep.get("include") or []:
        overlay = merge(base, {k: v for k, v in entry.items() if k in OVERLAY_KEYS})
        result.cells.append(_cell({k: label_of(v) for k, v in entry.get("labels", {}).items()}, overlay))
    first: dict[str, str] = {}
    for cell in result.cells:
        resolved = resolve(cell.overlay)
        cell.key, cell.reasons = resolved.key, [f.as_dict() for f in resolved.findings]
        if has_errors(resolved.findings):
            cell.status = "invalid"
        elif cell.key in first:
            cell.status, cell.duplicate_of = "duplicate", first[cell.key]
        else:
            first[cell.key] = cell.id
    return result
