# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check one command line with the release's parser, the rules and the translation. Private to the collection.

``plugins/profiles/published.json`` has the settings and the outcome of each launch. ``scripts/sglang_rows.py --update``
writes it from ``tests/unit/fixtures/sglang/spark-rows.json``, which has the whole command lines and their sources.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import (
    Finding,
    Rule,
    Rules,
    Severity,
    has_errors,
    sort_findings,
)
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version

from .._controller.data import PROFILES
from .argv import parse_flags
from .catalogue import History, Parsed, load_history, translate
from .models import GPUS, Facts, Setting
from .rules import RuleBook, build_context, judge_flags, load_rules

RULES = Rules(
    {
        "model.unknown": Rule(
            "the rules about architectures were not applied", "Name the architecture", "architecture", "info"
        ),
        "published.kernel": Rule(
            "published runs of other models with {value} on {gpus}: {counted}",
            "Try another one if the server fails, or look whether the cause is mended in your image",
            severity="warning",
        ),
        "published.failed": Rule(
            "{lines}",
            "Take the settings of a run that worked, or look whether the cause is mended in your image",
            "command",
            "warning",
        ),
    }
)

SETTINGS = {
    "moe_runner_backend": 8,
    "attention_backend": 8,
    "fp4_gemm_backend": 4,
    "experts_spread": 4,
    "decode_graph": 3,
    "prefill_graph": 2,
    "spec": 3,
    "kv_cache_dtype": 2,
    "gpu": 2,
    "draft_tokens": 1,
    "tp_size": 1,
    "sglang": 1,
}
"""What two launches are compared by, with the weight of a difference: kernels weigh more than sizes and releases."""

KERNELS = ("moe_runner_backend", "attention_backend")

LOGS = 2
"""Logs that show that settings work: a single launch may have worked for a reason that its log does not have."""


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

    def differences(self, other: Run) -> list[str]:
        """Return the names of the settings that differ."""
        mine, others = ({"gpu": run.gpu, **run.settings} for run in (self, other))
        return [name for name in SETTINGS if mine.get(name) != others.get(name)]


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

    ``alike`` are the launches with the same architecture, quantization, runner and attention on a GPU of the same
    family, ``nearest`` those of them that differ least. ``kernels`` are launches of other models with the same runner,
    or with the same attention, on such a GPU, by the name of the setting.
    """

    alike: tuple[Run, ...] = ()
    nearest: tuple[Run, ...] = ()
    differs: tuple[str, ...] = ()
    kernels: Mapping[str, tuple[Run, ...]] = field(default_factory=dict)

    @property
    def proven(self) -> bool:
        """Return whether there are launches with exactly these settings in several logs, all of which worked."""
        logs = {log_of(run.source) for run in self.nearest}
        return len(logs) >= LOGS and not self.differs and all(run.works for run in self.nearest)

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
        found = [f"published runs of {kind} on {_gpus(self.alike)}: {_counted(self.alike)}"]
        if len(self.nearest) < len(self.alike) or self.differs:
            how = f"differ in {', '.join(self.differs)}" if self.differs else "have the same settings"
            found.append(f"the nearest {how}: {_counted(self.nearest)}; {self.nearest[0].source}")
        return found

    @property
    def doubtful(self) -> list[Finding]:
        """Return a warning per kernel with which most launches of other models failed, in several logs.

        A launch of the same model that worked says more than they do.
        """
        found = []
        for name, runs in {} if any(run.works for run in self.alike) else self.kernels.items():
            failed = [run for run in runs if not run.works]
            if len({log_of(run.source) for run in failed}) < LOGS or 2 * len(failed) <= len(runs):
                continue
            value = runs[0].settings[name]
            found.append(RULES.finding("published.kernel", value, key=name, gpus=_gpus(runs), counted=_counted(runs)))
        return found

    @property
    def finding(self) -> Finding | None:
        """Return a warning if no launch like it worked, or none with the same settings.

        What a single log says of another speculation is a note: its failure may be the speculation's.
        """
        judged = self.alike if self.differs else self.nearest
        if not judged or any(run.works for run in judged):
            return None
        lone = len({log_of(run.source) for run in judged}) < LOGS and "spec" in self.differs
        return RULES.finding(
            "published.failed", None, lines="; ".join(self.lines), severity="info" if lone else "warning"
        )


def _gpus(runs: Sequence[Run]) -> str:
    return " and ".join(sorted({run.gpu for run in runs}))


def _counted(runs: Sequence[Run]) -> str:
    works = sum(run.works for run in runs)
    why = Counter(run.outcome for run in runs if run.outcome).most_common(1)
    return f"{works} of {len(runs)} worked" + "".join(f" ({outcome})" for outcome, _times in why)


def _family(gpu: str) -> int:
    """Return the first number of a GPU's compute capability: kernels are compiled for a family."""
    return GPUS[gpu][0] // 10


