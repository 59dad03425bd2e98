# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Search the published launches for those that resemble a command line. Private to the collection.

``profiles/published.json`` has the settings and the outcome of each launch. ``scripts/sglang_rows.py --update`` writes
it from ``tests/unit/fixtures/sglang/spark-rows.json``, which has the whole command lines and their sources.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, Severity

SETTINGS = {
    "moe_runner_backend": 8,
    "attention_backend": 8,
    "fp4_gemm_backend": 4,
    "experts_spread": 4,
    "decode_graph": 3,
    "prefill_graph": 2,
    "spec": 3,
    "kv_cache_dtype": 2,
    "draft_tokens": 1,
    "tp_size": 1,
    "sglang": 1,
}
"""What two launches are compared by, with the weight of a difference: kernels weigh more than sizes and releases."""

KERNELS = ("moe_runner_backend", "attention_backend")

FEW, SAME = 3, 2
"""Runs that show whether a runner and an attention backend work with an architecture, and whether these settings do: a
single launch may have failed, or worked, for a reason that its log does not have."""


@dataclass(frozen=True)
class Run:
    """A published launch: GPU, architecture, quantization, ``settings`` by the names in SETTINGS, and what happened.

    ``accepts`` has the flags with values that its image takes although the release does not (``--flag=value``).
    """

    source: str
    gpu: str
    arch: str
    quant: str | None
    settings: Mapping[str, Any]
    works: bool
    outcome: str = ""
    accepts: tuple[str, ...] = ()

    def differences(self, settings: Mapping[str, Any]) -> list[str]:
        """Return the names of the settings that differ."""
        return [name for name in SETTINGS if self.settings.get(name) != settings.get(name)]


@lru_cache(maxsize=4)
def load_published(path: Path) -> tuple[Run, ...]:
    """Read the published launches; raise ValueError if the file is malformed."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return tuple(Run(**{**row, "accepts": tuple(row.get("accepts", ()))}) for row in rows)
    except (OSError, TypeError, ValueError) as problem:
        raise ValueError(f"{path}: not a list of published launches: {problem}") from problem


def run_of(
    context: Mapping[str, Any], gpu: str, source: str, works: bool, outcome: str, accepts: Sequence[str] = ()
) -> Run:
    """Return a launch by the context of its rules."""
    settings = {name: context.get(name) for name in SETTINGS if name in context}
    settings |= {"experts_spread": (context.get("ep_run") or 1) > 1, "draft_tokens": context.get("draft_tokens_run")}
    kept = {name: settings[name] for name in SETTINGS if settings.get(name) is not None}
    return Run(source, gpu, context["arch"] or "", context["quant"], kept, works, outcome, tuple(accepts))


def as_row(run: Run) -> dict[str, Any]:
    """Return a launch as it is written into the file."""
    return {name: value for name, value in asdict(run).items() if value not in ("", ())}


@dataclass(frozen=True)
class Evidence:
    """What published launches say of a command line: lines for people, a finding or none, and whether one like it ran.

    ``alike`` are the launches with the same architecture, quantization, runner and attention on the same GPU,
    ``nearest`` those of them that differ least.
    """

    alike: tuple[Run, ...] = ()
    nearest: tuple[Run, ...] = ()
    differs: tuple[str, ...] = ()

    @property
    def proven(self) -> bool:
        """Return whether there are launches with exactly these settings in several logs, all of which worked."""
        logs = {log_of(run.source) for run in self.nearest}
        return len(logs) >= SAME and not self.differs and all(run.works for run in self.nearest)

    @property
    def lines(self) -> list[str]:
        """Return what was found for people; nothing if no published launch resembles the command line."""
        if not self.alike:
            return []
        first = self.alike[0]
        runner, attention = (
            first.settings.get(name, "default") for name in ("moe_runner_backend", "attention_backend")
        )
        kind = f"{first.arch}{f' ({first.quant})' if first.quant else ''}, runner {runner}, attention {attention}"
        found = [f"published runs of {kind} on {first.gpu}: {_counted(self.alike)}"]
        if len(self.nearest) < len(self.alike) or self.differs:
            how = f"differ in {', '.join(self.differs)}" if self.differs else "have the same settings"
            found.append(f"the nearest {how}: {_counted(self.nearest)}; {self.nearest[0].source}")
        return found

    @property
    def finding(self) -> Finding | None:
        """Return a warning if no such launch worked."""
        few = len(self.alike) >= FEW and not any(run.works for run in self.alike)
        same = len(self.nearest) >= SAME and not self.differs and not any(run.works for run in self.nearest)
        if not (few or same):
            return None
        remedy = "Take the settings of a run that worked, or look whether the cause is mended in your image"
        return Finding("warning", "published.failed", "command", None, "; ".join(self.lines), remedy)


def _counted(runs: Sequence[Run]) -> str:
    works = sum(run.works for run in runs)
    why = next((run.outcome for run in runs if not run.works and run.outcome), "")
    return f"{works} of {len(runs)} worked" + (f" (a failure: {why})" if why else "")


def search(runs: Sequence[Run], wanted: Run) -> Evidence:
    """Return what the published launches say of a command line, given as a launch."""
    alike = [
        run
        for run in runs
        if (run.gpu, run.arch, run.quant) == (wanted.gpu, wanted.arch, wanted.quant)
        and not set(run.differences(wanted.settings)) & set(KERNELS)
    ]
    if not alike or not wanted.arch:
        return Evidence()
    far = {id(run): sum(SETTINGS[name] for name in run.differences(wanted.settings)) for run in alike}
    least = min(far.values())
    nearest = [run for run in alike if far[id(run)] == least]
    differs = dict.fromkeys(name for run in nearest for name in run.differences(wanted.settings))
    return Evidence(tuple(alike), tuple(nearest), tuple(differs))


def log_of(source: str) -> str:
    """Return the file of a source without line and commit: launches of one log are not independent."""
    return re.sub(r":\d+@\w+$", "", source)


def weigh(findings: Sequence[Finding], runs: Sequence[Run], evidence: Evidence) -> list[Finding]:
    """Return the findings as the published launches bear them out.

    A warning that also fits launches of exactly these settings, all of which worked, is a note. A value that the image
    of a launch that worked accepts, although the release does not, is a warning.
    """
    accepted = {word: run.source for run in runs if run.works for word in run.accepts}
    weighed = []
    for finding in findings:
        source = accepted.get(f"{finding.key}={finding.value}")
        severity: Severity = finding.severity
        reason = finding.reason
        if finding.rule == "flag.choice" and source:
            severity, reason = "warning", f"{reason}, but the changed image of a published run does ({source})"
        elif finding.severity == "warning" and evidence.proven and finding.source:
            severity, reason = "info", f"{reason}; published runs with these settings worked"
        weighed.append(replace(finding, severity=severity, reason=reason))
    return [*weighed, *([evidence.finding] if evidence.finding else [])]
