#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the rules with launches whose outcome is known, yours or published ones.

    scripts/sglang_rows.py tests/unit/fixtures/sglang/spark-rows.json
    scripts/sglang_rows.py --json my-launches.json
    scripts/sglang_rows.py --update FILE     write into rules.json on how many launches each rule was tried, and into
                                             published.json what each launch had set and what happened
    scripts/sglang_rows.py --rule attn.gemma4.allow FILE    the launches on which a rule rests

The file is a JSON list, or an object with a list "rows". A row has id, sglang (the version), flags (a list of words)
and truth ("works" or "fails"); arch, draft_arch, quantization, gpu, gpus_per_node, carries, env, evidence, source and
fork are optional, as in the file above. A launch is judged without the published launches of its own log. "cause" is a
regular expression for the true reason of a failure that the flags decide: the score counts the errors and warnings that
name it, for each "set" of launches apart. Exits 0 when every launch that worked is accepted or says that its image is a
fork, 1 otherwise, 2 when the file is unusable.
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import Any

from _collection import IMPORT_ROOT, run

sys.path.insert(0, IMPORT_ROOT)

from ansible_collections.gb10.cluster.plugins.module_utils._common.plain import align
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.data import PROFILES
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.check import (
    Knowledge,
    Report,
    as_row,
    log_of,
    run_of,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.models import Facts, Model, Setting, load_models
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.rules import Rule, conditions_met
from sglang_check import judge_line


@dataclass(frozen=True)
class Outcome:
    """The outcome of one launch, and the collection's findings about it."""

    id: str
    works: bool
    report: Report
    evidence: str = ""
    fork: str = ""
    cause: str = ""
    group: str = "recorded"

    def told(self, *severities: str) -> tuple[str, ...]:
        """Return the rules that applied with one of these severities, each once."""
        return tuple(sorted({finding.rule for finding in self.report.findings if finding.severity in severities}))

    @property
    def verdict(self) -> str:
        """Return refused, warned or silent."""
        return "refused" if self.told("error") else "warned" if self.told("warning") else "silent"

    @property
    def warnings(self) -> int:
        """Return the number of warnings."""
        return sum(finding.severity == "warning" for finding in self.report.findings)

    @property
    def named(self) -> bool:
        """Return whether an error or a warning names the true reason."""
        told = [finding.reason for finding in self.report.findings if finding.severity != "info"]
        return bool(self.cause) and any(re.search(self.cause, reason, re.IGNORECASE) for reason in told)


def load_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file; raise ValueError when it can't be used."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        rows = data["rows"] if isinstance(data, dict) else data
        wrong = [str(row.get("id", "?")) for row in rows if not well_formed(row)]
    except OSError as problem:
        raise ValueError(f"{path}: {problem.strerror}. Name a file that can be read.") from problem
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"{path}: not a list of launches with id, sglang, flags and truth: {problem}") from problem
    if wrong or not rows:
        reason = "flags and carries are lists of texts, env is a mapping, sglang is a version, truth is works or fails,"
        raise ValueError(f"{path}: {reason} the others are texts: {', '.join(wrong) or 'there is no launch'}")
    return list(rows)


def well_formed(row: Mapping[str, Any]) -> bool:
    """Return whether a row has its values in the right form."""
    lists = [row["flags"], row.get("carries") or []]
    texts = all(isinstance(words, list) and all(isinstance(word, str) for word in words) for words in lists)
    form = isinstance(row["sglang"], str) and isinstance(row.get("env") or {}, dict) and "id" in row
    names = all(
        isinstance(row.get(name), str | None) for name in ("arch", "draft_arch", "quantization", "fork", "cause", "set")
    )
    return bool(texts and form and names and row["flags"]) and row["truth"] in ("works", "fails")


