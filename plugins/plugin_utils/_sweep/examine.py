# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan a sweep file and find everything that is wrong with it, together with its profile. Private to the collection."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, has_errors

from .._load.stats import Workload
from .._rules import Rules
from .._sglang.profile import Library, ResolvedProfile, resolve
from .._sglang.profile_checks import override_findings
from .._sglang.profile_files import load_profile, override_problems
from .plan import Resolved, SweepPlan, check, plan


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


_finding = Rules("_sweep").finding

CELLS = ("profile", "base", "axes", "include")
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
        if slots is not None and streams > slots:
            found.append(_finding("sweep.slots", streams, number=number, slots=slots))
        if limit is not None and length > limit:
            found.append(_finding("sweep.context", context, number=number, length=length, limit=limit))
    return found


class _Cells:
    """Resolves the cells of one sweep, and keeps the results and the mistakes of the file."""

    def __init__(
        self, profile: Mapping[str, Any], workloads: Sequence[Mapping[str, Any]], version: str, library: Library
    ) -> None:
        self.profile, self.workloads, self.version, self.library = profile, workloads, version, library
        self.resolved: dict[str, ResolvedProfile] = {}
        self.wrong: dict[str, Finding] = {}

    def __call__(self, overlay: Mapping[str, Any]) -> Resolved:
        findings = override_findings(override_problems(serving_of(overlay)["overrides"]), "")
        key = ""
        if not findings:
            try:
                key, resolved = line_of(self.profile, overlay, self.version, self.library)
            except ValueError as error:
                findings = [_finding("profile.override", overlay.get("preset"), error=error)]
            else:
                self.resolved[key] = resolved
                findings = [*resolved.findings, *workload_findings(resolved, self.workloads)]
        self.wrong |= {str(f): f for f in findings if f.rule in FILE_RULES and f.severity == "error"}
        return Resolved(key, findings)


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
    unusable = {f.rule.partition(".")[2] for f in findings} & {*CELLS, "sweep"}
    if profile is None or unusable - {"sweep"}:
        return Examined(SweepPlan(str(name), []), {}, findings)
    wrong = has_errors(findings)
    cells = _Cells(profile, [] if wrong else sweep["workloads"], version, Library.load(directories))
    only = {key: sweep[key] for key in CELLS if key in sweep} | {"workloads": [{"concurrency": 1}]}
    planned = plan(only if wrong else sweep, cells)
    findings += cells.wrong.values()
    if not findings and not planned.cells:
        findings.append(_finding("sweep.exclude", None))
    if not findings and not planned.count("run"):
        reasons = [Finding(**reason) for cell in planned.cells for reason in cell.reasons]
        findings += {str(f): f for f in reasons if f.severity == "error"}.values()
    return Examined(planned, cells.resolved, findings)
