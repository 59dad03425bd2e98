# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The small faults that a file of Python can have, one change of its syntax tree each."""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

TURNED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
SWAPPED: dict[type[ast.operator], type[ast.operator]] = {ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult}
# Words, types and waiting times: tests do not compare them.
UNSEEN_FIELDS = {"annotation", "returns", "decorator_list"}
UNSEEN_KEYWORDS = {"timeout", "step", "indent"}


@dataclass(frozen=True)
class Mutant:
    """One small fault; ``node`` and ``variant`` find it again in the file's tree."""

    path: Path
    line: int
    text: str
    old: str
    new: str
    node: int = field(compare=False)
    variant: int = field(compare=False)
    lines: frozenset[int] = field(compare=False)  # of the statement, without the body below it
    function: str = field(compare=False)  # the qualified name of the outermost function, or empty

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}\n    {self.change}"

    @property
    def change(self) -> str:
        return f"{self.old} → {self.new}"

    @property
    def key(self) -> tuple[str, str, str]:
        """Return what identifies the mutant in ``equivalent.yml``, where line numbers would age."""
        return self.path.name, self.text, self.change

    def tree(self) -> ast.Module:
        """Return the file with the fault."""
        tree = ast.parse((ROOT / self.path).read_text(encoding="utf-8"))
        target = list(_walk(tree))[self.node]

        class Replace(ast.NodeTransformer):
            def visit(self, node: ast.AST) -> Any:
                return new if node is target else self.generic_visit(node)

        new = _variants(target)[self.variant]
        Replace().visit(tree)
        return ast.fix_missing_locations(tree)


def mutants(path: Path, texts: set[str] | None = None) -> Iterator[Mutant]:
    """Yield all mutants of a file, or those of lines with one of these texts."""
    text = (ROOT / path).read_text(encoding="utf-8")
    lines = text.split("\n")
    tree = ast.parse(text)
    above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for number, node in enumerate(_walk(tree)):
        if not (variants := _variants(node)):
            continue
        line = min((child.lineno for child in ast.walk(node) if hasattr(child, "lineno")), default=1)
        code = lines[line - 1].strip()
        if texts is not None and code not in texts:
            continue
        old, place = _head(node), _place(node, above)
        for variant, new in enumerate(variants):
            yield Mutant(path, line, code, old, _head(new), number, variant, *place)


def _place(node: ast.AST, above: dict[ast.AST, ast.AST]) -> tuple[frozenset[int], str]:
    """Return the lines of a node's statement and the qualified name of the outermost function that executes it."""
    names: list[str] = []
    inside = False
    lines: set[int] = set()
    each: ast.AST | None = node
    below: ast.AST | None = None
    while each:
        if isinstance(each, (ast.stmt, ast.ExceptHandler)) and not lines:
            body = getattr(each, "body", None) or [case.pattern for case in getattr(each, "cases", [])]
            last = max(each.lineno, body[0].lineno - 1) if body else each.end_lineno or each.lineno
            lines = set(range(each.lineno, last + 1))
            if isinstance(node, ast.expr):  # the condition of a case
                lines |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inside = below in each.body
            names = [each.name]
        elif isinstance(each, ast.ClassDef) and names:
            names.insert(0, each.name)
        below, each = each, above.get(each)
    return frozenset(lines), ".".join(names) if inside else ""


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes in which a test could notice a fault."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.keyword) and node.arg in UNSEEN_KEYWORDS):
        return
    if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
        return
    yield node
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and name not in UNSEEN_FIELDS:
                yield from _walk(child)


def _variants(node: ast.AST) -> list[ast.AST]:
    """Return the faulty forms of a node."""
    return [*_other_course(node), *_other_value(node)]


def _changed(node: ast.AST, **parts: Any) -> ast.AST:
    new = copy.copy(node)
    for name, value in parts.items():
        setattr(new, name, value)
    return new


def _other_course(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the forms that decide, repeat or catch something else."""
    match node:
        case ast.Compare(ops=[op]):
            yield from (_changed(node, ops=[turned()]) for turned in TURNED[type(op)])
        case ast.BoolOp(values=values):
            for some in _without_one(values):
                yield _changed(node, values=some) if len(some) > 1 else some[0]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.If() | ast.IfExp():
            yield from (_changed(node, test=ast.Constant(value)) for value in (True, False))
        case ast.While():
            yield _changed(node, test=ast.Constant(False))
        case ast.comprehension(ifs=ifs, iter=each):
            yield from (_changed(node, ifs=some) for some in _without_one(ifs))
            yield _changed(node, iter=_first(each))
        case ast.For(iter=each):
            yield _changed(node, iter=_first(each))
        case ast.ExceptHandler(type=ast.Tuple(elts=kinds)):
            yield from (_changed(node, type=ast.Tuple(some)) for some in _without_one(kinds))


def _other_value(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the forms that compute or return something else, or leave a call out."""
    match node:
        case ast.BinOp(op=ast.Add() | ast.BitOr(), left=left, right=right):
            yield from (left, right)
        case ast.BinOp(op=ast.BitAnd(), left=left):
            yield left
        case ast.BinOp(op=op) if type(op) in SWAPPED:
            yield _changed(node, op=SWAPPED[type(op)]())
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield _changed(node, value=ast.Constant(None))
        case ast.Expr(value=ast.Call() | ast.Yield() | ast.YieldFrom()) | ast.AugAssign():
            yield ast.Pass()


def _without_one(items: list[Any]) -> list[list[Any]]:
    return [[*items[:i], *items[i + 1 :]] for i in range(len(items))]


def _first(each: ast.expr) -> ast.expr:
    return ast.parse(f"list({ast.unparse(each)})[:1]", mode="eval").body


def _head(node: ast.AST) -> str:
    """Return the part of a node that a mutation changes, in one line and without the body below it."""
    text = ast.unparse(ast.fix_missing_locations(node)).strip()
    if isinstance(node, (ast.If, ast.While, ast.For, ast.ExceptHandler)):
        text = text.split("\n", maxsplit=1)[0]
    text = " ".join(text.split())
    return text if len(text) <= 120 else f"{text[:80]} … {text[-35:]}"