def judge_row(row: Mapping[str, Any], knowledge: Knowledge, models: Mapping[str, Model]) -> Outcome:
    """Check one launch as ``sglang_check.py`` does; raise ValueError if its version is invalid."""
    own = log_of(row.get("source") or "")
    knowledge = replace(knowledge, published=tuple(run for run in knowledge.published if log_of(run.source) != own))
    facts = Facts(row.get("arch"), row.get("draft_arch"), row.get("quantization"))
    env = {key: str(value) for key, value in (row.get("env") or {}).items()}
    gpu, gpus = row.get("gpu") or "gb10", row.get("gpus_per_node") or 1
    setting = Setting(gpu, gpus, carries=tuple(row.get("carries") or ()), env=env)
    report, _memory = judge_line(knowledge, models, row["sglang"], row["flags"], facts, setting)
    return Outcome(
        str(row["id"]),
        row["truth"] == "works",
        report,
        row.get("evidence") or "",
        row.get("fork") or "",
        row.get("cause") or "",
        row.get("set") or "recorded",
    )


def count_rules(outcomes: Sequence[Outcome]) -> dict[tuple[str, str], dict[str, int]]:
    """Return for each rule and severity the number of launches to which it applied, by outcome."""
    counts: Counter[tuple[str, str, bool]] = Counter()
    for outcome in outcomes:
        counts.update({(finding.rule, finding.severity, outcome.works) for finding in outcome.report.findings})
    named = sorted({key[:2] for key in counts})
    return {key: {"works": counts[*key, True], "fails": counts[*key, False]} for key in named}


def runs_of_rule(rule: Rule, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the launches to which one rule applies."""
    found = []
    for outcome in outcomes:
        context, version = outcome.report.context, Version.parse(outcome.report.sglang)
        named = any(flag in rule.flags for flag in context["options"])
        if version.within(rule.first, rule.last) and (named or conditions_met(rule, context)):
            found.append(outcome)
    return found


def try_rule(rule: Rule, outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Return the number of launches to which one rule applies, by outcome."""
    works = [outcome.works for outcome in runs_of_rule(rule, outcomes)]
    return {"works": sum(works), "fails": len(works) - sum(works)}


def tidy(evidence: str) -> str:
    """Return what happened without the number of the row in its log, rates, and marks of footnotes."""
    return re.sub(r"^row \w+: |[;,] *(n=\d+|\d+∥).*$|[†‡]", "", evidence).strip(" ;")


def as_published(row: Mapping[str, Any], outcome: Outcome) -> dict[str, Any]:
    """Return a launch as published.json has it."""
    context = outcome.report.context
    refused = [finding for finding in outcome.report.findings if finding.rule == "flag.choice"]
    accepts = [f"{finding.key}={finding.value}" for finding in refused] if outcome.works else []
    happened = "" if outcome.works else shorten(tidy(outcome.evidence), 110, placeholder=" …")
    source = str(row.get("source") or outcome.id)
    return as_row(run_of(context, str(row.get("gpu") or "gb10"), source, outcome.works, happened, accepts))


def update_published(path: Path, rows: Sequence[Mapping[str, Any]], outcomes: Sequence[Outcome]) -> None:
    """Write what each launch had set and what happened, a line per launch."""
    published = [as_published(row, outcome) for row, outcome in zip(rows, outcomes, strict=True)]
    lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in published)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def update_rules(path: Path, knowledge: Knowledge, outcomes: Sequence[Outcome]) -> None:
    """Write the number of launches beside every rule of a rules file."""
    data = json.loads(path.read_text(encoding="utf-8"))
    for entry, rule in zip(data["rules"], knowledge.rules.rules, strict=True):
        entry["tried"] = try_rule(rule, outcomes)
    text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    counts = re.compile(r'\{\s+("works": \d+),\s+("fails": \d+)\s+\}')
    path.write_text(counts.sub(r"{\1, \2}", text), encoding="utf-8")


