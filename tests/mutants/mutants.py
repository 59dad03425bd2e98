#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Put small faults into packages of plugins/ and list those that no test notices.

Each fault (mutant) goes into a copy of this checkout, so an interrupted run leaves the checkout as it was. The tests
are those of the package and of the plugins that import it. ``equivalent.yml`` lists mutants that nobody could notice.
``--record`` adds the result of a whole package to ``tests/record/mutants.json``.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis.configuration import set_hypothesis_home_dir

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path("tests/record/mutants.json")
EQUIVALENT = Path(__file__).with_name("equivalent.yml")
DRIVERS = ("modules", "action", "filter", "callback")
MEMORY = 8 << 30  # bytes of address space for one mutant, which may collect without end
LENIENCE_S = 30  # on top of three times what the tests take without a fault

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

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}\n    {self.change}"

    @property
    def change(self) -> str:
        return f"{self.old} → {self.new}"

    @property
    def key(self) -> tuple[str, str, str]:
        """Return what identifies the mutant in ``equivalent.yml``, where line numbers would age."""
        return self.path.name, self.text, self.change

    def source(self) -> str:
        """Return the file with the fault."""
        tree = ast.parse((ROOT / self.path).read_text(encoding="utf-8"))
        target = list(_walk(tree))[self.node]

        class Replace(ast.NodeTransformer):
            def visit(self, node: ast.AST) -> Any:
                return new if node is target else self.generic_visit(node)

        new = _variants(target)[self.variant]
        return ast.unparse(ast.fix_missing_locations(Replace().visit(tree)))


def mutants(path: Path) -> Iterator[Mutant]:
    """Yield all mutants of a file."""
    text = (ROOT / path).read_text(encoding="utf-8")
    lines = text.split("\n")
    for number, node in enumerate(_walk(ast.parse(text))):
        line = min((child.lineno for child in ast.walk(node) if hasattr(child, "lineno")), default=1)
        for variant, new in enumerate(_variants(node)):
            yield Mutant(path, line, lines[line - 1].strip(), _head(node), _head(new), number, variant)


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


def package_path(name: str) -> Path:
    """Return the path of ``_netplan``, ``plugin_utils/_preflight`` or ``modules/nic_qos``."""
    plugins = ROOT / "plugins"
    for path in (
        plugins / "module_utils" / name,
        plugins / "plugin_utils" / name,
        plugins / name,
        plugins / f"{name}.py",
    ):
        if path.exists():
            return path.relative_to(ROOT)
    raise SystemExit(f"plugins/ has no package {name}")


def tests_of(package: Path) -> list[str]:
    """Return the test files that import the package or a plugin that imports it."""
    dotted = ".".join(package.with_suffix("").parts)
    drivers = {path for side in DRIVERS for path in (ROOT / "plugins" / side).glob("*.py") if _imports(path, {dotted})}
    names = {dotted, *(f"plugins.{path.parent.name}.{path.stem}" for path in drivers)}
    stems = {f"test_{path.stem}{end}" for path in drivers for end in ("", "_action")}
    own = ROOT / "tests/unit/plugins" / package.relative_to("plugins")
    tests = [
        path for side in ("hostile", "plugins") for path in sorted((ROOT / "tests/unit" / side).rglob("test_*.py"))
    ]
    return [
        str(path.relative_to(ROOT))
        for path in tests
        if own in path.parents or path.stem in stems or _imports(path, names)
    ]


def _imports(path: Path, names: set[str]) -> bool:
    """Tell whether a file imports one of these modules, or a part of one."""
    text = path.read_text(encoding="utf-8")
    if not any(name.rsplit(".", maxsplit=1)[-1] in text for name in names):
        return False
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            base = f"plugins.{module}" if node.level > 1 else module.partition("gb10.cluster.")[2]
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return any(f"{each}.".startswith(f"{name}.") for each in found for name in names)


