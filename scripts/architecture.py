#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the layers of plugins/, read from its imports, into docs/architecture.md; ``--check`` only compares.

``--count`` prints how many packages, files, lines and functions plugins/ has, and what has one importer. With ``--count
FIRST LAST`` it prints the modules through which a value can pass from one module to the other, for example
``--count action.fabric_plan module_utils._host.interfaces``: those that import each other in between.
"""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from _collection import ROOT, run
from _generated import main, table

PLUGINS = ROOT / "plugins"
SIDES = {path.name for path in PLUGINS.iterdir()}
PREFIX = "ansible_collections.gb10.cluster.plugins."
PAGE = ROOT / "docs" / "architecture.md"
UTILS = ("module_utils", "plugin_utils")
# What SGLang, not Ansible, loads: profiles, and patches that run inside a server.
DATA = ("profiles", "sweeps")


def files() -> list[Path]:
    found = (path for path in PLUGINS.rglob("*.py") if path.name != "__init__.py")
    return sorted(path for path in found if path.relative_to(PLUGINS).parts[0] not in DATA)


def module_name(path: Path) -> str:
    """Return ``module_utils._nccl.log`` for ``plugins/module_utils/_nccl/log.py``."""
    return ".".join(path.relative_to(PLUGINS).with_suffix("").parts)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported_names(path: Path) -> tuple[str, ...]:
    """Return every module that a file imports: the collection's without its prefix, others by their full name."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    package = module_name(path).split(".")[:-1]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
            base = base.removeprefix(PREFIX)
            # `from ._rdma import gids` names a module, `from ._fabric.rdma import read` a member of one.
            yield from (f"{base}.{alias.name}" if _is_package(base) else base for alias in node.names)


@cache
def _is_package(name: str) -> bool:
    return (PLUGINS / Path(*name.split("."))).is_dir()


def is_ours(name: str) -> bool:
    return name.split(".", maxsplit=1)[0] in SIDES


def unit(name: str) -> str:
    """Return the row of a module: a package of utilities, or a whole directory of plugins."""
    side, *rest = name.split(".")
    return f"{side}.{rest[0]}" if side in UTILS and rest else side


def edges() -> dict[str, set[str]]:
    """Return what each package imports."""
    graph: dict[str, set[str]] = {}
    for path in files():
        own = unit(module_name(path))
        graph.setdefault(own, set()).update(unit(name) for name in imported_names(path) if is_ours(name))
        graph[own].discard(own)
    return graph


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        other = waiting.pop()
        if other not in found:
            found.add(other)
            waiting += graph[other]
    return found


def without_shortcuts(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Remove an import if other imports connect the same packages, so that the table stays readable."""

    beyond = {box: _reachable(graph, box) for box in graph}
    return {
        box: {other for other in others if not any(other in beyond[via] for via in others - {other})}
        for box, others in graph.items()
    }


def layers() -> str:
    """Return the packages and what each imports as a table, callers above the packages that they call."""
    graph = without_shortcuts(edges())
    order = TopologicalSorter({box: sorted(graph[box]) for box in sorted(graph)}).static_order()
    rows = ([f"`{box}`", ", ".join(f"`{other}`" for other in sorted(graph[box])) or "none"] for box in [*order][::-1])
    return table(["package", "imports"], rows)


def imports() -> dict[str, set[str]]:
    """Return what each module of plugins/ imports from plugins/."""
    every = {module_name(path): path for path in files()}
    return {name: {other for other in imported_names(path) if other in every} for name, path in every.items()}


def count() -> str:
    """Return the size of plugins/, and the modules of packages that exactly one other imports."""
    graph = imports()
    functions = sum(isinstance(node, ast.FunctionDef) for path in files() for node in ast.walk(tree(path)))
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files())
    python = len([*PLUGINS.rglob("*.py")])
    packages = [box for box in edges() if box.split(".")[0] in UTILS]
    importers = {name: [other for other in graph if name in graph[other]] for name in graph}
    single = [
        f"{name} <- {found[0]}" for name, found in importers.items() if unit(name) in packages and len(found) == 1
    ]
    size = f"{len(packages)} packages, {python} files, {lines} lines, {functions} functions"
    return "\n".join([f"{size}, {len(single)} with one importer", *single])


def way(first: str, last: str) -> str:
    """Return the modules that ``first`` imports, directly or not, and that import ``last``."""
    graph = imports()

    between = sorted(name for name in {first, *_reachable(graph, first)} if last in {name, *_reachable(graph, name)})
    return "\n".join([f"{len(between)} modules", *between])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--count"]:
        run(lambda: print(way(*sys.argv[2:4]) if sys.argv[2:] else count()) or 0)
    run(lambda: main(__doc__, lambda: {PAGE: {"layers": layers()}}))
