# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the findings that Python code words itself, so that the pages of messages have them too.

Checks on hosts cannot read YAML, so their sentences stand in the calls of ``Finding``. Nothing is imported: the calls
are read, with the assignments and the callers that give a sentence its parts. What only a run can know becomes the name
of its variable in braces.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef
Words = dict[str, ast.expr]
FIELDS = {"severity": 0, "rule": 1, "reason": 4, "remedy": 5}
METHODS = {"get", "join", "partition"}
ASSIGN = (ast.Assign, ast.AnnAssign)


class Message(NamedTuple):
    """One finding as a reader of a page needs it; alternatives of a part are joined."""

    rule: str
    severity: str
    reason: str
    remedy: str


class _Put(ast.NodeTransformer):
    """Replaces names by the expressions that they stand for."""

    def __init__(self, words: Words) -> None:
        self.words = words

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return deepcopy(self.words.get(node.id, node))


class _Module:
    """The code of one file."""

    def __init__(self, text: str) -> None:
        self.tree = ast.parse(text)
        self.parent = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def calls(self, name: str) -> list[ast.Call]:
        """Return all calls of a function or method, by its name."""
        every = (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))
        return [call for call in every if name in (getattr(call.func, "id", ""), getattr(call.func, "attr", ""))]

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self.parent:
            node = self.parent[node]
            yield node

    def function(self, node: ast.AST) -> Function | None:
        return next((each for each in self.above(node) if isinstance(each, Function)), None)

    def branch(self, node: ast.stmt) -> list[ast.stmt]:
        """Return the statements among which this one is."""
        fields = (value for _name, value in ast.iter_fields(self.parent[node]) if isinstance(value, list))
        return next(value for value in fields if node in value)

    def arguments(self, call: ast.Call) -> list[list[ast.expr]]:
        """Return the positional arguments, once for each pair that a function may return for ``*function(…)``."""
        every: list[list[ast.expr]] = [[]]
        for given in call.args:
            choices = [[given]]
            if isinstance(given, ast.Starred) and isinstance(given.value, ast.Call):
                name = getattr(given.value.func, "attr", getattr(given.value.func, "id", ""))
                made = [node for node in ast.walk(self.tree) if isinstance(node, Function) and node.name == name]
                returned = [node for each in made for node in ast.walk(each) if isinstance(node, ast.Return)]
                choices = [self.local(node, node.value.elts) for node in returned if isinstance(node.value, ast.Tuple)]
            every = [[*before, *more] for before in every for more in choices]
        return every

    def local(self, place: ast.AST, given: list[ast.expr]) -> list[ast.expr]:
        """Return expressions with the texts that variables of the function have at this place."""
        for _depth in range(2):  # A text may be made from another one.
            names = {node.id for each in given for node in ast.walk(each) if isinstance(node, ast.Name)}
            words = {name: value for name in sorted(names) if (value := self.assigned(place, name))}
            given = [_Put(words).visit(deepcopy(each)) for each in given]
        return given

    def assigned(self, place: ast.AST, name: str) -> ast.expr | None:
        """Return the text that was assigned before, or a choice between the texts; None for other values."""
        scope = self.function(place)
        around = {id(place), *map(id, self.above(place))}
        found: list[ast.expr] = []
        assigns = [node for node in ast.walk(scope) if isinstance(node, ASSIGN)] if scope else []
        assigns = [node for node in assigns if node.lineno <= getattr(place, "lineno", 0)]
        assigns += [node for node in self.tree.body if isinstance(node, ASSIGN)]
        for node in sorted(assigns, key=lambda node: -node.lineno):
            value = _value_for(node, name)
            if value is None:
                continue
            branch = self.branch(node)
            decides = any(id(each) in around for each in branch) or branch is self.tree.body
            if not decides and isinstance(branch[-1], ast.Return | ast.Raise):
                continue
            found += [value] if _is_text(value) else []
            # One in a branch around this place decides; one in another branch is only possible.
            if decides:
                break
        if not found:
            return None
        choice = found.pop()
        while found:
            choice = ast.IfExp(ast.Constant(value=True), found.pop(), choice)
        return choice

    def bound(self, function: Function, call: ast.Call) -> Iterator[Words]:
        """Yield what a caller gives for each parameter."""
        names = [each.arg for each in function.args.args if each.arg != "self"]
        defaults = dict(zip(reversed(names), reversed(function.args.defaults), strict=False))
        named = {each.arg: each.value for each in call.keywords if each.arg}
        for given in self.arguments(call):
            yield {**defaults, **dict(zip(names, given, strict=False)), **named}

    def expand(self, place: ast.AST, parts: list[ast.expr]) -> Iterator[list[ast.expr]]:
        """Yield the parts of a finding, once for each caller that gives its rule or a sentence."""
        parts = self.local(place, parts)
        function = self.function(place)
        names = {node.id for each in parts[:3] for node in ast.walk(each) if isinstance(node, ast.Name)}
        given = names & {each.arg for each in function.args.args} if function else set()
        callers = (
            [call for call in self.calls(function.name) if self.function(call) is not function] if function else []
        )
        if not (function and given and callers):
            yield parts
            return
        for call in callers:
            for words in self.bound(function, call):
                yield from self.expand(call, [_Put(words).visit(deepcopy(each)) for each in parts])


