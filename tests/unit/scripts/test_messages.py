# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the pages of messages have every finding, also those that code words itself."""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path

import pytest
from _messages import Message, messages

ROOT = Path(__file__).resolve().parents[3]

LIMIT = """
LIMIT = 8
LATER = "up to {now} of " + str(2)


def told(value, last):
    if value is None:
        return [Finding("error", "port.missing", "port", None, "is missing", "Add it")]
    why = "is too large"
    if value < 0:
        why, what = "is negative", "Write 0 or more"
        return [Finding("error", "port.negative", "port", value, why, what)]
    hint = f"Write {last.name}" if last else "Remove it"
    return [Finding("warning" if last else "info", "port.large", "port", value, f"{why}: {LIMIT} is the limit", hint)]
"""
CALLERS = """
class Check:
    def report(self, severity, rule, reason, remedy="Nothing to do"):
        name = "error" if severity == "error" else "note"
        self.found.append(Finding(severity, f"gate.{name}.{rule}", "gate", 1, reason, remedy))

    def twice(self, rule, names):
        self.report("error", rule, "is listed {twice}", *self.fix(names))

    def run(self, text):
        self.twice("names", [])
        self.report("info", "open", str(text), remedy="Close it")
        self.report("info", "shut", "is shut")

    def fix(self, names):
        return "Give it once", "unused"
"""


def read(tmp_path: Path, text: str) -> list[Message]:
    path = tmp_path / "code.py"
    path.write_text(text)
    return messages(path)


def test_sentences_come_from_the_assignments_that_reach_a_finding(tmp_path: Path) -> None:
    assert read(tmp_path, LIMIT) == [
        Message("port.large", "warning or info", "is too large: 8 is the limit", "Write {name} / Remove it"),
        Message("port.missing", "error", "is missing", "Add it"),
        Message("port.negative", "error", "is negative", "Write 0 or more"),
    ]


def test_the_words_of_every_caller_are_found(tmp_path: Path) -> None:
    assert read(tmp_path, CALLERS) == [
        Message("gate.error.names", "error", "is listed {{twice}}", "Give it once"),
        Message("gate.note.open", "info", "{text}", "Close it"),
        Message("gate.note.shut", "info", "is shut", "Nothing to do"),
    ]


def test_a_file_without_findings_says_nothing(tmp_path: Path) -> None:
    assert not read(tmp_path, "answer = 42\n")


def named_in_calls(path: Path) -> set[str]:
    """Return the names that stand behind a severity among the arguments of a call."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        words = [getattr(each, "value", None) for each in node.args] if isinstance(node, ast.Call) else []
        found |= {name for before, name in pairwise(words) if before in ("error", "warning", "info")}
    return {name for name in found if isinstance(name, str) and "." in name and " " not in name}


def test_every_name_of_a_finding_is_on_a_page() -> None:
    pages = "".join(
        (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("troubleshooting", "launch-rules")
    )
    named = {name for path in (ROOT / "plugins").rglob("*.py") for name in named_in_calls(path)}
    assert len(named) > 30
    assert not {name for name in named if f"`{name}`" not in pages}


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in sorted((ROOT / "plugins").rglob("*.py"))
        if "(Finding(" in path.read_text() or "[Finding(" in path.read_text()
    ],
    ids=lambda path: path.stem,
)
def test_every_file_that_words_findings_is_read(path: Path) -> None:
    found = messages(path)
    assert found or "Finding(**" in path.read_text(encoding="utf-8")
    assert all(each.severity.split(" or ")[0] in ("error", "warning", "info") for each in found)
    assert all(each.remedy for each in found)