def score_set(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the score of a set of launches: warnings per launch that worked, refusals of them, and causes named."""
    works, decided = [o for o in outcomes if o.works], [o for o in outcomes if o.cause]
    return {
        "works": len(works),
        "warnings_per_launch": round(sum(o.warnings for o in works) / max(len(works), 1), 2),
        "refused": sum(o.verdict == "refused" and not o.fork for o in works),
        "causes": len(decided),
        "named": sum(o.named for o in decided),
        "not_named": [o.id for o in decided if not o.named],
    }


def summarize(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the score as plain data."""
    works, fails = [o for o in outcomes if o.works], [o for o in outcomes if not o.works]
    return {
        "sets": {name: score_set([o for o in outcomes if o.group == name]) for name in {o.group: 0 for o in outcomes}},
        "works": dict(Counter(outcome.verdict for outcome in works)),
        "fails": dict(Counter(outcome.verdict for outcome in fails)),
        "works_refused": [{"id": o.id, "rules": o.told("error"), "fork": o.fork} for o in works if o.told("error")],
        "fails_silent": [{"id": o.id, "evidence": o.evidence} for o in fails if o.verdict == "silent"],
        "rules": [
            {"rule": rule, "severity": severity, **count} for (rule, severity), count in count_rules(outcomes).items()
        ],
    }


def show(score: Mapping[str, Any]) -> None:
    for name, part in score["sets"].items():
        told = (
            f"{name}: {part['works']} launches worked, {part['warnings_per_launch']} warnings each, {part['refused']}"
        )
        print(f"{told} refused; the true reason is named for {part['named']} of {part['causes']} failures")
        print(*(f"  not named: {each}" for each in part["not_named"]), sep="\n", end="\n" if part["not_named"] else "")
    for truth in ("works", "fails"):
        counted = ", ".join(f"{number} {verdict}" for verdict, number in sorted(score[truth].items()))
        print(f"launches with outcome {truth!r}: {counted or 'none'}")
    for row in score["works_refused"]:
        reason = f"; the image is a fork: {row['fork']}" if row["fork"] else ""
        print(f"worked, but is refused by {', '.join(row['rules'])}: {row['id']}{reason}")
    for row in score["fails_silent"]:
        print(f"failed, and no rule speaks against it: {row['id']} ({row['evidence']})")
    rules = [[r["rule"], r["severity"], str(r["works"]), str(r["fails"])] for r in score["rules"]]
    print("", *align([["rule", "severity", "worked", "failed"], *rules]), sep="\n")


def main(words: Sequence[str] | None = None) -> int:
    """Score one file; return the exit status."""
    parser = argparse.ArgumentParser(description="Compare the rules with launches whose outcome is known.")
    parser.add_argument("file", type=Path, help="JSON file of launches")
    parser.add_argument("--profiles", type=Path, default=PROFILES, help="directory of catalogue, rules and models")
    parser.add_argument("--update", action="store_true", help="write the counts into rules.json, and published.json")
    parser.add_argument("--json", action="store_true", help="answer as one JSON object")
    parser.add_argument("--rule", metavar="ID", help="only list the launches to which this rule applies")
    asked = parser.parse_args(words)
    try:
        rows = load_rows(asked.file)
        knowledge, models = Knowledge.load(asked.profiles), load_models(asked.profiles / "models")
        outcomes = [judge_row(row, knowledge, models) for row in rows]
    except ValueError as problem:
        print(problem if str(asked.file) in str(problem) else f"{asked.file}: {problem}", file=sys.stderr)
        return 2
    score = summarize(outcomes)
    if asked.rule:
        rules = [rule for rule in knowledge.rules.rules if rule.id == asked.rule]
        runs = {run.id: run for rule in rules for run in runs_of_rule(rule, outcomes)}
        print(*(f"{'worked' if run.works else 'failed'}: {name}" for name, run in runs.items()), sep="\n")
    elif asked.update:
        update_rules(asked.profiles / "rules.json", knowledge, outcomes)
        update_published(asked.profiles / "published.json", rows, outcomes)
    elif asked.json:
        print(json.dumps(score, indent=1))
    else:
        show(score)
    return 1 if any(not row["fork"] for row in score["works_refused"]) else 0


if __name__ == "__main__":
    run(main)
