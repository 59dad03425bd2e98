#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Play the tests that need hosts, and record which commit passed them when.

A play is a file of tests/{lab,vm,browser,monitoring,installed}, a Molecule scenario, or tests/artifact. It declares
what it covers: paths in ``COVERS`` of a Python file, or in a comment ``# Covers: PATH …``. It also covers the modules
and actions that tasks in these paths name. A play is touched if the content of what it covers or of the play is not the
one that it passed with.
"""

import argparse
import ast
import fcntl
import functools
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import TypedDict

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path("tests/record/plays.json")
ALWAYS = "lab/demo"
BUDGET_S = 1200
END = "PLAYS_END"  # variable with the Unix time at which a selection ends, instead of the budget
UNKNOWN_S = 300  # estimate for a play without a record
PYTEST = ("pytest", "-v", "--durations=0", "-p", "no:cacheprovider")
# The tests of a lab file build on each other, so the first failure ends the file.
COMMANDS: dict[str, tuple[str, ...]] = {
    "lab": (*PYTEST, "--exitfirst"),
    "vm": PYTEST,
    "browser": PYTEST,
    "monitoring": PYTEST,
    "installed": PYTEST,
}


class Result(TypedDict):
    """What the record says about a play; ``covered`` is the digest of what it covered then."""

    commit: str
    date: str
    result: str
    seconds: int
    covered: str


@dataclass(frozen=True)
class Play:
    """A test that is played as a whole, by one command."""

    name: str
    path: Path
    command: tuple[str, ...]

    @property
    def covers(self) -> tuple[str, ...]:
        """Return the declared paths. Raises ValueError if the play declares none."""
        file = ROOT / self.path
        text = (file / "molecule.yml" if file.is_dir() else file).read_text(encoding="utf-8")
        if self.path.suffix == ".py":
            for node in ast.parse(text).body:
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COVERS":
                    return tuple(ast.literal_eval(node.value))
        elif declared := re.findall(r"^# Covers: (.+)$", text, re.MULTILINE):
            return tuple(" ".join(declared).split())
        raise ValueError(f"{self.path} does not declare what it covers")

    @property
    def digest(self) -> str:
        """Return a digest of the play and of what it covers, from the working tree."""
        whole = hashlib.sha256()
        for name in sorted(with_modules(files_below([*self.covers, str(self.path)]))):
            whole.update(f"{name} {_content(name)}\n".encode())
        return whole.hexdigest()[:12]


@functools.cache
def _files() -> tuple[str, ...]:
    listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    return tuple(sorted({name for name in listed if name and (ROOT / name).is_file()}))


@functools.cache
def _content(name: str) -> str:
    return hashlib.sha256((ROOT / name).read_bytes()).hexdigest()


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def published() -> str:
    """Return the newest commit that branch main has too, with a ``+`` if the tree differs from it."""
    has_main = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", "main"], cwd=ROOT, capture_output=True, check=False
    )
    base = _git("merge-base", "HEAD", "main") if has_main.returncode == 0 else _git("rev-parse", "HEAD")
    return base[:8] + ("+" if _git("diff", "--name-only", base, "--", ".", f":!{RECORD}") else "")


def files_below(paths: Iterable[str]) -> set[str]:
    """Return the files that git knows at or below these paths, without the generated README of a role."""
    found = {name for path in paths for name in _files() if name == path or name.startswith(f"{path}/")}
    return {name for name in found if not fnmatch(name, "roles/*/README.md")}


def with_modules(names: Iterable[str]) -> set[str]:
    """Return these files, and the modules and actions that the tasks in them name."""
    found, known = set(names), set(_files())
    for name in sorted(found):
        if name.endswith(".yml"):
            called = re.findall(r"\bgb10\.cluster\.(\w+):", (ROOT / name).read_text(encoding="utf-8"))
            found |= {f"plugins/{kind}/{one}.py" for one in called for kind in ("modules", "action")} & known
    return found


def plays() -> dict[str, Play]:
    """Return all plays of this checkout by name."""
    found = []
    for kind, command in COMMANDS.items():
        for path in sorted((ROOT / "tests" / kind).glob("test_*.py")):
            file = path.relative_to(ROOT)
            found.append(Play(f"{kind}/{path.stem.removeprefix('test_')}", file, (*command, str(file))))
    for path in sorted((ROOT / "molecule").glob("*/molecule.yml")):
        name = path.parent.name
        found.append(Play(f"molecule/{name}", Path("molecule", name), ("molecule", "test", "--scenario-name", name)))
    found.append(Play("artifact", Path("tests/artifact"), ("tests/artifact",)))
    return {play.name: play for play in found}


def read_record() -> dict[str, Result]:
    """Return the record, by name of the play."""
    path = ROOT / RECORD
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write_result(name: str, result: Result) -> None:
    """Put one result into the record, beside other processes that do the same."""
    path = ROOT / RECORD
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        record = json.loads(file.read() or "{}")
        record[name] = result
        lines = (f"  {json.dumps(key)}: {json.dumps(record[key])}" for key in sorted(record))
        file.truncate(0)
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


def ordered(digests: dict[str, str], record: dict[str, Result]) -> list[str]:
    """Return the plays with the most urgent first: the demo, failed ones, touched ones, then the oldest result."""

    def urgency(name: str) -> tuple[bool, bool, bool, str, str]:
        last = record.get(name)
        if last is None:
            return name != ALWAYS, True, True, "", name
        failed = last["result"] != "passed"
        return name != ALWAYS, not failed, last["covered"] == digests[name], last["date"], name

    return sorted(digests, key=urgency)


def play_selection(
    names: Iterable[str],
    record: dict[str, Result],
    budget: float,
    play: Callable[[str], bool],
    clock: Callable[[], float] = time.monotonic,
) -> tuple[list[str], list[str]]:
    """Play the demo, and of the other plays in their order each one that fits in what is left of the budget (s).

    Return the names of all that were played, and of those that failed. A play is expected to take its seconds in the
    record, longer or shorter by the factor that the demo has just taken: another machine is slower, or not so busy.
    """
    end, factor = clock() + budget, 1.0
    played, failed = [], []
    for name in names:
        begun = clock()
        expected = record[name]["seconds"] * factor if name in record else UNKNOWN_S
        if name != ALWAYS and expected > end - begun:
            continue
        played.append(name)
        if not play(name):
            failed.append(name)
        elif name == ALWAYS:
            factor = (clock() - begun) / expected
    return played, failed


def state(name: str, digest: str, record: dict[str, Result]) -> str:
    """Return one word about a play: never, failed, touched or passed."""
    last = record.get(name)
    if last is None:
        return "never"
    return last["result"] if last["result"] != "passed" or last["covered"] == digest else "touched"


def run(play: Play) -> bool:
    """Play, print and record the result, and return whether it passed."""
    print(f"--> play {play.name}: {' '.join(play.command)}", flush=True)
    _files.cache_clear()
    _content.cache_clear()
    commit = published()
    covered = play.digest
    started = time.monotonic()
    environment = {
        **os.environ,
        "PATH": f"{ROOT / '.venv/bin'}:{os.environ['PATH']}",
        "MOLECULE_GLOB": "molecule/*/molecule.yml",
    }
    passed = subprocess.run(play.command, cwd=ROOT, env=environment, check=False).returncode == 0
    date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ")
    seconds = round(time.monotonic() - started)
    result = Result(commit=commit, date=date, result="passed" if passed else "failed", seconds=seconds, covered=covered)
    write_result(play.name, result)
    print(f"--> play {play.name} {result['result']} in {seconds} s", flush=True)
    return passed


def print_state(known: dict[str, Play], record: dict[str, Result]) -> None:
    """Print every play in the order of the next selection, and what a whole cycle costs."""
    digests = {name: play.digest for name, play in known.items()}
    for name in ordered(digests, record):
        last = record.get(name)
        told = f"{last['date']}  {last['commit']:9}  {last['seconds']:5} s" if last else ""
        print(f"{name:28} {state(name, digests[name], record):8} {told}".rstrip())
    seconds = [record[name]["seconds"] for name in known if name in record]
    long = sorted(name for name in known if name in record and record[name]["seconds"] > BUDGET_S)
    print(f"{len(seconds)} of {len(known)} plays have a result; together they took {sum(seconds)} s.")
    print(f"Longer than the budget of {BUDGET_S} s, so never in the rotation: {', '.join(long) or 'none'}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if a play failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="print the state of all plays, the most urgent first")
    commands.add_parser("names", help="print the names of all plays as a JSON list")
    player = commands.add_parser("run", help="run plays and record their results")
    player.add_argument(
        "names", nargs="*", help="plays such as lab/demo or 'molecule/*'; none or rotation: a selection"
    )
    left = float(os.environ[END]) - time.time() if END in os.environ else BUDGET_S
    player.add_argument("--budget", type=float, default=left, help=f"seconds for a selection ({BUDGET_S}, or to {END})")
    given = parser.parse_args(arguments)
    known, record = plays(), read_record()
    if given.command == "list":
        print_state(known, record)
        return 0
    if given.command == "names":
        print(json.dumps(list(known)))
        return 0
    if given.names in ([], ["rotation"]):
        order = ordered({name: play.digest for name, play in known.items()}, record)
        if END in os.environ:
            # A pull request is not to blame for a play that did not pass before, or for a browser that a machine lacks.
            passed = {name for name, last in record.items() if last["result"] == "passed"}
            order = [name for name in order if name in passed | {ALWAYS} and name.startswith(("lab/", "molecule/"))]
        print(f"==> plays for {given.budget:.0f} s", flush=True)
        names, failed = play_selection(order, record, given.budget, lambda name: run(known[name]))
    else:
        names = [name for pattern in given.names for name in known if fnmatch(name, pattern)]
        if unknown := [pattern for pattern in given.names if not any(fnmatch(name, pattern) for name in known)]:
            parser.error(f"no play has this name: {', '.join(unknown)}. `plays.py list` prints all.")
        print(f"==> {len(names)} plays: {' '.join(names)}", flush=True)
        failed = [name for name in names if not run(known[name])]
    print(f"==> {len(names) - len(failed)} of {len(names)} plays passed. Failed: {' '.join(failed) or 'none'}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