def _value_for(node: ast.Assign | ast.AnnAssign, name: str) -> ast.expr | None:
    """Return what an assignment gives to a name, alone or as one of several."""
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        if isinstance(target, ast.Name) and target.id == name:
            return node.value
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            for one, value in zip(target.elts, node.value.elts, strict=False):
                if isinstance(one, ast.Name) and one.id == name:
                    return value
    return None


def _is_text(node: ast.expr) -> bool:
    """Tell whether an expression is a constant, or is made from texts."""
    whole = isinstance(node, ast.JoinedStr | ast.IfExp | ast.BinOp)
    words = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
    return isinstance(node, ast.Constant) or (whole and any(isinstance(word, str) for word in words))


def texts(node: ast.expr) -> list[str]:
    """Return all texts that an expression may be, as for str.format; what is unknown is the name of a variable."""
    if isinstance(node, ast.Constant):
        return [str(node.value).replace("{", "{{").replace("}", "}}")]
    if isinstance(node, ast.IfExp):
        # A choice by a word that the caller gives, such as the severity.
        if isinstance(node.test, ast.Compare):
            left, right = node.test.left, node.test.comparators[0]
            if isinstance(left, ast.Constant) and isinstance(right, ast.Constant):
                return texts(node.body if left.value == right.value else node.orelse)
        return list(dict.fromkeys([*texts(node.body), *texts(node.orelse)]))
    if isinstance(node, ast.FormattedValue):
        return texts(node.value)
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.BinOp) and _is_text(node)):
        pieces = node.values if isinstance(node, ast.JoinedStr) else [node.left, node.right]
        return ["".join(words) for words in product(*map(texts, pieces))]
    parts = list(ast.walk(node))
    names = [each.attr for each in parts if isinstance(each, ast.Attribute) and each.attr not in METHODS]
    names += [each.id for each in reversed(parts) if isinstance(each, ast.Name)]
    return [f"{{{next(iter(names), 'value')}}}"]


def messages(path: Path) -> list[Message]:
    """Return the findings that a file words itself, in the order of their names."""
    text = path.read_text(encoding="utf-8")
    module, found = _Module(text), []
    for call in module.calls("Finding") if "Finding(" in text else []:
        if len(call.args) > max(FIELDS.values()):
            for parts in module.expand(call, [call.args[place] for place in FIELDS.values()]):
                severity, rules, reason, remedy = map(texts, parts)
                found += [
                    Message(rule, " or ".join(severity), " / ".join(reason), " / ".join(remedy))
                    for rule in rules
                    if not rule.startswith("{")
                ]
    return sorted(set(found))
