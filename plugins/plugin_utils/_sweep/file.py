# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Validate a sweep file, and convert a value of an axis to changes of the profile. Private to the collection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from math import prod
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding

from .._load.workload import Workload
from .._sglang.owned import TOPOLOGY_FLAGS
from .._sglang.schema import load_schema, violations

SCHEMA = load_schema("sweep")
OVERLAY = SCHEMA["$defs"]["overlay"]
OVERLAY_KEYS = frozenset(OVERLAY["properties"])
MAPPINGS = frozenset({"server_args", "env", "topology"})
SIZES = {name: size for size, names in TOPOLOGY_FLAGS.items() if size != "nodes" for name in names}
SIZES |= {"nodes": "nodes", "nnodes": "nodes"}
"""Server arguments that belong under topology in a profile, because ranks and addresses follow from them."""
CELLS = 1000
"""Most cells of a sweep: more would take weeks."""


def label_of(value: Any) -> str:
    """Return the name of a value of an axis."""
    if isinstance(value, Mapping):
        return str(value["name"]) if "name" in value else ",".join(f"{k}={v}" for k, v in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def overlay_of(axis: str, value: Any) -> dict[str, Any]:
    """Return the changes that one value of an axis makes to the profile.

    Keys of an overlay and parallel sizes go to their places in the profile; all other keys are server arguments. If the
    axis itself is a mapping in the profile (``env: [{NCCL_DEBUG: INFO}]``), the value is its content.
    """
    # YAML reads an unquoted number as a number, also before a colon.
    given = {str(k): v for k, v in value.items() if k != "name"} if isinstance(value, Mapping) else {axis: value}
    if isinstance(value, Mapping) and axis in MAPPINGS and not set(given) <= OVERLAY_KEYS:
        given = {axis: given}
    overlay: dict[str, Any] = {}
    for key, wanted in given.items():
        if key in MAPPINGS:
            overlay[key] = {**overlay.get(key, {}), **wanted}
        elif key in OVERLAY_KEYS:
            overlay[key] = wanted
        else:
            size = SIZES.get(key.replace("-", "_"))
            place, name = ("topology", size) if size else ("server_args", key)
            overlay[place] = {**overlay.get(place, {}), name: wanted}
    return overlay


class _Check:
    """Collects the problems of one file."""

    def __init__(self) -> None:
        self.found: list[Finding] = []

    def error(self, rule: str, key: str, value: Any, reason: str, remedy: str) -> None:
        self.found.append(Finding("error", f"sweep.{rule}", key, value, reason, remedy))

    def schema(self, data: Any, schema: Mapping[str, Any], at: str = "") -> bool:
        """Report every violation of the schema; return whether there was none."""
        before = len(self.found)
        for problem in violations(data, schema):
            place = ".".join(part for part in (at, problem.place) if part) or "sweep"
            remedy = f"Write {problem.wanted or 'it as docs/benchmarks.md describes'}."
            self.error(place.partition(".")[0], place, problem.value, problem.reason, remedy)
        return len(self.found) == before

    def known(self, key: str, given: Iterable[Any], allowed: Iterable[str], reason: str) -> None:
        """Report every given word that is not allowed, with a suggestion."""
        words = sorted(allowed)
        for word in given:
            if word not in words:
                close = get_close_matches(str(word), words, n=1)
                remedy = f"Did you mean {close[0]}?" if close else f"Choose from: {', '.join(words) or 'none'}."
                self.error("exclude", key, word, reason, remedy)

    def twice(self, rule: str, key: str, names: list[str], remedy: str) -> None:
        for name in sorted({name for name in names if names.count(name) > 1}):
            self.error(rule, key, name, "is listed twice", remedy)

    def axis(self, name: str, values: Any) -> None:
        if not isinstance(values, list):
            return
        labels = [label_of(value) for value in values]
        if "" in labels:
            self.error("axes", f"axes.{name}", "", "a value without a name", "Write {name: text, ...}.")
        self.twice("axes", f"axes.{name}", labels, "Give each value a different name.")
        for label, value in zip(labels, values, strict=True):
            parts = value if isinstance(value, Mapping) else {name: value}
            misplaced = {part: parts[part] for part in MAPPINGS & set(parts) if not isinstance(parts[part], Mapping)}
            self.schema(misplaced or overlay_of(name, value), OVERLAY, f"axes.{name}[{label}]")

    def exclude(self, entries: Any, axes: Mapping[str, Any]) -> None:
        for i, condition in enumerate(entries if isinstance(entries, list) else []):
            if not isinstance(condition, Mapping):
                continue
            self.known(f"exclude[{i}]", condition, axes, "names no axis")
            for axis, wanted in condition.items():
                labels = [label_of(v) for v in (wanted if isinstance(wanted, list) else [wanted])]
                values = axes[axis] if isinstance(axes.get(axis), list) else labels
                self.known(f"exclude[{i}].{axis}", labels, [label_of(v) for v in values], "is not a value of the axis")


def check(sweep: Any) -> list[Finding]:
    """Return all problems of a sweep file that can be found without its profile."""
    found = _Check()
    valid = found.schema(sweep, SCHEMA)
    if not isinstance(sweep, Mapping):
        return found.found
    axes = sweep.get("axes")
    axes = axes if isinstance(axes, Mapping) else {}
    for name, values in axes.items():
        found.axis(str(name), values)
    found.exclude(sweep.get("exclude"), axes)
    if (cells := prod(len(values) for values in axes.values() if isinstance(values, list))) > CELLS:
        reason = f"the axes have {cells} combinations, of which {CELLS} can be planned"
        found.error("axes", "axes", None, reason, "Shorten an axis, or write several sweeps.")
    if valid:
        remedy = "Results are identified by context and concurrency: put the other workload into a separate sweep."
        found.twice("workloads", "workloads", [Workload(**w).name for w in sweep["workloads"]], remedy)
    return found.found
