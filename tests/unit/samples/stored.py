# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare all that code says about many cases with a stored text, so that each number, name and order in it counts.

After an intended change run the test with STORE=1 in the environment, which writes the text, and read the difference.
"""

import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, Rule, Rules

STORED = Path(__file__).parents[1] / "fixtures" / "stored"


def compare(name: str, found: Mapping[str, Iterable[object]]) -> None:
    """Compare the lines of each case with those in the file of this name."""
    text = "".join(f"{title}\n" + "".join(f"    {line}\n" for line in lines) for title, lines in found.items())
    path = STORED / f"{name}.txt"
    if os.environ.get("STORE"):
        path.write_text(text, encoding="utf-8")
    assert text.splitlines() == path.read_text(encoding="utf-8").splitlines()


class Once:
    """Gives each sentence in full once, and after that its beginning: a stored text has all words, and stays short."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def __call__(self, text: str) -> str:
        shown = f"{text[:40]}…" if text in self._known and len(text) > 40 else text
        self._known.add(text)
        return shown


class _Words(str):
    """A sentence that consists of its words: what the code gives, not how a rule puts it."""

    def format(self, *_args: object, **words: object) -> str:
        given = {key: value for key, value in words.items() if key not in ("key", "severity", "source", "value")}
        return self + "; ".join(f"{key}: {value}" for key, value in sorted(given.items()))


def say_words(monkeypatch: pytest.MonkeyPatch, *every: Rules) -> None:
    """Let the findings of these rules, or of all, give their words as the reason."""

    def worded(known: Mapping[str, Rule], cases: bool) -> Mapping[str, Rule]:
        return {
            name: Rule(_Words(f"({case}) " if cases and case else ""), "", rule.key, rule.severity, source=rule.source)
            for name, rule in known.items()
            for case in [name.partition("/")[2]]
        }

    for rules in every:
        monkeypatch.setattr(rules, "rules", worded(rules.all, cases=False))
    if not every:
        written = Rules.all
        monkeypatch.setattr(Rules, "all", property(lambda rules: worded(written.__get__(rules), cases=True)))


def said(findings: Iterable[Finding]) -> list[str]:
    """Return a line for each finding."""
    return [f"{f.severity} {f.rule} {f.where}: {f.key} = {f.value!r}: {f.reason}" for f in findings]


def flat(value: Any, path: str = "") -> list[str]:
    """Return plain data as one line per part that has no mappings in it."""
    parts = list(value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ())
    if path and not any(_has_mapping(part) for _key, part in parts):
        plain = value.values() if isinstance(value, Mapping) else [value]
        return [f"{path}: {', '.join(map(str, plain))}"]
    return [line for key, part in parts for line in flat(part, f"{path}.{key}".lstrip("."))]


def _has_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, list) and any(map(_has_mapping, value)))


def objects(cases: Mapping[str, list[dict[str, Any]]]) -> dict[str, list[str]]:
    """Return the objects of each case as YAML.

    Of all objects of a kind except the first only the lines by which it differs from the one that is most like it.
    """
    before: dict[str, list[list[str]]] = {}
    said: dict[str, list[str]] = {}
    for case, made in cases.items():
        lines = said.setdefault(case, [])
        for one in made:
            text = yaml.safe_dump(one, width=1000, default_flow_style=None).splitlines()
            known = before.setdefault(one["kind"], [])
            other = min(known, key=lambda old: len({*old} ^ {*text}), default=[])
            known.append(text)
            title, alike = f"{one['kind']} {one['metadata']['name']}", lines and lines[-1].startswith("as before: ")
            changes = difflib.SequenceMatcher(None, other, text, False).get_opcodes()
            if changes and all(tag == "equal" for tag, *_places in changes):
                lines[-1:] = [f"{lines[-1]}, {title}"] if alike else [*lines[-1:], f"as before: {title}"]
                continue
            lines.append(title)
            for tag, left, leave, come, last in changes:
                if tag != "equal":
                    lines += [f"- {line}" for line in other[left:leave] if leave - left != last - come]
                    lines += [f"+ {line}" for line in text[come:last]]
    return said
