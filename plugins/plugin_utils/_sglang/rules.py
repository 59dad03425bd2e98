# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply the rules across flags (``plugins/profiles/rules.json``) to one set of flags of one release.

Private to the collection.

Allowed are names, numbers, strings, tuples, comparisons, ``and or not in``, ``+ - * // %`` and ``a if b else c``.
Unknown values are None. Order comparisons with None are false and sums with None are None, so a rule about a value
that is not set does not apply. A name that is missing from the context is an error in the rule and raises ValueError.
"""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common import plain
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, Severity
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version

from .catalogue import Item
from .context import Groups

_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_SAME: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_SUMS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


@lru_cache(maxsize=1024)
def _compile(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError as problem:
        raise ValueError(f"{text!r} is not an expression: {problem.msg}") from problem


def evaluate(text: str, context: Mapping[str, Any]) -> Any:
    """Return the value of an expression; raise ValueError if it is malformed or uses an unknown name."""
    return _Evaluator(text, context).visit(_compile(text))


class _Evaluator(ast.NodeVisitor):
    """Evaluates an expression node by node; node types without a method here are not allowed."""

    def __init__(self, text: str, context: Mapping[str, Any]) -> None:
        self.text, self.context = text, context

    def generic_visit(self, node: ast.AST) -> Any:
        raise ValueError(f"{self.text!r}: {type(node).__name__} is not allowed in a rule")

    def visit_Constant(self, node: ast.Constant) -> Any:
        return node.value

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id not in self.context:
            raise ValueError(f"{self.text!r}: unknown name {node.id!r}")
        return self.context[node.id]

    def visit_Tuple(self, node: ast.Tuple) -> Any:
        return tuple(self.visit(item) for item in node.elts)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        wanted = isinstance(node.op, ast.Or)
        result: Any = not wanted
        for part in node.values:
            result = self.visit(part)
            if bool(result) is wanted:
                break
        return result

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        operand = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            return not operand
        return -operand if isinstance(node.op, ast.USub) else self.generic_visit(node.op)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        return self.visit(node.body) if self.visit(node.test) else self.visit(node.orelse)

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        return _sum(_SUMS.get(type(node.op)), self.visit(node.left), self.visit(node.right), self.text)

    def visit_Compare(self, node: ast.Compare) -> Any:
        left = self.visit(node.left)
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.visit(right_node)
            if not _compare(op, left, right):
                return False
            left = right
        return True


def _sum(apply: Callable[[Any, Any], Any] | None, left: Any, right: Any, text: str) -> Any:
    if apply is None:
        raise ValueError(f"{text!r}: this operator is not allowed in a rule")
    if left is None or right is None or (apply in (operator.floordiv, operator.mod) and right == 0):
        return None
    return apply(left, right)


def _compare(op: ast.cmpop, left: Any, right: Any) -> bool:
    if type(op) in _SAME:
        return bool(_SAME[type(op)](left, right))
    if isinstance(op, (ast.In, ast.NotIn)):
        # A word in a text or a member of a group; unset values contain nothing and are in nothing.
        found = right is not None and left is not None and left in right
        return found if isinstance(op, ast.In) else not found
    return left is not None and right is not None and bool(_ORDER[type(op)](left, right))


EVIDENCE = ("measured", "reported", "derived")
"""Kinds of evidence: seen on hardware, reported by somebody, read in the source."""


@dataclass(frozen=True)
class Rule:
    """One rule; several rules may share an id, for ranges of releases that behave differently.

    ``flags`` are the spellings that trigger it, each with its counterpart in SGLang if there is one; ``tried`` counts
    the published launches to which it applied: those that worked and those that failed. ``lifted_by`` names what an
    image has to carry, all of it, so that the rule does not apply; where the image is unknown, an error is a warning.
    ``verified`` is the newest release for which the rule was checked: on later ones an error is a warning too.
    """

    id: str
    severity: Severity
    key: str
    reason: str
    remedy: str
    source: str
    evidence: str
    when: str | None = None
    first: str | None = None
    last: str | None = None
    verified: str | None = None
    flags: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    sglang: str = ""
    tried: tuple[int, int] = (0, 0)
    lifted_by: tuple[str, ...] | None = None

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Rule:
        """Build a rule from an entry of the rules file; raise ValueError if the entry is invalid."""
        missing = {"id", "severity", "key", "reason", "remedy", "source", "evidence"} - set(raw)
        if missing or not (raw.get("when") or raw.get("flags")):
            raise ValueError(f"rule {raw.get('id', '?')}: needs {', '.join(sorted(missing)) or 'when or flags'}")
        for key, known in (("severity", ("error", "warning", "info")), ("evidence", EVIDENCE)):
            if raw[key] not in known:
                raise ValueError(f"rule {raw['id']}: {key} is one of {', '.join(known)}")
        flags, tried = raw.get("flags", {}), raw.get("tried", {})
        read = {
            "flags": flags if isinstance(flags, dict) else dict.fromkeys(flags, ""),
            "tried": (tried.get("works", 0), tried.get("fails", 0)),
        }
        return plain.load(cls, {**raw, **read, "first": raw.get("from"), "last": raw.get("to")})

    @property
    def told_by(self) -> str:
        """Return the evidence of the rule in words: kind, source, and the published launches to which it applied."""
        works, fails = self.tried
        launches = f"; of the published launches, {works} that worked and {fails} that failed" if works + fails else ""
        return f"{self.evidence}: {self.source}{launches}"


@dataclass(frozen=True)
class RuleBook:
    """All rules, and the groups of architectures that they refer to."""

    rules: tuple[Rule, ...]
    groups: Groups


@lru_cache(maxsize=4)
def load_rules(path: Path, *own: Path) -> RuleBook:
    """Read the rules, and own ones where the file exists; raise ValueError that names the invalid rule or file."""
    rules: list[Rule] = []
    groups: dict[str, frozenset[str]] = {}
    for file in (path, *(file for file in own if file.is_file())):
        try:
            raw = json.loads(file.read_text(encoding="utf-8"))
            groups |= {
                name: frozenset(members)
                for name, members in (raw["groups"] if file == path else raw.get("groups", {})).items()
            }
            rules += [Rule.from_dict(entry) for entry in raw["rules"]]
        except (AttributeError, OSError, KeyError, TypeError, ValueError) as problem:
            raise ValueError(f"{file}: not a rules file: {problem}") from problem
    return RuleBook(tuple(rules), groups)


class _Words(dict[str, Any]):
    """Values for a message; a value that is not set appears as "unset"."""

    def __missing__(self, key: str) -> str:
        return "{" + key + "}"

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        return "unset" if value is None else value


def _finding(rule: Rule, context: Mapping[str, Any], extra: Mapping[str, Any]) -> Finding:
    words = _Words({**context, **extra})
    key = rule.key.format_map(words)
    unread = rule.verified is not None and not Version.parse(context["sglang"]).within(None, rule.verified)
    unsure = unread or (rule.lifted_by is not None and context["patches"] is None)
    until = f" (verified until {rule.verified}, not for this release)" if unread else ""
    return Finding(
        "warning" if unsure and rule.severity == "error" else rule.severity,
        rule.id,
        key,
        extra.get("value", context.get(key)),
        rule.reason.format_map(words) + until,
        rule.remedy.format_map(words),
        source=rule.told_by,
    )


def judge_flags(book: RuleBook, context: Mapping[str, Any], version: Version, items: Sequence[Item]) -> list[Finding]:
    """Return the findings about flags whose names and facts are in ``context``; raise ValueError for a wrong rule."""
    applied: list[Finding] = []
    for rule in book.rules:
        if version.within(rule.first, rule.last):
            applied += [_finding(rule, context, extra) for extra in conditions_met(rule, context)]
            for item in items:
                if item.written in rule.flags:
                    words = {"flag": item.written, "value": " ".join(item.words) or None}
                    applied.append(_finding(rule, context, {**words, "counterpart": rule.flags[item.written]}))
    return applied


def conditions_met(rule: Rule, context: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return message words for every match of a rule's condition: one per key of the rule, or a single one."""
    if rule.when is None:
        return []
    has = {*context["carries"], *(context["patches"] or ())}
    if rule.lifted_by and has.issuperset(name.format_map(context) for name in rule.lifted_by):
        return []
    cases = [{"name": key, "value": context[key]} for key in rule.keys] or [{}]
    return [case for case in cases if evaluate(rule.when, {**context, **case})]
