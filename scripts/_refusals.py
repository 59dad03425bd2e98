# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the messages that tasks of roles and playbooks word themselves, so that the pages of messages have them too.

Such a message says in its first sentence what was found, then what to do, and ends with its name in brackets. A message
whose last line is nothing but an expression shows findings, which the pages have already by their own names.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml


class Message(NamedTuple):
    """One finding as a reader of a page needs it."""

    rule: str
    severity: str
    reason: str
    remedy: str


FINDINGS = re.compile(r"(?:.*\n)?\{\{ (?:(?!\}\}).)* \}\}", re.DOTALL)
WORDED = re.compile(r"(?P<reason>.+?[^.])\. (?P<remedy>.+) \[(?P<rule>\w+(?:\.\w+)+)\]", re.DOTALL)
# An expression that only shows a value, with its name. Sentences that depend on a condition are messages of their own.
VALUE = re.compile(r"\{\{ (?:[\w\[\]']+\.)*_*([a-z]\w*)(?:(?! if | else ).)*? \}\}", re.DOTALL)


def texts(node: Any) -> Iterator[str]:
    """Yield the message of every task that fails with one; raise KeyError if an assertion has none."""
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from texts(value)
    for module, option in (("ansible.builtin.assert", "fail_msg"), ("ansible.builtin.fail", "msg")):
        if isinstance(node, dict) and module in node:
            yield node[module][option].strip()


def message(text: str) -> Message | None:
    """Return a message as the pages have it, None for one that shows findings.

    Raise ValueError for one that has no name, or that says something under a condition.
    """
    if FINDINGS.fullmatch(text):
        return None
    parts = VALUE.split(text)  # Words and names of values, in turn
    parts[0::2] = [words.replace("{", "{{").replace("}", "}}") for words in parts[0::2]]
    parts[1::2] = [f"{{{name}}}" for name in parts[1::2]]
    found = WORDED.fullmatch("".join(parts))
    if not found or "{{{{" in found[0]:
        raise ValueError(f"a reason, a remedy and [name] without conditions are needed: {text}")
    return Message(found["rule"], "error", found["reason"], found["remedy"])


def refusals(path: Path) -> list[Message]:
    """Return the messages that a file of tasks words itself."""
    text = path.read_text(encoding="utf-8")
    every = texts(yaml.safe_load(text)) if "ansible.builtin.assert:" in text or "ansible.builtin.fail:" in text else ()
    return [found for each in every if (found := message(each))]
