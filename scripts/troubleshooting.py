#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print what a message means and what to do.

A message is its name, such as preflight.link.slow, the first words of several names, a whole message with its name in
brackets, or a line of a log. Without a message, write the table of docs/combinations.md.

The site has all messages as tables, which docs/site/build takes from here.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from _collection import IMPORT_ROOT, ROOT, run
from _generated import arguments, table, update
from _refusals import Message, refusals

sys.path.insert(0, IMPORT_ROOT)

from ansible_collections.gb10.cluster.plugins.module_utils._common import findings
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.causes import CATALOGUE
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.data import Rules
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.combinations import Combination, load_combinations

SYMPTOMS = ROOT / "docs" / "troubleshooting.md"
LAUNCHES = ROOT / "docs" / "launch-rules.md"
KNOWN = ROOT / "docs" / "combinations.md"
PASTED = Path(__file__).with_name("pasted_messages.yml")
RULES = ROOT / "plugins" / "profiles" / "rules.json"
# {part of the page: first words of the names of its findings}
PARTS = {
    "preflight": ("preflight",),
    "fabric": ("fabric", "cabling", "multus.attachment"),
    "serving": ("serving", "gateway", "existing", "nccl"),
    "variables": ("variables", "inventory", "run"),
    "weights": ("models",),
    "sweep": ("sweep", "profile.override"),
    "update": ("update",),
}
# Findings that begin with these words are about a command line or a profile.
OF_LAUNCHES = ("adopt", "argparse", "flag", "memory", "model", "patch", "profile", "published", "translate", "version")


def causes() -> str:
    """Return what NCCL's log shows, what it means, and the remedy."""
    lines = {each.id: f"`{each.pattern}`" if each.pattern else "lines of several ranks" for each in CATALOGUE}
    rows = ([f"`{each.id}`", lines[each.id], each.summary, each.remedy] for each in CATALOGUE)
    return table(["cause", "log line (a regular expression)", "what it means", "what to do"], rows)


def pasted() -> str:
    """Return the messages of driver, kernel and engine that owners search for."""
    every = yaml.safe_load(PASTED.read_text(encoding="utf-8"))
    rows = ([", ".join(f"`{text}`" for text in each["texts"]), each["means"], each["remedy"]] for each in every)
    return table(["what you see", "what it means", "what to do"], rows)


