# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Evaluate the conditions of rules, which use a small part of Python's expression syntax. Private to the collection.

Allowed are names, numbers, strings, tuples, comparisons, ``and or not in``, ``+ - * // %`` and ``a if b else c``.
Unknown values are None. Order comparisons with None are false and sums with None are None, so a rule about a value
that is not set does not apply. A name that is missing from the context is an error in the rule and raises ValueError.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

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
