# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The common form in which every planner and check of this collection reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]
_ORDER: dict[str, int] = {"error": 0, "warning": 1, "info": 2}
SHOWN = 1000


def clip(text: str, limit: int = SHOWN) -> str:
    """Return a text as people read it; of a longer one, which a wrong file may contain, only the beginning."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def cut(text: str, limit: int) -> str:
    """Return a text of at most ``limit`` characters. A longer one loses its middle, because causes stand at its end."""
    text = " ".join(text.split())
    if len(text) <= limit:
        return text
    begin = (limit - 3) // 2
    return f"{text[:begin].rstrip()} … {text[-(limit - 3 - begin) :].lstrip()}"


@dataclass(frozen=True)
class Finding:
    """One error, warning or note, with its remedy.

    ``rule`` is a stable identifier (``fabric.node_id.duplicate``), ``key`` the name that the user wrote, ``value`` its
    value, ``where`` the host, file or rank, ``source`` the origin of the fact, ``place`` the file and line in which the
    user set the value.
    """

    severity: Severity
    rule: str
    key: str
    value: Any
    reason: str
    remedy: str
    where: str = ""
    source: str = ""
    place: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as plain data, ready for JSON."""
        return asdict(self)

    @property
    def sentences(self) -> list[str]:
        """Return what is wrong, and what to do."""
        place = f"{self.where}: " if self.where else ""
        shown = "" if self.value is None else f" = {clip(repr(self.value), 200)}"
        reason, key = clip(self.reason), clip(self.key, 200)
        end = "" if reason.endswith((".", "?")) else "."
        return [f"{self.severity}: {place}{key}{shown}: {reason}{end}", f"{clip(self.remedy)} [{self.rule}]"]

    def __str__(self) -> str:
        return " ".join(self.sentences)


@dataclass(frozen=True)
class Rule:
    """What a finding says: why it is a problem and what to do, with the values of a case in braces, and the key.

    ``provider`` is the only provider of Kubernetes that the rule is about, empty for any; ``source`` says who saw it.
    """

    reason: str
    remedy: str
    key: str = ""
    severity: Severity = "error"
    provider: str = ""
    source: str = ""


class Rules:
    """Makes findings from rules by their names; ``source`` is the origin of what they are about.

    A name may have several cases, each called ``name/case``. The rules are a dictionary, or a function that reads them
    when the first one is needed.
    """

    def __init__(self, rules: Mapping[str, Rule] | Callable[[], Mapping[str, Rule]], source: str = "") -> None:
        self.rules, self.source = rules, source

    @property
    def all(self) -> Mapping[str, Rule]:
        return self.rules() if callable(self.rules) else self.rules

    def finding(self, name: str, value: Any, where: str = "", /, **words: Any) -> Finding:
        """Return the finding of a rule about one value; ``words`` are the values for the rule's key and sentences.

        ``key``, ``severity`` and ``source`` among them replace those of the rule.
        """
        rule = self.all[name]
        words = {"value": value, "severity": rule.severity, "source": rule.source or self.source, **words}
        key = words.setdefault("key", rule.key.format(**words))
        reason, remedy = rule.reason.format(**words), rule.remedy.format(**words)
        return Finding(words["severity"], name.partition("/")[0], key, value, reason, remedy, where, words["source"])


def sort_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Order findings by severity, then place, then rule, so that two runs print the same."""
    return sorted(findings, key=lambda f: (_ORDER[f.severity], f.where, f.rule, f.key, str(f.value)))


def has_errors(findings: Iterable[Finding]) -> bool:
    """Tell whether a finding is an error, which must stop the run."""
    return any(f.severity == "error" for f in findings)


def format_findings(findings: Iterable[Finding]) -> str:
    """Return all findings, one per line, worst first; an empty string if there are none.

    A finding is there once, with all places at which it was made.
    """
    return "\n".join(map(str, merge_places(findings)))


def as_dicts(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Return all findings as plain data, worst first."""
    return [finding.as_dict() for finding in sort_findings(findings)]


def merge_places(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings in order, those that differ only in their place as one."""
    alike: dict[str, list[Finding]] = {}
    for finding in sort_findings(findings):
        alike.setdefault(repr(replace(finding, where="", place="")), []).append(finding)
    return [
        replace(group[0], where=_joined(one.where for one in group), place=_joined(one.place for one in group))
        for group in alike.values()
    ]


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, texts)))
