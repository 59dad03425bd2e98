# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what is counted of a load, when its models' pages are dropped, and when it is ended."""

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pod.watch import tell
from stored import compare

UNIT = Path(__file__).resolve().parents[2]
FILES = UNIT.parents[1] / "roles/sglang/files"
REAL = UNIT / "fixtures/nccl/real"


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FILES))
    for name in ("start_rank", "watch_load"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield import_module("watch_load")
    for name in ("start_rank", "watch_load"):
        sys.modules.pop(name, None)


class Node:
    """A node of 100 GiB, and the load on it."""

    def __init__(self, watch: Any, path: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
        self.path, self.status, self.compilers, self.dropped = path, 0, list[float](), list[float]()
        self.now = 0.0
        self.noted = path / "phases"
        monkeypatch.setattr(watch, "MEMINFO", path / "meminfo")
        monkeypatch.setattr(watch, "PHASES", self.noted)
        monkeypatch.setattr(watch, "health", lambda _port: self.status)
        monkeypatch.setattr(watch, "compilers", lambda _proc: self.compilers)
        monkeypatch.setattr(watch, "drop_from_cache", lambda _models: self.dropped.append(self.now))
        self.slow = False

        def thread(target: Callable[[Any], None], args: tuple[Any], daemon: bool) -> SimpleNamespace:
            """Return a thread that does its work at once."""
            assert daemon
            return SimpleNamespace(start=lambda: target(*args), is_alive=lambda: self.slow)

        monkeypatch.setattr(watch, "threading", SimpleNamespace(Thread=thread))
        (path / "base").mkdir()
        words = [str(path / "base"), "--port", "1", "--stop", "4", "--key", "k", "--kept", str(path / "kept.json")]
        self.load = watch.Load(watch.parse([*words, *more]))

    def look(self, now: float, available: float, free: float | None = None, swap: float = 0) -> str:
        """Look once at memory of these GiB; return what comes of it."""
        self.now, dropped = now, len(self.dropped)
        sizes = {"MemTotal": 100, "MemFree": available if free is None else free, "MemAvailable": available}
        lines = "".join(f"{name}: {int(gib * 2**20)} kB\n" for name, gib in {**sizes, "SwapFree": swap}.items())
        (self.path / "meminfo").write_text(lines)
        self.load.look(now)
        drops = ", drops its pages" if len(self.dropped) > dropped else ""
        return f"{now:g} s: {self.load.state}, {available:g} GiB{drops}, next in {self.load.pause:g}"

    def told(self, name: str) -> dict[str, Any]:
        """Return what a file tells, without the time of day."""
        file = self.path / name
        told: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
        return {key: value for key, value in told.items() if key != "at"}

    def run(self, *steps: Any) -> list[str]:
        """Return what comes of looks at memory, between which phases begin (a text) and other things change."""
        lines: list[str] = []
        for step in steps:
            if isinstance(step, str):
                with self.noted.open("a") as stream:
                    stream.write(f"7 {step}\n")
            elif isinstance(step, dict):
                self.__dict__.update(step)
            else:
                lines.append(self.look(*step))
        told, kept = self.told("base/load.json"), self.told("kept.json")
        if not told:
            return lines
        said = tell(told | {"at": ""})
        same = "kept on the node" if kept == told else f"on the node: {kept}"
        figures = [f"{name} {value}" for name, value in told.items() if value and name not in ("phases", "said")]
        peaks = [f"{name} {', '.join(map(str, peak.values()))}" for name, peak in told["phases"].items()]
        return [*lines, ", ".join(figures), "; ".join(peaks), f"proven: {said.proven}, {said.message}", same]


def every_half_second(*available: float, swap: Sequence[float] = ()) -> list[Any]:
    return ["weights", *((n / 2, gib, None, swap[n] if swap else 0) for n, gib in enumerate(available))]


READY = {"status": 200}
GRAPHS: list[Any] = ["graphs", (2, 20), "graphs", (3, 18), READY, (9, 19)]
BARE = {"state": "ended", "key": "k"}
COUNTED = BARE | {"times": 2, "before_gib": 1}
# Options of the watch, what the node keeps of an earlier load, and what happens one after the other
CASES: dict[str, tuple[tuple[str, ...], Any, list[Any]]] = {
    "a load": (
        (),
        None,
        [
            (0, 90), "weights", (10, 40, 35), (20, 50), "caches", (21, 30), {"compilers": [0.01, 2.5]}, (25, 10),
            {"compilers": [], "status": 503}, (30, 20), READY, (40, 25),
        ],
    ),
    "caches": ((), None, ["weights", (0, 50), "caches", (1, 49), *GRAPHS]),
    # On an H200 they took less than half a second (2026-11-30).
    "caches between two looks": ((), None, ["weights", (0, 50), "caches", *GRAPHS]),
    # At the end, caches hold less than is free.
    "a full page cache": ((), None, [*((now, 60, free) for now, free in enumerate((60, 9, 9, 9, 30, 9))), (9, 9.5, 9)]),
    "a page cache that is not dropped in time": ((), None, [{"slow": True}, (0, 60, 9), (3, 60, 9), (6, 60, 9)]),
    **{
        f"{name}: {available}": ((), None, every_half_second(*available))
        for name, available in (
            ("little memory", (4, 3, 3, 3, 3)),
            ("little memory twice", (4, 3, 3, 50, 3.9)),
            ("little memory for a moment", (4, 3, 3, 5, 4)),
            ("just enough", (50, 4, 4, 4, 4)),
            ("none in less than 1.5 seconds", (9, 6, 4.5, 3)),
            ("falling slowly", (5, 3.9, 3.8, 3.7)),
        )
    },
    **{
        f"ended after {before}": ((), before, [(0, 2), (2, 2)])
        for before in (COUNTED, COUNTED | {"key": "other"}, {"state": "ready", "key": "k"}, BARE, [])
    },
    # Swap that no plan has is not for this load.
    **{
        f"{planned} GiB of swap planned, {swap} free": (
            ("--swap", str(planned)),
            None,
            every_half_second(*[1] * len(swap), swap=swap),
        )
        for planned, swap in (
            (48, (60, 50, 12, 3.1, 3.1, 3.1)),
            (48, (60, 50, 12, 2.9, 2.9, 2.9, 2.9)),
            (48, (48, 20, 3.1, 2.9, 2.9, 2.9, 2.9)),
            (0, (60, 60, 60, 60)),
            (2, (60, 60, 60, 60)),
        )
    },
    "an answer while memory is low": ((), None, [(0, 4.5), READY, (4, 3.9), (5, 3.9), (5.1, 50), (5.2, 50)]),
    "much, then little": ((), None, [(0, 50), (1, 16), (2, 15), (3, 50)]),
    "ready": ((), None, [READY, (0, 1), (5, 1), (10, 1)]),
}  # fmt: skip


def test_looks_at_loads_and_what_is_told_are_those_that_are_stored(
    watch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MAX_JOBS", raising=False)
    found = {}
    for number, (name, (more, before, steps)) in enumerate(CASES.items()):
        path = tmp_path / str(number)
        path.mkdir()
        if before is not None:
            (path / "kept.json").write_text(json.dumps(before))
        found[name] = Node(watch, path, monkeypatch, *more).run(*steps)
    compare("watched_loads", found)


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(FILES))
    made = logging.getLogRecordFactory()
    yield import_module("front_door")
    logging.setLogRecordFactory(made)
    sys.modules.pop("front_door", None)


@pytest.mark.parametrize(
    ("log", "phases", "graphs"),
    [
        ("sglang-0.5.16-tp2-base.rank0.log", "start weights caches graphs", 0.14),
        ("sglang-0.5.16-tp2-base.rank1.log", "start weights caches graphs", 0.14),
        ("sglang-0.5.16-tp2-eagle.rank1.log", "start weights caches draft caches graphs", 0.23),
    ],
)
def test_the_lines_of_a_real_server_begin_the_phases(
    log: str, phases: str, graphs: float, door: Any, watch: Any, tmp_path: Path
) -> None:
    noted = tmp_path / "phases"
    noted.touch()
    door.note_phases(noted)
    found = [watch.last_phase("")]
    for line in (REAL / log).read_text().splitlines():
        # SGLang's format has the time and the rank before the message.
        logging.getLogger("sglang").warning(line.partition("] ")[2])
        phase = watch.last_phase(noted.read_text())
        found += [phase] if phase != found[-1] else []
    assert found == phases.split()
    assert watch.graphs_took(noted.read_text()) == pytest.approx(graphs)


SCHEDULER = """
import logging

def work():
    # SGLang replaces the handlers in each process.
    logging.basicConfig(level="INFO", format="[TP0] %(message)s", force=True)
    for line in ("Load weight begin. avail mem=1 GB", "Load weight end. elapsed=1 s", "Load weight begin."):
        logging.getLogger("sglang.srt").info(line)
"""
ENGINE = """
import multiprocessing
from scheduler import work

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=work)
    process.start()
    process.join()
    print(process.pid)
"""


def test_a_process_that_the_server_spawns_notes_its_phases(watch: Any, tmp_path: Path) -> None:
    """The directory is that of a pod, so the program runs with another one."""
    program = (FILES / "front_door.py").read_text()
    (tmp_path / "front_door.py").write_text(program.replace('"/tmp/gb10-stacks"', repr(str(tmp_path))))
    (tmp_path / "engine.py").write_text(ENGINE)
    (tmp_path / "scheduler.py").write_text(SCHEDULER)
    words = [sys.executable, "front_door.py", "engine"]
    env = {"GB10_POD_IPS": "10.1.0.1"}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    noted = (tmp_path / "phases").read_text()
    assert {line.split()[0] for line in noted.splitlines()} == {done.stdout.strip()}
    assert watch.last_phase(noted) == "draft"
    assert "[TP0] Load weight end" in done.stderr


def test_a_line_that_is_no_text_or_has_no_place_disturbs_no_server(door: Any, tmp_path: Path) -> None:
    door.note_phases(tmp_path / "missing" / "phases")
    for said in (ValueError("Load weight begin"), "Load weight begin", 7):
        assert logging.getLogRecordFactory()("sglang", 20, "f", 1, said, (), None).msg == said


def test_weights_of_another_process_are_no_draft(watch: Any) -> None:
    assert watch.last_phase("1 weights\n1 caches\n2 weights\n") == "weights"


def test_a_directory_that_cannot_be_written_ends_no_watch(
    watch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(watch, tmp_path, monkeypatch)
    (tmp_path / "base").rmdir()
    (tmp_path / "base").touch()
    node.run((0, 2), (2, 2))
    assert node.load.state == "ended"


def test_the_watch_outlives_readings_that_fail_and_ends_with_its_server(
    watch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parents = iter([7, 7, 7, 7, 7, 1])
    readings = iter([OSError("away"), ValueError("no line"), "loads", "ended"])
    ended: list[int] = []

    class Load:
        state, said, pause = "loads", "the load was ended", 0

        def __init__(self, _options: object) -> None:
            """Read nothing."""

        def look(self, _now: float) -> None:
            read = next(readings)
            if isinstance(read, Exception):
                raise read
            self.state = read

    monkeypatch.setattr(watch, "Load", Load)
    monkeypatch.setattr(watch.os, "getppid", lambda: next(parents))
    monkeypatch.setattr(watch, "end", lambda _proc, server: ended.append(server))
    watch.main([str(tmp_path), "--port", "1"])
    assert ended == [7] and capsys.readouterr().out == "the load was ended\n"


def test_the_watch_does_not_end_itself(watch: Any) -> None:
    assert os.getpid() not in watch.children(watch.PROC, os.getppid())


def test_all_processes_of_the_server_end_and_no_other(watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "print(1, flush=True); input()"
    for _generation in range(2):
        code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {code!r}]); input()"
    # A shell that starts these tests in the background lets them and their children ignore SIGQUIT.
    code = f"import signal; signal.signal(signal.SIGQUIT, signal.SIG_DFL); {code}"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes, start_new_session=True) as server:
        real = os.kill

        def kill(pid: int, number: int) -> None:
            # A fault must not end all processes of the machine that runs this test.
            assert pid > 1 and os.getsid(pid) == server.pid
            real(pid, number)

        monkeypatch.setattr(watch.os, "kill", kill)
        assert server.stdout is not None and server.stdout.readline() == b"1\n"
        watch.end(watch.PROC, server.pid)
        # The innermost process has the pipe too.
        assert server.stdout.read() == b""
        assert server.wait() == -signal.SIGQUIT
