#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Add the newest SGLang release of the package index, and print what it would change.

    scripts/sglang_newer.py                  look for a release that has no catalogue yet
    scripts/sglang_newer.py 0.5.12           a release by its name, also one that has a catalogue

It writes the release's catalogue, and asks the resolvers of this release and of the one before about every shipped
preset and every recorded launch, on the GPU of its platform. The differences are printed as Markdown, for a
pull request. It downloads torch once (0.6 GB) and each release. Exits 0, also if there is nothing new; 2 if the index
or a release can't be used.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from textwrap import shorten
from typing import Any

from _collection import IMPORT_ROOT, run

sys.path.insert(0, IMPORT_ROOT)

import _sglang_environment
import sglang_catalogue
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.catalogue import load_history
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.check import check
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.models import (
    DRAFT_FLAGS,
    GPUS,
    MODEL_FLAGS,
    Facts,
    Setting,
    facts_for,
    flag_value,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile import Library, merge, topology_argv
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile_files import find_profiles, load_profile
from sglang_profiles import judge_cell
from sglang_rows import load_rows

ROOT = Path(__file__).resolve().parents[1]
ONE = {"tp": 1, "nodes": 1, "pp": 1, "ep": 1}
LAUNCHES = ROOT / "tests/unit/fixtures/sglang/spark-rows.json"


def newest() -> str:
    """Return the newest final release on the package index; raise ReleaseError."""
    command = [sys.executable, "-m", "pip", "index", "versions", "sglang"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    version = done.stdout.partition("(")[2].partition(")")[0]
    if done.returncode or not sglang_catalogue.VERSION.fullmatch(version):
        last = done.stderr.strip().splitlines()[-1:] or ["it named no release"]
        raise sglang_catalogue.ReleaseError(f"the package index can't be asked for sglang: {last[0]}")
    return version


Node = tuple[str, int]
"""The GPU of a preset's or launch's nodes, and how many each of them has."""


def _node(gpu: str, gpus: int, nodes: int) -> Node:
    """Return what a node has; a GB10 is alone in its node."""
    return (gpu, max(1, gpus // max(1, nodes))) if gpu in GPUS and gpu != "gb10" else ("gb10", 1)


def questions(release: str) -> Iterator[tuple[str, Node, dict[str, Any]]]:
    """Yield name, node and question to the resolver of each preset and launch, in the spelling of the release."""
    library = Library.load()
    for name in find_profiles():
        profile = load_profile(name)
        for preset, values in (profile.get("presets") or {"": {}}).items():
            topology = ONE | profile["topology"] | (values.get("topology") or {})
            merged = merge(profile, preset, None)
            node = _node(merged.get("hardware", "gb10"), topology["tp"] * topology["pp"], topology["nodes"])
            argv = [
                "--model-path",
                profile["model"]["repo"],
                *judge_cell(profile, preset, release, library).argv,
                *topology_argv(topology),
            ]
            yield f"{name} {preset}".strip(), node, _question(argv, Facts(profile["model"].get("arch")), library)
    for row in load_rows(LAUNCHES):
        facts = Facts(row.get("arch"), row.get("draft_arch"), row.get("quantization"))
        node = _node(row.get("gpu") or "gb10", row.get("tp") or 1, row.get("nodes") or 1)
        argv = check(library.knowledge, release, row["flags"], facts, Setting(*node)).translated
        yield row["id"], node, _question(argv, facts, library)


def _question(argv: Sequence[str], given: Facts, library: Library) -> dict[str, Any]:
    facts = facts_for(library.models, flag_value(argv, *MODEL_FLAGS), flag_value(argv, *DRAFT_FLAGS), given)
    return _sglang_environment.question(argv, asdict(facts) | {"max_context": None})


def answers(release: str) -> dict[str, dict[str, Any]]:
    """Return a release's answers by the names of the questions; raise ReleaseError or SetupError."""
    asked = {name: (node, json.dumps(question)) for name, node, question in questions(release)}
    by_question: dict[tuple[Node, str], dict[str, Any]] = {}
    for node in sorted({node for node, _question in asked.values()}):
        # Presets and launches that differ in nothing else are asked once.
        once = list(dict.fromkeys(each for each in asked.values() if each[0] == node))
        words = [json.loads(question) for _node, question in once]
        told = _sglang_environment.ask(sglang_catalogue.unpack(release), sglang_catalogue.CACHE, words, *node)
        by_question |= dict(zip(once, told, strict=True))
    return {name: by_question[question] for name, question in asked.items()}


def differences(before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a line per kind of difference, with the presets and launches that have it."""
    kinds: dict[str, list[str]] = {}
    for name, new in after.items():
        old = before[name]
        if _said(old) != _said(new):
            kinds.setdefault(f"{_said(old)} → {_said(new)}", []).append(name)
        if old["verdict"] == new["verdict"]:
            values, others = (dict(_values(answer["changes"])) for answer in (old, new))
            for key in sorted(values.keys() | others.keys()):
                was, becomes = values.get(key, "as given"), others.get(key, "as given")
                if was != becomes:
                    kinds.setdefault(f"`{key}` becomes {was} → {becomes}", []).append(name)
    return [f"- {kind}: {', '.join(names[:5])}{_more(names[5:])}" for kind, names in kinds.items()]


def _values(changes: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, str]]:
    """Yield key and new value of each change, and of each part of a value that has parts."""
    for key, (given, becomes) in changes.items():
        if isinstance(becomes, dict):
            yield from ((f"{key}.{part}", text) for part, text in _values({k: (given, v) for k, v in becomes.items()}))
        else:
            yield key, shorten(repr(becomes), 60, placeholder=" …")


def _said(answer: Mapping[str, Any]) -> str:
    """Return verdict and reason; a list of choices grows with each release, and is not a reason."""
    reason = str(answer["message"]).partition("(choose from")[0]
    return shorten(f"{answer['verdict']} {reason}", 200, placeholder=" …")


def _more(names: Sequence[str]) -> str:
    return f" and {len(names)} others" if names else ""


def flags(release: str) -> dict[str, dict[str, Any]]:
    """Return the flags of a release's catalogue."""
    path = sglang_catalogue.CATALOGUE / f"{release}.json"
    return {flag["flag"]: flag for flag in json.loads(path.read_text(encoding="utf-8"))["flags"]}


def report(before: str, release: str) -> Iterator[str]:
    """Yield the lines of the pull request."""
    old, new = flags(before), flags(release)
    yield f"SGLang {release}, compared with {before}"
    yield ""
    for word, names in (
        ("new", new.keys() - old.keys()),
        ("gone", old.keys() - new.keys()),
        ("changed", {name for name in old.keys() & new.keys() if old[name] != new[name]}),
    ):
        yield f"- {len(names)} flags {word}: {', '.join(f'`{name}`' for name in sorted(names)) or 'none'}"
    rules = [rule for rule in Library.load().knowledge.rules.rules if rule.severity == "error" and rule.verified]
    unread = sum(not Version.parse(release).within(None, rule.verified) for rule in rules)
    yield f"- {unread} of {len(rules)} rules were not checked for it, so that their errors are warnings there"
    told = answers(release)
    verdicts = Counter(answer["verdict"] for answer in told.values())
    yield f"- {len(told)} presets and launches: {', '.join(f'{n} {verdict}' for verdict, n in verdicts.most_common())}"
    unknown = Counter(answer["message"] for answer in told.values() if answer["verdict"] == "unknown")
    yield from (f"  - {count} unknown: {reason}" for reason, count in unknown.most_common())
    yield ""
    yield from differences(answers(before), told) or ["No preset and no launch is judged in another way."]


def main(words: Sequence[str] | None = None) -> int:
    """Add a release and print the differences; return the exit status."""
    parser = argparse.ArgumentParser(description="Add the newest SGLang release, and print what it would change.")
    parser.add_argument("version", nargs="?", help="release on the package index; default: the newest")
    asked = parser.parse_args(words)
    try:
        release = asked.version or newest()
        known = [str(each.version) for each in load_history(sglang_catalogue.CATALOGUE).catalogues]
        if not asked.version and release in known:
            print(f"SGLang {release} is the newest release, and it has a catalogue.")
            return 0
        before = [version for version in known if Version.parse(version) < Version.parse(release)]
        if not before:
            raise ValueError(f"{release} is not newer than any release with a catalogue")
        text = sglang_catalogue.catalogue(release)
        (sglang_catalogue.CATALOGUE / f"{release}.json").write_text(text, encoding="utf-8")
        for line in report(before[-1], release):
            print(line, flush=True)
    except (ValueError, sglang_catalogue.ReleaseError, _sglang_environment.SetupError) as problem:
        print(problem, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    run(main)
