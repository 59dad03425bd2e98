# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan a sweep: list its cells, find the invalid ones, and find those with the command line of another cell.

Pure: the caller passes in the function that resolves a cell, so that the plan needs neither profiles nor a cluster.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from math import prod
from pathlib import Path
from typing import Any, Literal

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, has_errors

from .._controller.data import Rules
from .._sglang.profile import Library, ResolvedProfile, resolve
from .._sglang.profile_files import TOPOLOGY_FLAGS, load_profile, override_findings
from .._sglang.schema import load_schema, violations
from .stats import Workload

_finding = Rules("_bench").finding

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

    def error(self, rule: str, value: Any, **words: Any) -> None:
        self.found.append(_finding(rule, value, **words))

    def schema(self, data: Any, schema: Mapping[str, Any], at: str = "") -> bool:
        """Report every violation of the schema; return whether there was none."""
        before = len(self.found)
        for problem in violations(data, schema):
            place = ".".join(part for part in (at, problem.place) if part) or "sweep"
            wanted = problem.wanted or "it as docs/benchmarks.md describes"
            told = _finding("sweep.schema", problem.value, key=place, problem=problem.reason, wanted=wanted)
            self.found.append(replace(told, rule=f"sweep.{place.partition('.')[0]}"))
        return len(self.found) == before

    def known(self, key: str, given: Iterable[Any], allowed: Iterable[str], rule: str) -> None:
        """Report every given word that is not allowed, with a suggestion."""
        words = sorted(allowed)
        for word in given:
            if word not in words:
                close = get_close_matches(str(word), words, n=1)
                remedy = f"Did you mean {close[0]}?" if close else f"Choose from: {', '.join(words) or 'none'}."
                self.error(rule, word, key=key, hint=remedy)

    def twice(self, rule: str, key: str, names: list[str]) -> None:
        for name in sorted({name for name in names if names.count(name) > 1}):
            self.error(rule, name, key=key)

    def axis(self, name: str, values: Any) -> None:
        if not isinstance(values, list):
            return
        labels = [label_of(value) for value in values]
        if "" in labels:
            self.error("sweep.axes/unnamed", "", key=f"axes.{name}")
        self.twice("sweep.axes/twice", f"axes.{name}", labels)
        for label, value in zip(labels, values, strict=True):
            parts = value if isinstance(value, Mapping) else {name: value}
            misplaced = {part: parts[part] for part in MAPPINGS & set(parts) if not isinstance(parts[part], Mapping)}
            self.schema(misplaced or overlay_of(name, value), OVERLAY, f"axes.{name}[{label}]")

    def exclude(self, entries: Any, axes: Mapping[str, Any]) -> None:
        for i, condition in enumerate(entries if isinstance(entries, list) else []):
            if not isinstance(condition, Mapping):
                continue
            self.known(f"exclude[{i}]", condition, axes, "sweep.exclude/axis")
            for axis, wanted in condition.items():
                labels = [label_of(v) for v in (wanted if isinstance(wanted, list) else [wanted])]
                values = axes[axis] if isinstance(axes.get(axis), list) else labels
                self.known(f"exclude[{i}].{axis}", labels, [label_of(v) for v in values], "sweep.exclude/value")


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
        found.error("sweep.axes/many", None, cells=cells, most=CELLS)
    if valid:
        found.twice("sweep.workloads/twice", "workloads", [Workload(**w).name for w in sweep["workloads"]])
    return found.found


Status = Literal["run", "invalid", "duplicate"]


@dataclass(frozen=True)
class Resolved:
    """What a cell starts: ``key`` is equal for two cells with the same command line, variables, image and transport."""

    key: str
    findings: Sequence[Finding] = ()
    nodes: int = 0


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
    """All cells of a sweep in execution order."""

    name: str
    cells: list[Cell]

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
    """Return the cells of a sweep that `check` accepts: the product of its axes, minus ``exclude``, plus ``include``.

    ``resolve`` takes a cell's overlay on the sweep's ``base``. If several cells have the same key, the first one runs
    and the others are its duplicates. Whether two command lines are one engine is for the image to say when the second
    one's turn comes.
    """
    result = SweepPlan(str(sweep.get("name", "sweep")), [])
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


# Plan a sweep file and find everything that is wrong with it, together with its profile.


def serving_of(overlay: Mapping[str, Any], sglang_version: str = "") -> dict[str, Any]:
    """Return preset, version, transport and overrides of role serving_plan for a cell; the version is a default."""
    chosen = {"preset": "", "sglang_version": sglang_version, "transport": "roce"}
    overrides = {key: value for key, value in overlay.items() if key not in chosen}
    return {key: overlay.get(key, default) for key, default in chosen.items()} | {"overrides": overrides}