def search(runs: Sequence[Run], wanted: Run) -> Evidence:
    """Return what the published launches say of a command line, given as a launch."""
    alike = [
        run
        for run in runs
        if (run.arch, run.quant) == (wanted.arch, wanted.quant)
        and _family(run.gpu) == _family(wanted.gpu)
        and not set(run.differences(wanted)) & set(KERNELS)
    ]
    kernels = {
        name: tuple(
            run
            for run in runs
            if run.settings.get(name) == wanted.settings[name]
            and (run.arch, run.quant) != (wanted.arch, wanted.quant)
            and _family(run.gpu) == _family(wanted.gpu)
        )
        for name in KERNELS
        if wanted.settings.get(name, "auto") != "auto"
    }
    if not alike or not wanted.arch:
        return Evidence(kernels=kernels)
    far = {id(run): sum(SETTINGS[name] for name in run.differences(wanted)) for run in alike}
    least = min(far.values())
    nearest = [run for run in alike if far[id(run)] == least]
    differs = dict.fromkeys(name for run in nearest for name in run.differences(wanted))
    return Evidence(tuple(alike), tuple(nearest), tuple(differs), kernels)


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
    said = {one.key.lstrip("-").replace("-", "_") for one in weighed if one.severity != "info"}
    doubtful = [one for one in evidence.doubtful if one.key not in said]
    return [*weighed, *([evidence.finding] if evidence.finding else []), *doubtful]


NAMES = frozenset({"flag.too_new", "flag.renamed", "flag.deprecated", "flag.unknown", "flag.choice"})
"""Parser findings about a flag's name that are dropped when a rule about the same flag explains the problem better."""


@dataclass(frozen=True)
class Knowledge:
    """The data that a check needs: the flags of every release, the rules, and the published launches."""

    history: History
    rules: RuleBook
    published: tuple[Run, ...] = ()

    @classmethod
    def load(cls, profiles: Path, *own: Path) -> Knowledge:
        """Read all from the profiles directory and from own ones; raise ValueError if a file is malformed."""
        history = load_history(profiles / "catalogue", *(directory / "catalogue" for directory in own))
        rules = load_rules(profiles / "rules.json", *(directory / "rules.json" for directory in own))
        return cls(history, rules, load_published(PROFILES / "published.json"))


@dataclass(frozen=True)
class Report:
    """The result of checking one command line for one release."""

    sglang: str
    judged_by: str
    findings: list[Finding]
    translated: list[str]
    context: Mapping[str, Any]
    published: list[str]

    @property
    def accepted(self) -> bool:
        """Return whether no finding is an error."""
        return not has_errors(self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "sglang": self.sglang,
            "judged_by": self.judged_by,
            "accepted": self.accepted,
            "findings": [
                {**f.as_dict(), "message": f.reason, "flag": "--" + f.key.lstrip("-").replace("_", "-")}
                for f in self.findings
            ],
            "translated": self.translated,
            "published": self.published,
        }


def check(
    knowledge: Knowledge, sglang: str, argv: Sequence[str], facts: Facts, setting: Setting, where: str = ""
) -> Report:
    """Check a command line; raise ValueError if ``sglang`` is not a version."""
    version = Version.parse(sglang)
    released, findings = knowledge.history.nearest(version)
    catalogue = released.with_fork(setting.carries)
    parsed = parse_flags(catalogue, knowledge.history, argv)
    items, notes = translate(parsed.items, catalogue, knowledge.history)
    translated = [word for item in items for word in item.argv]
    meant = _with_translations(parsed, parse_flags(catalogue, knowledge.history, translated))
    history, book = knowledge.history, knowledge.rules
    context = build_context(catalogue, history, version, meant, facts, setting, book.groups)
    told = judge_flags(book, context, version, meant.items)
    if facts.arch is None:
        findings.append(RULES.finding("model.unknown", None))
    findings += [finding for finding in parsed.findings if not _explained(finding, told)]
    # the parser already reported unknown flags; keep only the translation's notes
    findings = [*findings, *told, *(n for n in notes if n.severity != "error")]
    runs = knowledge.published
    evidence = search(runs, run_of(context, setting.gpu, "", True, ""))
    findings = weigh(findings, runs, evidence)
    return Report(
        sglang=str(version),
        judged_by=str(catalogue.version),
        findings=sort_findings(replace(finding, where=where or finding.where) for finding in findings),
        translated=translated,
        context=context,
        published=evidence.lines,
    )


def _explained(finding: Finding, told: Sequence[Finding]) -> bool:
    """Tell whether a rule says better what the parser says of a flag. One that only warns does not replace an error."""
    weaker = "error" if finding.severity == "error" else ""
    by_rules = (one for one in told if one.key == finding.key and one.key.startswith("--"))
    return finding.rule in NAMES and any(not weaker or one.severity == weaker for one in by_rules)


def _with_translations(parsed: Parsed, translated: Parsed) -> Parsed:
    """Return the command line with flags of other releases in this release's spelling, so that rules apply to them."""
    written = {item.written for item in parsed.items}
    added = [item for item in translated.items if item.written not in written]
    if all(item.flag is not None for item in parsed.items):
        return parsed
    return replace(parsed, items=[*parsed.items, *added], values=translated.values, refused=translated.refused)


def clean_argv(words: Sequence[str]) -> list[str]:
    """Remove everything up to the words that start the server, so that a whole command can be pasted, or quoted."""
    if len(words) == 1 and " " in words[0]:
        words = shlex.split(words[0])
    for place, word in enumerate(words):
        if word == "sglang.launch_server":
            return list(words[place + 1 :])
        if word == "serve" and words[max(place - 1, 0)].rpartition("/")[2] in ("sglang", "vllm"):
            return serve_argv(words[place + 1 :])
    return list(words)


def serve_argv(words: Sequence[str]) -> list[str]:
    """Return the flags of ``sglang serve``, which takes the model as its first word since 0.5.16."""
    positional = bool(words) and not words[0].startswith("-")
    return ["--model-path", *words] if positional else list(words)
