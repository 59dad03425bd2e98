# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check one command line with the release's parser, the rules and the translation. Private to the collection."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, has_errors, sort_findings
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version

from .._paths import PROFILES
from .argv import parse_flags
from .catalogue import History, load_history
from .context import build_context
from .facts import Facts, Setting
from .items import Parsed
from .published import Run, load_published, run_of, search, weigh
from .resolve import Change, resolved_key
from .rules import RuleBook, judge_flags, load_rules
from .translate import translate

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
    changes: list[Change]
    context: Mapping[str, Any]
    values: Mapping[str, Any]
    env: Mapping[str, str]
    published: list[str]

    @property
    def accepted(self) -> bool:
        """Return whether no finding is an error."""
        return not has_errors(self.findings)

    @cached_property
    def engine(self) -> str:
        """Return a key that is equal for two command lines exactly when they configure the same engine."""
        return resolved_key(self.values, self.changes, self.env)

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
            "changes": [{"key": c.key, "given": c.given, "becomes": c.becomes, "why": c.why} for c in self.changes],
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
    context, changes = build_context(catalogue, history, version, meant, facts, setting, book.groups)
    told = judge_flags(book, context, version, meant.items, catalogue, history)
    if facts.arch is None:
        reason = "the rules about architectures were not applied"
        findings.append(Finding("info", "model.unknown", "architecture", None, reason, "Name the architecture"))
    named = {finding.key for finding in told if finding.key.startswith("--")}
    findings += [finding for finding in parsed.findings if finding.rule not in NAMES or finding.key not in named]
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
        changes=changes,
        context=context,
        values=meant.values,
        env=setting.env,
        published=evidence.lines,
    )


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