class Watch:
    """A plugin of pytest: it runs the quickest tests first, and records how long each took."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.before = seconds
        self.seconds: dict[str, float] = {}

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items.sort(key=lambda item: self.before.get(item.nodeid, 0))

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0) + report.duration


def run_tests(directory: Path, tests: list[str], seconds: dict[str, float], limit: float) -> int | None:
    """Run tests of a copy in a process of their own; return pytest's exit status, or None if they took too long."""
    child = os.fork()
    if not child:
        code = 70
        try:
            code = _child(directory, tests, seconds)
        finally:
            os._exit(code)
    deadline = time.monotonic() + limit
    ended, status = 0, 0
    while not ended and time.monotonic() < deadline:
        time.sleep(0.02)
        ended, status = os.waitpid(child, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError):  # what the tests started and left behind
        os.killpg(child, signal.SIGKILL)
    if not ended:
        os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) if ended else None


def _child(directory: Path, tests: list[str], seconds: dict[str, float]) -> int:
    os.setsid()
    os.chdir(directory)
    # Compiled files are told apart by seconds and size, and two mutants of one second and size would be taken for one.
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    output = os.open(directory / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    temporary = directory / "temporary"
    shutil.rmtree(temporary, ignore_errors=True)
    set_hypothesis_home_dir(str(temporary / "hypothesis"))
    watch = Watch(seconds)
    options = [f"--rootdir={directory}", f"--basetemp={temporary}", "--hypothesis-seed=0", "-xq", "--no-header"]
    code = int(pytest.main([*options, "-p", "no:cacheprovider", "-p", "no:xdist", *tests], plugins=[watch]))
    if not seconds:
        foreign = [name for name, module in sys.modules.items() if not _of_copy(name, module, directory)]
        (directory / "baseline.json").write_text(json.dumps([watch.seconds, foreign]), encoding="utf-8")
    return code


def _of_copy(name: str, module: Any, directory: Path) -> bool:
    """Tell whether a module may be another one in the next copy; `ansible_collections` has other parts there."""
    return name.startswith("ansible_collections") or str(getattr(module, "__file__", "")).startswith(str(directory))


def copy_checkout(scratch: str) -> Path:
    """Copy the files of the checkout, with changes that are not committed, to a new directory below ``scratch``."""
    directory = Path(tempfile.mkdtemp(dir=scratch))
    for name in filter(None, _git("ls-files", "-coz", "--exclude-standard").split("\0")):
        if os.path.lexists(ROOT / name):
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, directory / name, follow_symlinks=False)
    return directory


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=True, text=True).stdout


def _enter_copy(scratch: str) -> None:
    """Give a worker its own copy."""
    os.chdir(copy_checkout(scratch))


def _try(job: tuple[Mutant, list[str], dict[str, float], float]) -> tuple[Mutant, bool]:
    """Return a mutant and whether the tests of the copy in which this worker is noticed it."""
    mutant, tests, seconds, limit = job
    original = mutant.path.read_bytes()
    mutant.path.write_text(mutant.source(), encoding="utf-8")
    try:
        return mutant, run_tests(Path.cwd(), tests, seconds, limit) != 0
    finally:
        mutant.path.write_bytes(original)


def accepted(package: Path) -> set[tuple[str, str, str]]:
    """Return the keys of the mutants of a package that are listed as equivalent."""
    listed = yaml.safe_load(EQUIVALENT.read_text(encoding="utf-8")) or {}
    entries = listed.get("/".join(package.with_suffix("").parts[1:]), [])
    return {(entry["file"], entry["line"], entry["change"]) for entry in entries}


def all_mutants(package: Path) -> list[Mutant]:
    """Return all mutants of a package or of one file."""
    files = [package] if package.suffix else sorted(path.relative_to(ROOT) for path in (ROOT / package).glob("*.py"))
    return [mutant for path in files for mutant in mutants(path)]


def chosen(package: Path, pattern: str, seed: int, count: int) -> list[Mutant]:
    """Return the mutants to try: all that are not equivalent, or a sample that the seed determines."""
    known = accepted(package)
    found = [each for each in all_mutants(package) if fnmatch(each.path.name, pattern) and each.key not in known]
    return random.Random(seed).sample(found, count) if 0 < count < len(found) else found