def line_of(
    profile: Mapping[str, Any], overlay: Mapping[str, Any], sglang_version: str = "", library: Library | None = None
) -> tuple[str, ResolvedProfile]:
    """Return a key that is equal for two cells with the same command line, and the resolved profile.

    The part before the first ``|`` is a digest of the arguments and of SGLang's own variables, in any order; transport,
    image and other variables follow. Raises ValueError for an unknown preset or version.
    """
    cell = serving_of(overlay, sglang_version)
    resolved = resolve(profile, cell["preset"] or None, cell["sglang_version"] or None, cell["overrides"], library)
    flags = sorted(shlex.join(resolved.argv).split(" --"))
    own = {name: value for name, value in resolved.env.items() if name.startswith("SGLANG_")}
    others = {name: value for name, value in resolved.env.items() if name not in own}
    files = [resolved.model["path"], resolved.model["revision"], *(patch["name"] for patch in resolved.patches)]
    line = json.dumps([files, flags, resolved.topology, own, resolved.sglang_version], sort_keys=True)
    digest = hashlib.sha256(line.encode()).hexdigest()[:16]
    return "|".join([digest, cell["transport"], resolved.image, json.dumps(others, sort_keys=True)]), resolved


CELL_KEYS = ("profile", "base", "axes", "include")
"""Keys of a sweep on which its cells depend, besides exclude."""

FILE_RULES = frozenset({"flag.unknown", "profile.override"})
"""Findings about a cell that are mistakes in the file: the cell must not be left out silently."""


@dataclass(frozen=True)
class Examined:
    """A planned sweep: its cells, the resolved profile of each command line, and all findings about the file."""

    planned: SweepPlan
    resolved: Mapping[str, ResolvedProfile]
    findings: list[Finding]


def workload_findings(resolved: ResolvedProfile, workloads: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Report workloads that the cell's server can't run as written: too many streams, or too long a context."""
    slots = resolved.server_args.get("max_running_requests")
    limit = resolved.server_args.get("context_length") or resolved.model.get("max_context")
    found = []
    if resolved.server_args.get("is_embedding"):
        found.append(_finding("sweep.embedding", True))
    for number, workload in enumerate(Workload(**each) for each in workloads):
        streams, context = workload.concurrency, workload.context_tokens
        length = context + workload.max_tokens
        if 0 < workload.requests < streams:
            found.append(_finding("sweep.requests", workload.requests, number=number, streams=streams))
        # A value of another type has a finding of its own.
        if isinstance(slots, int) and streams > slots:
            found.append(_finding("sweep.slots", streams, number=number, slots=slots))
        if isinstance(limit, int) and length > limit:
            found.append(_finding("sweep.context", context, number=number, length=length, limit=limit))
    return found


def examine(sweep: Any, directories: Sequence[Path | str] = (), version: str = "") -> Examined:
    """Plan a sweep and return all findings; ``directories`` are the user's own directories of profiles.

    The cells are also resolved if the file has mistakes elsewhere, so that all findings appear at once.
    """
    findings = check(sweep)
    name = sweep.get("profile") if isinstance(sweep, Mapping) else None
    profile = None
    if isinstance(name, str) and name:
        try:
            profile = load_profile(name, directories)
        except ValueError as error:
            findings.append(_finding("sweep.profile", name, error=error))
    unusable = {f.rule.partition(".")[2] for f in findings} & {*CELL_KEYS, "sweep"}
    if profile is None or unusable - {"sweep"}:
        return Examined(SweepPlan(str(name), []), {}, findings)
    known, wrong, library = profile, has_errors(findings), Library.load(directories)
    workloads = [] if wrong else sweep["workloads"]
    profiles: dict[str, ResolvedProfile] = {}
    mistakes: dict[str, Finding] = {}

    def resolved(overlay: Mapping[str, Any]) -> Resolved:
        found, key = override_findings(serving_of(overlay)["overrides"], ""), ""
        if not found:
            try:
                key, line = line_of(known, overlay, version, library)
            except ValueError as error:
                found = [_finding("profile.override", overlay.get("preset"), error=error)]
            else:
                profiles[key], found = line, [*line.findings, *workload_findings(line, workloads)]
        mistakes.update({str(f): f for f in found if f.rule in FILE_RULES and f.severity == "error"})
        return Resolved(key, found)

    planned = plan({key: sweep[key] for key in CELL_KEYS if key in sweep} if wrong else sweep, resolved)
    findings += mistakes.values()
    if not findings and not planned.cells:
        findings.append(_finding("sweep.exclude", None))
    if not findings and not planned.count("run"):
        reasons = [Finding(**reason) for cell in planned.cells for reason in cell.reasons]
        findings += {str(f): f for f in reasons if f.severity == "error"}.values()
    return Examined(planned, profiles, findings)