def of_checks() -> Iterator[Message]:
    """Yield the messages of all rules: of the packages on the controller, and of code with a dictionary of its own."""
    books: list[findings.Rules] = [Rules(path.parent.name) for path in ROOT.glob("plugins/plugin_utils/*/rules.yml")]
    for path in (ROOT / "plugins").rglob("*.py"):
        if "\nRULES = Rules(\n" in path.read_text(encoding="utf-8"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            books.append(import_module(f"ansible_collections.gb10.cluster.{name}").RULES)
    for name, rule in chain.from_iterable(book.all.items() for book in books):
        yield Message(name.partition("/")[0], rule.severity, rule.reason, rule.remedy)


def combinations() -> str:
    """Return the entries of meta/combinations.yml with their conditions, evidence and sources."""
    rows = ([f"`{each.id}`", each.severity, *map(_plain, _combination(each))] for each in load_combinations())
    return table(["name", "severity", "if", "what happens", "what to do", "evidence", "seen on", "fixed in"], rows)


def _combination(entry: Combination) -> list[str]:
    evidence = f"{entry.evidence}: {', '.join((*entry.advisories, *entry.sources))}"
    closed = f" Closed if {_all(entry.closed['when'])}: {entry.closed['by']}." if entry.closed else ""
    remedy, seen = f"{entry.remedy}{closed}", ", ".join(entry.seen_on)
    return [_all(entry.when), entry.happens, remedy, evidence, seen, entry.fixed_in]


def _all(conditions: Sequence[Any]) -> str:
    return " and ".join(map(_condition, conditions))


def _condition(condition: dict[str, Any]) -> str:
    if "not" in condition:
        return f"not ({_all(condition['not'])})"
    if "any" in condition:
        return f"({' or '.join(map(_all, condition['any']))})"
    return " and ".join(
        f"`{condition['fact']}` {_test(name, wanted)}" for name, wanted in condition.items() if name != "fact"
    )


def _test(operator: str, wanted: Any) -> str:
    if operator == "present":
        return "is known" if wanted else "is empty or unknown"
    shown = wanted["fact"] if isinstance(wanted, dict) else wanted
    return f"{operator.replace('_', ' ')} " + " or ".join(
        f"`{each}`" for each in (shown if isinstance(shown, list) else [shown])
    )


def launches() -> str:
    """Return the rules of SGLang's command lines, by the part of the server that they concern."""
    every = sorted(json.loads(RULES.read_text(encoding="utf-8"))["rules"], key=lambda rule: str(rule["id"]))
    rows = (
        (f"`{rule['id']}`", rule["severity"], _keys(rule), _where(rule), _plain(rule["reason"]), _plain(rule["remedy"]))
        for rule in every
    )
    return table(["rule", "severity", "setting", "on", "what it means", "what to do"], dict.fromkeys(rows))


def _where(rule: dict[str, Any]) -> str:
    """Return GPUs and releases to which a rule applies."""
    gpus = "GB10" if _OF_GB10.search(rule.get("when", "")) else "all GPUs"
    first, last = rule.get("from"), rule.get("to")
    until = f"to {last}" if last else f"checked until {rule['verified']}"
    return f"{gpus}, {first} {until}" if first else f"{gpus}, {until}"


# Facts of the context by which a condition applies only to the GPU of a DGX Spark.
_OF_GB10 = re.compile(r"\b(sm12x|sm == 121|unified)\b")


@cache
def worded() -> frozenset[Message]:
    """Return the messages of all checks and tasks."""
    tasks = [*ROOT.glob("playbooks/*.yml"), *ROOT.glob("roles/*/tasks/*.yml")]
    return frozenset({*of_checks(), *(message for path in tasks for message in refusals(path))})


def named(*families: str) -> set[Message]:
    """Return the messages of which the name begins with one of these words."""
    begins = tuple(f"{family}." for family in families)
    return {message for message in worded() if f"{message.rule}.".startswith(begins)}


def _messages(rows: Iterable[Message]) -> str:
    lines = [[_plain(f"`{rule}`"), severity, _plain(why), _plain(what)] for rule, severity, why, what in rows]
    return table(["rule", "severity", "what it means", "what to do"], sorted(lines))


def _keys(rule: dict[str, Any]) -> str:
    return ", ".join(f"`{name}`" for name in rule.get("keys", [rule.get("key", "")]) if name)


def _plain(text: str) -> str:
    """Return a message on one line, with its placeholders in italics, or in capitals within code."""
    line = " ".join(text.split()).replace("<", "&lt;")
    line = re.sub(r"`[^`]*`", lambda code: re.sub(r"\{(\w+)[^{}]*\}", lambda found: found[1].upper(), code[0]), line)
    return re.sub(r"\{\{|\}\}|\{(\w+)[^}]*\}", lambda found: f"*{found[1]}*" if found[1] else found[0][0], line)


class Entry(NamedTuple):
    """What is known about one message: its names or its words, a pattern of its line, and what a reader needs."""

    names: Sequence[str]
    pattern: str
    about: str
    means: str
    remedy: str

    def __str__(self) -> str:
        about = f" ({self.about})" if self.about else ""
        return "\n  ".join([", ".join(self.names) + about, _spoken(self.means), f"What to do: {_spoken(self.remedy)}"])


def entries() -> Iterator[Entry]:
    """Yield all that the pages of messages have, and the known combinations."""
    for cause in CATALOGUE:
        yield Entry([cause.id], cause.pattern, "in NCCL's log", cause.summary, cause.remedy)
    for known in load_combinations():
        yield Entry([known.id], "", known.severity, known.happens, known.remedy)
    for rule in json.loads(RULES.read_text(encoding="utf-8"))["rules"]:
        about = f"{rule['severity']}, {_keys(rule)}, {_where(rule)}"
        yield Entry([rule["id"]], "", about.replace("`", ""), rule["reason"], rule["remedy"])
    for one in sorted(worded()):
        yield Entry([one.rule], "", one.severity, one.reason, one.remedy)
    for each in yaml.safe_load(PASTED.read_text(encoding="utf-8")):
        words = (".*".join(map(re.escape, text.split("…"))) for text in each["texts"])
        yield Entry(each["texts"], f"(?i){'|'.join(words)}", "", each["means"], each["remedy"])


def lookup(text: str) -> list[Entry]:
    """Return what is known about a message: by its name, else by the pattern of its line, else by its words."""
    every, text = list({str(one): one for one in entries()}.values()), text.strip()
    names = re.findall(r"\[(\w+(?:\.\w+)+)\]", text) or [text.rstrip(".")]
    return (
        [one for one in every if any(f"{own}.".startswith(f"{name}.") for own in one.names for name in names)]
        or [one for one in every if one.pattern and re.search(one.pattern, text)]
        or [one for one in every if re.search(rf"(?<!\w){re.escape(text)}", " ".join(str(one).split()), re.IGNORECASE)]
    )


def _spoken(text: str) -> str:
    """Return a message on one line, with its placeholders in capitals."""
    shown = re.sub(r"\{\{|\}\}|\{(\w+)[^}]*\}", lambda found: found[1].upper() if found[1] else found[0][0], text)
    return " ".join(shown.split())


def site_pages() -> dict[Path, dict[str, str]]:
    """Return the tables of the pages that are complete on the site only."""
    checks = {part: _messages(named(*families)) for part, families in PARTS.items()}
    others = worded() - named(*OF_LAUNCHES, *chain(*PARTS.values()))
    return {
        SYMPTOMS: {"causes": causes(), "pasted": pasted(), **checks, "others": _messages(others)},
        LAUNCHES: {"launches": launches(), "worded": _messages(named(*OF_LAUNCHES))},
    }


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = arguments(__doc__)
    parser.add_argument("messages", nargs="*", metavar="MESSAGE", help="a name, its first words, or a line of a log")
    options = parser.parse_args(argv)
    if not options.messages:
        return update({KNOWN: {"combinations": combinations()}}, options.check)
    status = 0
    for message in options.messages:
        found = lookup(message)
        status = status if found else 1
        print("\n\n".join(map(str, found)) or f"No message has these words: {message}. Try its name, or fewer words.")
    return status


if __name__ == "__main__":
    run(main)
