#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Put small faults into packages of plugins/ and list those that no test notices.

First run the tests in the folder of the package, then, for the faults that they do not notice, those of other plugins
that import it. Each time they run once without a fault to see which lines each test executes.
Then each fault (mutant) is written into a copy of this checkout and gets the tests that execute its statement, the
quickest first, and at last those that start Python themselves. A fault in a function is also put into the loaded
function. For other faults (constants, defaults) all tests of the package run after a new import, first those that
execute a line of the file. Property tests try few examples and tests that run Ansible are skipped, so the share of
noticed faults is a lower bound.

``equivalent.yml`` lists mutants that nobody could notice. ``--record`` adds the result of a whole package to
``tests/record/mutants.json``.
"""

import argparse
import ast
import contextlib
import gc
import json
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest
import yaml
from faults import Mutant, mutants
from hypothesis import HealthCheck, Phase, settings

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path("tests/record/mutants.json")
EQUIVALENT = Path(__file__).with_name("equivalent.yml")
DRIVERS = ("modules", "action", "filter", "callback")
MEMORY = 8 << 30  # bytes of address space for one mutant, which may collect without end
LONGEST_S = 1200  # for all tests without a fault
TOOL = 2  # the number that sys.monitoring has for profilers
IMPORT = -1  # the number of the test that stands for the import of all tests
PROGRAM = (Path(), 0)  # the line that stands for the start of Python


def package_path(name: str) -> Path:
    """Return the path of ``_nccl``, ``plugin_utils/_node`` or ``modules/nic_qos``."""
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


def own_tests(package: Path) -> Path:
    """Return the folder with the tests of a package, which a single plugin does not have."""
    return ROOT / "tests/unit/plugins" / package.relative_to("plugins")


def tests_of(package: Path) -> list[str]:
    """Return the test files that import the package or a plugin that imports it."""
    dotted = ".".join(package.with_suffix("").parts)
    drivers = {path for side in DRIVERS for path in (ROOT / "plugins" / side).glob("*.py") if _imports(path, {dotted})}
    names = {dotted, *(f"plugins.{path.parent.name}.{path.stem}" for path in drivers)}
    stems = {f"test_{path.stem}{end}" for path in drivers for end in ("", "_action")}
    own = own_tests(package)
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


class Lines:
    """It writes which lines of a package each test executes, also in processes that the test forks."""

    def __init__(self, package: Path, log: Path) -> None:
        self.log = log
        self._test = IMPORT
        self._root = Path.cwd()
        self._package = package.resolve()
        self._descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._files: dict[str, Path | None] = {}
        self._seen: set[tuple[int, Path, int]] = set()

    def start(self, test: int = IMPORT) -> None:
        """Write the lines from now on as those of this test."""
        self._test = test
        if sys.version_info >= (3, 12):

            def once(code: CodeType, line: int) -> object:
                self._line(code, line)
                return sys.monitoring.DISABLE

            if not sys.monitoring.get_tool(TOOL):
                sys.monitoring.use_tool_id(TOOL, "mutants")
                sys.monitoring.set_events(TOOL, sys.monitoring.events.LINE)
            sys.monitoring.register_callback(TOOL, sys.monitoring.events.LINE, once)
            sys.monitoring.restart_events()
        else:
            threading.settrace(self._trace)
            sys.settrace(self._trace)  # Python removes a trace function in which the stack overflows

    def stop(self) -> None:
        if sys.version_info >= (3, 12):
            sys.monitoring.set_events(TOOL, 0)
            sys.monitoring.free_tool_id(TOOL)
        else:
            sys.settrace(None)

    def _trace(self, frame: FrameType, _event: str, _value: object) -> Any:
        self._line(frame.f_code, frame.f_lineno)
        return self._trace if self._files[frame.f_code.co_filename] else None

    def _line(self, code: CodeType, line: int) -> None:
        name = code.co_filename
        if name not in self._files:
            path = Path(name).resolve()
            self._files[name] = path.relative_to(self._root) if path.is_relative_to(self._package) else None
        place = self._files[name]
        if place and code.co_name != "<module>" and (self._test, place, line) not in self._seen:
            self._seen.add((self._test, place, line))
            self._write(place, line)

    def audit(self, event: str, values: tuple[Any, ...]) -> None:
        """Write which tests start Python."""
        if event == "subprocess.Popen" and str(values[0]) == sys.executable:
            self._write(*PROGRAM)

    def _write(self, path: Path, line: int) -> None:
        os.write(self._descriptor, f"{self._test} {line} {path}\n".encode())

    def read(self) -> dict[tuple[Path, int], set[int]]:
        """Return the numbers of the tests that execute each line."""
        executed = defaultdict(set)
        for entry in self.log.read_text(encoding="utf-8").splitlines():
            test, line, path = entry.split(" ", 2)
            executed[Path(path), int(line)].add(int(test))
        return executed


class Trial:
    """A plugin of pytest: it collects tests once, and runs them in processes of their own, with and without faults."""

    def __init__(
        self, package: Path, found: list[Mutant], scratch: Path, report: Callable[[str], object], lenience: float
    ) -> None:
        self.survivors: list[int] = []
        self.late = 0
        self.error = ""
        self._lenience = lenience
        self._found = found
        self._scratch = scratch
        self._report = report
        self._package = package
        self._functions: dict[Path, list[FunctionType]] = {}
        self._lines = Lines(package, scratch / "lines")
        self._seconds: dict[str, float] = defaultdict(float)
        self._failed = False

    def pytest_collection(self) -> None:
        load_settings()
        self._lines.start()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.failed:
            self._failed = True
            (self._scratch / "failed").write_text(f"{report.nodeid}\n{report.longreprtext}\n", encoding="utf-8")

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        self._lines.stop()
        if session.testsfailed:
            return None  # pytest reports what it could not collect
        items = session.items
        gc.unfreeze()  # conftest.py freezes what the collection made, and gc.get_objects() leaves that out
        self._functions = functions_of(self._package)
        gc.freeze()
        if run_apart(lambda: self._run(items, self._lines), self._scratch, LONGEST_S) != 0:
            self.error = "its tests fail without any fault"
            return True
        seconds = json.loads((self._scratch / "seconds").read_text(encoding="utf-8"))
        took = [seconds[item.nodeid] for item in items]
        executed = self._lines.read()
        every = set(range(len(items)))  # a test may only compare what its file computed when it was imported

        def noticed(mutant: Mutant | None) -> bool:
            tests = set().union(*(executed[mutant.path, line] for line in mutant.lines)) if mutant else {IMPORT}
            # What no test executes may have been executed by an import before the tests were collected.
            loaded = bool(mutant and mutant.function and tests and IMPORT not in tests)
            near = set().union(*(those for (path, _), those in executed.items() if mutant and path == mutant.path))
            chosen = sorted(tests if loaded else every, key=lambda number: (number not in near, took[number]))
            chosen += sorted(executed[PROGRAM].difference(chosen))
            limit = self._lenience + 5 * sum(took[number] for number in chosen) if mutant else LONGEST_S
            original = mutant.path.read_bytes() if mutant else b""
            try:
                tried = [items[number] for number in chosen]
                status = run_apart(lambda: self._try(mutant, loaded, tried), self._scratch, limit) if tried else 0
                if status is None:
                    self.late += 1
                    self._report(f"out of time: {mutant}\n")
                return status != 0
            finally:
                if mutant:
                    mutant.path.write_bytes(original)

        if noticed(None):  # else every mutant would count as noticed
            self.error = "its tests fail without any fault in the order of their seconds"
            return True
        for number, mutant in enumerate(self._found):
            if not noticed(mutant):
                self.survivors.append(number)
                self._report(f"{mutant}\n")
        return True

    def _run(self, items: list[pytest.Item], lines: Lines | None = None) -> int:
        if lines:
            sys.addaudithook(lines.audit)
        for number, item in enumerate(items):
            if lines:
                lines.start(number)
            following = items[number + 1] if number + 1 < len(items) else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                return 1
        (self._scratch / "seconds").write_text(json.dumps(self._seconds), encoding="utf-8")
        return 0

    def _try(self, mutant: Mutant | None, loaded: bool, items: list[pytest.Item]) -> int:
        if mutant:
            mutant.path.write_text(ast.unparse(mutant.tree()), encoding="utf-8")
            if loaded and put_into_functions(mutant, self._functions[mutant.path.resolve()]):
                return self._run(items)
        return collect_again([item.nodeid for item in items])


def load_settings() -> None:
    """Give property tests few examples and no search for a smaller one that fails, and leave out tests that run plays.

    Their plays load the plugins from files, in other processes, where no function has the fault.
    """
    phases = (Phase.explicit, Phase.generate)
    few = settings(
        max_examples=10, phases=phases, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    settings.register_profile("mutants", few)
    settings.load_profile("mutants")
    if plays := sys.modules.get("ansible_plays"):
        # Only in this runner, where such a test proves nothing: it would count as one that notices no fault.
        vars(plays)["ansible"] = lambda *_words, **_settings: pytest.skip("a play", allow_module_level=True)


def functions_of(package: Path) -> dict[Path, list[FunctionType]]:
    """Return the loaded functions of each file of a package."""
    loaded = [each for each in gc.get_objects() if isinstance(each, FunctionType)]
    paths = {name: Path(name).resolve() for name in {each.__code__.co_filename for each in loaded}}
    found = defaultdict(list)
    for each in loaded:
        if (path := paths[each.__code__.co_filename]).is_relative_to(package.resolve()):
            found[path].append(each)
    return found


def put_into_functions(mutant: Mutant, loaded: list[FunctionType]) -> bool:
    """Replace the code of the functions that have the fault, and tell whether there are any."""
    codes = {
        (code.co_qualname, code.co_firstlineno): code for code in _codes(compile(mutant.tree(), mutant.path, "exec"))
    }
    functions = [each for each in loaded if each.__code__.co_qualname == mutant.function]
    for function in functions:
        function.__code__ = codes[mutant.function, function.__code__.co_firstlineno]
    return bool(functions)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def collect_again(names: list[str]) -> int:
    """Import the modules of the copy again, and run these tests in this order."""
    for name, module in list(sys.modules.items()):
        if _of_copy(name, module, Path.cwd()):
            del sys.modules[name]

    class Order:
        def pytest_collection(self) -> None:
            load_settings()

        def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
            found = {item.nodeid: item for item in items}
            items[:] = [found[name] for name in names]

    return run_pytest(list(dict.fromkeys(name.split("::")[0] for name in names)), Order())


def run_pytest(tests: list[str], plugin: object) -> int:
    options = [f"--rootdir={Path.cwd()}", "--hypothesis-seed=0", "-xq", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return int(pytest.main([*options, *tests], plugins=[plugin]))


def run_apart(work: Callable[[], int], scratch: Path, limit: float) -> int | None:
    """Run a function in a process of its own; return its status, or None if it took longer than `limit` seconds."""
    child = os.fork()
    if not child:
        code = 70
        try:
            code = _child(work, scratch)
        finally:
            os._exit(code)
    deadline = time.monotonic() + limit
    ended, status = 0, 0
    try:
        while not ended and time.monotonic() < deadline:
            time.sleep(0.01)
            ended, status = os.waitpid(child, os.WNOHANG)
    finally:
        with contextlib.suppress(ProcessLookupError):  # what the tests started and left behind
            os.killpg(child, signal.SIGKILL)
    if not ended:
        os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) if ended else None


def _child(work: Callable[[], int], scratch: Path) -> int:
    os.setsid()
    # Compiled files are told apart by seconds and size, and two mutants of one second and size would be taken for one.
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    output = os.open(scratch / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.mkdtemp(dir=scratch)
    return work()


def _of_copy(name: str, module: Any, directory: Path) -> bool:
    """Tell whether a module depends on the copy; `ansible_collections` has other parts there."""
    return name.startswith("ansible_collections") or str(getattr(module, "__file__", "")).startswith(str(directory))


def copy_checkout(scratch: str) -> Path:
    """Copy the files of the checkout, with changes that are not committed, to a new directory below ``scratch``."""
    directory = Path(tempfile.mkdtemp(dir=scratch))
    for name in filter(None, _git("ls-files", "-coz", "--exclude-standard").split("\0")):
        if os.path.lexists(ROOT / name):
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, directory / name, follow_symlinks=False)
    author = ("-c", "user.name=mutants", "-c", "user.email=mutants@localhost")
    for words in (("init", "-q"), ("add", "-A"), (*author, "commit", "-qm", "Copy")):  # some tests ask git
        _git(*words, directory=directory)
    return directory


def _git(*words: str, directory: Path = ROOT) -> str:
    return subprocess.run(["git", *words], cwd=directory, capture_output=True, check=True, text=True).stdout


def accepted(package: Path) -> set[tuple[str, str, str]]:
    """Return the keys of the mutants of a package that are listed as equivalent."""
    listed = yaml.safe_load(EQUIVALENT.read_text(encoding="utf-8")) or {}
    reasons = listed.get("/".join(package.with_suffix("").parts[1:]), {})
    return {(file, line, change) for entries in reasons.values() for file, line, change in entries}


def all_mutants(package: Path) -> list[Mutant]:
    """Return all mutants of a package or of one file."""
    files = [package] if package.suffix else sorted(path.relative_to(ROOT) for path in (ROOT / package).glob("*.py"))
    return [mutant for path in files for mutant in mutants(path)]


def chosen(package: Path, pattern: str, seed: int, count: int) -> list[Mutant]:
    """Return the mutants to try: all that are not equivalent, or a sample that the seed determines."""
    known = accepted(package)
    found = [each for each in all_mutants(package) if fnmatch(each.path.name, pattern) and each.key not in known]
    return random.Random(seed).sample(found, count) if 0 < count < len(found) else found


def try_package(package: Path, found: list[Mutant], without: str, lenience: float) -> tuple[list[Mutant], int]:
    """Print the survivors as they are found; return them, and how many faults ran out of time.

    Test files that match a pattern of ``without`` do not run.
    """
    tests = [name for name in tests_of(package) if not any(fnmatch(Path(name).name, each) for each in without.split())]
    own = [name for name in tests if (ROOT / name).is_relative_to(own_tests(package))]
    others = [name for name in tests if name not in own]
    late = 0
    for some in filter(None, (own, others)):
        if found:
            found, more = _try_tests(package, found, some, lenience, is_last=some is others or not others)
            late += more
    return found, late


def _try_tests(
    package: Path, found: list[Mutant], tests: list[str], lenience: float, is_last: bool
) -> tuple[list[Mutant], int]:
    with tempfile.TemporaryDirectory(prefix="mutants-") as name, os.fdopen(os.dup(1), "w") as stdout:
        scratch = Path(name)
        directory = copy_checkout(name)

        def report(text: str) -> None:
            stdout.write(text)
            stdout.flush()

        def session() -> int:
            os.chdir(directory)
            trial = Trial(package, found, scratch, report if is_last else lambda _text: None, lenience)
            status = run_pytest(tests, trial)
            result = [trial.survivors, trial.late, trial.error or status]
            (scratch / "result").write_text(json.dumps(result), encoding="utf-8")
            return 0

        run_apart(session, scratch, math.inf)
        survivors, late, error = json.loads((scratch / "result").read_text(encoding="utf-8"))
        if error not in {0, pytest.ExitCode.NO_TESTS_COLLECTED}:
            reason = scratch / ("failed" if (scratch / "failed").exists() else "output")
            report(reason.read_text(encoding="utf-8", errors="replace")[-4000:])
            raise SystemExit(f"{package}: {error}")
    return [found[number] for number in survivors], late


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
    parser.add_argument("packages", nargs="+", help="_nccl, modules/nic_qos, …")
    parser.add_argument("--count", type=int, default=0, help="size of the sample per package; 0: all mutants")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--files", default="*.py", help="pattern for the names of the files to change")
    parser.add_argument("--without", default="", help="patterns for the names of test files to leave out: slow ones")
    parser.add_argument("--least", type=float, default=0, help="fail if a smaller percentage is killed")
    parser.add_argument(
        "--lenience",
        type=float,
        default=20,
        metavar="SECONDS",
        help="a fault whose tests take so much longer than five times their time without it counts as killed",
    )
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
        survivors, late = try_package(package, found, options.without, options.lenience)
        killed = len(found) - len(survivors)
        share = 100 * killed / max(len(found), 1)
        weak += share < options.least
        sys.stdout.write(
            f"{name}: {killed} of {len(found)} killed ({share:.0f} %), seed {options.seed}, "
            f"{late} of them out of time, {len(accepted(package))} accepted as equivalent, "
            f"{time.monotonic() - start:.0f} s\n"
        )
        sys.stdout.flush()
        if options.record:
            result = {
                "commit": commit,
                "date": f"{datetime.now(UTC):%Y-%m-%d}",
                "seed": options.seed,
                "mutants": len(found),
                "killed": killed,
                "late": late,
                "equivalent": len(accepted(package)),
            }
            record(package, result)
    return 1 if weak else 0


if __name__ == "__main__":
    raise SystemExit(main())
