# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare facts with the combinations that are known to fail or to work, which are data: ``meta/combinations.yml``.

The facts are a stranger's data. A value of another type than a condition expects does not meet it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, Severity, clip

from .._controller.data import COLLECTION, read_yaml

FILE = COLLECTION / "meta" / "combinations.yml"
REPORTED: tuple[Severity, ...] = ("error", "warning", "info")
# What a finding says of evidence that is less than several owners and the change that mends it.
EVIDENCE = {"confirmed": "", "reported": " (reported by owners)", "single": " (one report, not confirmed)"}
_NUMBERS = re.compile(r"\d{1,9}")
_PARTS = 8  # of a version that are compared
_SHOWN = 100  # characters of a fact in a finding

Condition = Mapping[str, Any]


@dataclass(frozen=True)
class Combination:
    """An entry of the file.

    All conditions of ``when`` must hold. A finding shows the facts in ``shows`` and the name in ``about``. An entry
    whose severity is ``note`` or ``sound`` (it works) makes no finding. Nor does one while the
    conditions of ``closed`` hold, which says ``by`` what. ``advisories`` are the public names of a security hole.
    """

    id: str
    severity: Literal["error", "warning", "info", "note", "sound"]
    about: str
    shows: Sequence[str]
    when: Sequence[Condition]
    happens: str
    remedy: str
    evidence: str
    sources: Sequence[str]
    seen_on: Sequence[str] = ()
    fixed_in: str = ""
    advisories: Sequence[str] = ()
    closed: Mapping[str, Any] | None = None

    def is_closed(self, facts: Mapping[str, Any]) -> bool:
        """Tell whether something that the facts show keeps this from happening."""
        return self.closed is not None and _all_hold(self.closed["when"], facts)


@cache
def load_combinations(path: Path = FILE) -> tuple[Combination, ...]:
    """Return the entries of the file, in its order."""
    return tuple(Combination(**entry) for entry in read_yaml(path))


def find_matching(facts: Mapping[str, Any], entries: Sequence[Combination] | None = None) -> list[Combination]:
    """Return the entries whose conditions the facts meet, including those that make no finding."""
    known = load_combinations() if entries is None else entries
    return [entry for entry in known if _all_hold(entry.when, facts)]


def describe_holes(facts: Mapping[str, Any]) -> str:
    """Return the public names of the security holes that the facts meet: open ones, notes and closed ones apart."""
    found: dict[str, list[str]] = {"open": [], "note": [], "closed here": []}
    for entry in find_matching(facts):
        if entry.severity != "sound":
            kind = "closed here" if entry.is_closed(facts) else "open" if entry.severity in REPORTED else "note"
            found[kind] += entry.advisories
    return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in found.items() if names)


def find_known(
    check: str, facts: Mapping[str, Any], where: str, entries: Sequence[Combination] | None = None
) -> Iterator[Finding]:
    """Yield a finding for each entry of a check (the first word of its id) that the facts of ``where`` meet."""
    for entry in find_matching(facts, entries):
        if entry.severity in REPORTED and entry.id.startswith(f"{check}.") and not entry.is_closed(facts):
            shown = ", ".join(_shown(facts, name) for name in entry.shows)
            named = f"{', '.join(entry.advisories)}: " if entry.advisories else ""
            yield Finding(
                entry.severity,
                entry.id,
                entry.about,
                shown,
                f"{named}{entry.happens}{EVIDENCE[entry.evidence]}",
                entry.remedy,
                where,
                ", ".join(entry.sources),
            )


def _shown(facts: Mapping[str, Any], name: str) -> str:
    found = " ".join(str(value) for value in values_of(facts, name)[:_PARTS]) or "unknown"
    # A number alone would not tell what it counts.
    return clip(found if not found.isdigit() else f"{name} {found}", _SHOWN)


def _all_hold(conditions: Sequence[Condition], facts: Mapping[str, Any]) -> bool:
    return all(_holds(condition, facts) for condition in conditions)


def _holds(condition: Condition, facts: Mapping[str, Any]) -> bool:
    if "not" in condition:
        return not _all_hold(condition["not"], facts)
    if "any" in condition:
        return any(_all_hold(each, facts) for each in condition["any"])
    found = values_of(facts, condition["fact"])
    return all(_meets(name, found, wanted, facts) for name, wanted in condition.items() if name != "fact")


def _meets(operator: str, found: Sequence[Any], wanted: Any, facts: Mapping[str, Any]) -> bool:
    """Tell whether one of the values meets an operator. A fact without a value meets only ``present: false``."""
    if operator == "present":
        return bool(found) is wanted
    given = values_of(facts, wanted["fact"]) if isinstance(wanted, Mapping) else wanted
    choices = given if isinstance(given, list) else [given]
    if operator == "is":
        return any(_same(value, choice) for value in found for choice in choices)
    if operator == "is_not":
        return bool(found) and not _meets("is", found, choices, facts)
    if operator == "starts":
        return any(isinstance(value, str) and value.startswith(tuple(choices)) for value in found)
    orders = [_order(value, choice) for value in found for choice in choices]
    return any(order in _ORDERS[operator] for order in orders)


# The signs of value minus wanted with which each operator holds.
_ORDERS: Mapping[str, Sequence[int]] = {"at_least": (0, 1), "above": (1,), "at_most": (-1, 0), "below": (-1,)}


def _same(value: Any, wanted: Any) -> bool:
    """Tell whether two values are equal; 1 and 1.0 are, but 1 and true are not."""
    numbers = all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in (value, wanted))
    return (numbers or type(value) is type(wanted)) and bool(value == wanted)


def _order(value: Any, wanted: Any) -> int | None:
    """Return -1, 0 or 1 as the value is below, like or above the wanted one; None if the two cannot be compared."""
    one, other = _key(value), _key(wanted)
    if one is None or other is None or isinstance(value, str) is not isinstance(wanted, str):
        return None
    return (one > other) - (one < other)


def _key(value: Any) -> tuple[float, ...] | None:
    """Return what orders numbers, or versions by all numbers in them (7.0.0-31-generic: 7, 0, 0, 31)."""
    if isinstance(value, str):
        numbers = tuple(int(part) for part in _NUMBERS.findall(clip(value, _SHOWN))[:_PARTS])
        return numbers or None
    return (value,) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def values_of(facts: Any, name: str) -> list[Any]:
    """Return all values of a fact by its name with dots; the name goes through lists (``pfs.firmware``)."""
    if isinstance(facts, list):
        return [value for each in facts for value in values_of(each, name)]
    if not name:
        return [] if facts is None or facts in ({}, "") else [facts]
    if not isinstance(facts, Mapping):
        return []
    if name in facts:  # names of packages have dots
        return values_of(facts[name], "")
    head, _dot, rest = name.partition(".")
    return values_of(facts.get(head), rest) if rest else []