def try_package(package: Path, found: list[Mutant], jobs: int, without: str) -> list[Mutant]:
    """Print the survivors as they are found, and return them; test files that match ``without`` do not run."""
    tests = [name for name in tests_of(package) if not fnmatch(Path(name).name, without)]
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        directory = copy_checkout(scratch)
        start = time.monotonic()
        if run_tests(directory, tests, {}, 900) != 0:
            sys.stdout.write((directory / "output").read_text(encoding="utf-8", errors="replace")[-4000:])
            raise SystemExit(f"{package}: its tests fail without any fault")
        limit = LENIENCE_S + 3 * (time.monotonic() - start)
        seconds, foreign = json.loads((directory / "baseline.json").read_text(encoding="utf-8"))
        for name in foreign:  # imported once, so that each mutant's process starts with them
            with contextlib.suppress(Exception):
                importlib.import_module(name)
        if run_tests(directory, tests, seconds, limit) != 0:  # else every mutant would count as noticed
            raise SystemExit(f"{package}: its tests fail without any fault in a process that has their modules")
        survivors = []
        with multiprocessing.get_context("fork").Pool(jobs, _enter_copy, (scratch,)) as pool:
            for mutant, noticed in pool.imap_unordered(_try, [(each, tests, seconds, limit) for each in found]):
                if not noticed:
                    survivors.append(mutant)
                    sys.stdout.write(f"{mutant}\n")
                    sys.stdout.flush()
    return survivors


def record(package: Path, result: dict[str, int | str]) -> None:
    """Add a result to the record, in which each package has its results in the order of their runs."""
    path = ROOT / RECORD
    results = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    results.setdefault("/".join(package.with_suffix("").parts[1:]), []).append(result)
    blocks = [
        f"  {json.dumps(name)}: [\n" + ",\n".join(f"    {json.dumps(each)}" for each in results[name]) + "\n  ]"
        for name in sorted(results)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="+", help="_netplan, modules/nic_qos, …")
    parser.add_argument("--count", type=int, default=0, help="size of the sample per package; 0: all mutants")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--files", default="*.py", help="pattern for the names of the files to change")
    parser.add_argument("--without", default="", help="pattern for the names of test files to leave out: slow ones")
    parser.add_argument("--least", type=float, default=0, help="fail if a smaller percentage is killed")
    parser.add_argument("--record", action="store_true", help=f"add the result to {RECORD}")
    parser.add_argument("--list", action="store_true", help="print the mutants without trying them")
    options = parser.parse_args(arguments)
    if options.record and options.files != "*.py":
        parser.error("--record is for whole packages, so not with --files")
    weak = 0
    commit = _git("describe", "--always", "--exclude=*", "--abbrev=8", "--dirty=+").strip() if options.record else ""
    for name in options.packages:
        package = package_path(name)
        found = chosen(package, options.files, options.seed, options.count)
        if options.list:
            sys.stdout.write("".join(f"{mutant}\n" for mutant in found))
            continue
        start = time.monotonic()
        killed = len(found) - len(try_package(package, found, options.jobs, options.without))
        share = 100 * killed / max(len(found), 1)
        weak += share < options.least
        sys.stdout.write(
            f"{name}: {killed} of {len(found)} killed ({share:.0f} %), seed {options.seed}, "
            f"{len(accepted(package))} accepted as equivalent, {time.monotonic() - start:.0f} s\n"
        )
        sys.stdout.flush()
        if options.record:
            result = {
                "commit": commit,
                "date": f"{datetime.now(UTC):%Y-%m-%d}",
                "seed": options.seed,
                "mutants": len(found),
                "killed": killed,
                "equivalent": len(accepted(package)),
            }
            record(package, result)
    return 1 if weak else 0


if __name__ == "__main__":
    raise SystemExit(main())
