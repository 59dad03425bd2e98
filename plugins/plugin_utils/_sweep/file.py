# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Validate a sweep file, and convert a value of an axis to changes of the profile. Private to the collection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._common.terms import TRANSPORTS

from .._load.workload import Workload
from .._sglang.owned import TOPOLOGY_FLAGS

KEYS = frozenset({"name", "profile", "base", "axes", "exclude", "include", "workloads", "stop", "cell_minutes"})
OVERLAY_KEYS = frozenset({"preset", "server_args", "env", "transport", "image", "sglang_version", "topology"})
MAPPINGS = frozenset({"server_args", "env", "topology"})
STOP_RULES = frozenset({"hours", "infrastructure", "failures"})
SIZES = {name: size for size, names in TOPOLOGY_FLAGS.items() if size != "nodes" for name in names}
SIZES |= {"nodes": "nodes", "nnodes": "nodes"}
"""Server arguments that belong under topology in a profile, because ranks and addresses follow from them."""


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
    given = {k: v for k, v in value.items() if k != "name"} if isinstance(value, Mapping) else {axis: value}
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

    def known(self, rule: str, key: str, given: Iterable[Any], allowed: Iterable[str], reason: str) -> None:
        """Report every given word that is not allowed, with a suggestion."""
        words = sorted(allowed)
        for word in given:
            if word not in words:
                close = get_close_matches(str(word), words, n=1)
                remedy = f"Did you mean {close[0]}?" if close else f"Choose from: {', '.join(words) or 'none'}."
                self.error(rule, key, word, reason, remedy)

    def mappings(self, rule: str, entries: Any) -> list[Mapping[str, Any]]:
        """Return the entries of a list that are mappings, and report all others."""
        if not isinstance(entries, list) or not all(isinstance(e, Mapping) for e in entries):
            self.error(rule, rule, entries, "is not a list of mappings", "Write every entry as - {name: value}.")
            return []
        return entries

    def overlay(self, key: str, overlay: Mapping[str, Any]) -> None:
        """Report keys and values that a cell may not change."""
        for part in sorted(MAPPINGS & set(overlay)):
            if not isinstance(overlay[part], Mapping):
                self.error("overlay", f"{key}.{part}", overlay[part], "is not a mapping", "Write it as {name: value}.")
        sizes = overlay.get("topology")
        if isinstance(sizes, Mapping):
            self.known("overlay", f"{key}.topology", sizes, TOPOLOGY_FLAGS, "is not a parallel size")
        if "transport" in overlay:
            self.known("overlay", f"{key}.transport", [overlay["transport"]], TRANSPORTS, "is not a transport")

    def axes(self, axes: Mapping[str, Any]) -> None:
        for name, values in axes.items():
            if not isinstance(values, list) or not values:
                self.error("axes", f"axes.{name}", values, "has no list of values", "Give the axis at least one value.")
                continue
            labels = [label_of(v) for v in values]
            for label in sorted({label for label in labels if labels.count(label) > 1}):
                self.error("axes", f"axes.{name}", label, "is listed twice", "Give each value a different name.")
            for label, value in zip(labels, values, strict=True):
                key = f"axes.{name}[{label}]"
                parts = value if isinstance(value, Mapping) else {}
                if name in MAPPINGS and not isinstance(value, Mapping):
                    self.error("axes", key, value, "is not a mapping", "Write it as {name: value}.")
                elif any(not isinstance(parts[part], Mapping) for part in MAPPINGS & set(parts)):
                    self.overlay(key, parts)
                else:
                    self.overlay(key, overlay_of(name, value))

    def exclude(self, entries: Iterable[Mapping[str, Any]], axes: Mapping[str, Any]) -> None:
        for i, condition in enumerate(entries):
            self.known("exclude", f"exclude[{i}]", condition, axes, "names no axis")
            for axis, wanted in condition.items():
                labels = [label_of(v) for v in (wanted if isinstance(wanted, list) else [wanted])]
                values = axes[axis] if isinstance(axes.get(axis), list) else labels
                have = [label_of(v) for v in values]
                self.known("exclude", f"exclude[{i}].{axis}", labels, have, "is not a value of the axis")

    def workloads(self, workloads: Iterable[Mapping[str, Any]]) -> None:
        needed = [f.name for f in fields(Workload) if f.default is MISSING]
        names = []
        for i, workload in enumerate(workloads):
            key, lacking = f"workloads[{i}]", [n for n in needed if n not in workload]
            allowed = [f.name for f in fields(Workload)]
            self.known("workloads", key, workload, allowed, "is not a key of a workload")
            if lacking:
                remedy = "See ansible-doc gb10.cluster.load_cell."
                self.error("workloads", key, workload, f"lacks {', '.join(lacking)}", remedy)
            elif set(workload) <= set(allowed):
                names.append(Workload(**workload).name)
        for name in sorted({n for n in names if names.count(n) > 1}):
            remedy = "Results are identified by context and concurrency: put the other workload into a separate sweep."
            self.error("workloads", "workloads", name, "is listed twice", remedy)


def check(sweep: Mapping[str, Any]) -> list[Finding]:
    """Return all problems of a sweep file."""
    found = _Check()
    found.known("key", "sweep", sweep, KEYS, "is not a key of a sweep")
    if not isinstance(sweep.get("profile"), str):
        remedy = "Name the profile that the cells vary."
        found.error("profile", "profile", sweep.get("profile"), "is not a profile's name", remedy)
    base = sweep.get("base") or {}
    found.known("base", "base", base, OVERLAY_KEYS, "is not a key that a cell can change")
    found.overlay("base", base)
    axes = sweep.get("axes") or {}
    if not isinstance(axes, Mapping):
        found.error("axes", "axes", axes, "is not a mapping", "Write axes as name: [values].")
        axes = {}
    found.axes(axes)
    found.exclude(found.mappings("exclude", sweep.get("exclude") or []), axes)
    for i, entry in enumerate(found.mappings("include", sweep.get("include") or [])):
        found.known("include", f"include[{i}]", entry, OVERLAY_KEYS | {"labels"}, "is not a key that a cell can change")
        found.overlay(f"include[{i}]", entry)
    if not sweep.get("workloads"):
        found.error("workloads", "workloads", None, "has nothing to measure", "Name at least one: [{concurrency: 1}].")
    found.workloads(found.mappings("workloads", sweep.get("workloads") or []))
    stop = sweep.get("stop") or {}
    found.known("stop", "stop", stop, STOP_RULES, "is not a stop rule")
    for rule in sorted(STOP_RULES & set(stop)):
        if not isinstance(stop[rule], int | float):
            found.error(
                "stop", f"stop.{rule}", stop[rule], "is not a number", "Give hours, or how many cells in a row."
            )
    return found.found
