# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what is counted of a load, when its models' pages are dropped, and when it is ended."""

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pod.watch import tell

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


class Thread:
    """Does its work at once."""

    def __init__(self, target: Callable[[Any], None], args: tuple[Any], daemon: bool) -> None:
        self.work, self.args = target, args
        assert daemon

    def start(self) -> None:
        self.work(*self.args)

    def is_alive(self) -> bool:
        return False


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
        monkeypatch.setattr(watch, "threading", SimpleNamespace(Thread=Thread))
        (path / "base").mkdir()
        words = [str(path / "base"), "--port", "1", "--stop", "4", "--key", "k", "--kept", str(path / "kept.json")]
        self.load = watch.Load(watch.parse([*words, *more]))

    def look(self, now: float, available: float, free: float | None = None, swap: float = 0) -> str:
        self.now = now
        sizes = {
            "MemTotal": 100.0,
            "MemFree": available if free is None else free,
            "MemAvailable": available,
            "SwapFree": swap,
        }
        lines = "".join(f"{name}: {int(gib * 2**20)} kB\n" for name, gib in sizes.items())
        (self.path / "meminfo").write_text(lines)
        self.load.look(now)
        return str(self.load.state)

    def begin(self, phase: str, process: int = 7) -> None:
        with self.noted.open("a") as stream:
            stream.write(f"{process} {phase}\n")

    def told(self, name: str = "base/load.json") -> Any:
        return json.loads((self.path / name).read_text())


@pytest.fixture
def node(watch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(watch, tmp_path, monkeypatch)


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


def test_the_most_memory_of_each_phase_is_kept_beside_nccl_s_files_and_on_the_node(node: Node) -> None:
    node.look(0, 90)
    node.begin("weights")
    node.look(10, 40, 35)
    assert node.told()["phases"]["weights"] == {"seconds": 10, "taken_gib": 60, "cached_gib": 5}
    node.look(20, 50)
    node.begin("caches")
    node.look(21, 30)
    node.compilers = [0.01, 2.5]
    node.look(25, 10)
    node.compilers, node.status = [], 503
    node.look(30, 20)
    assert not (node.path / "kept.json").exists()
    node.status = 200
    assert node.look(40, 25) == "ready"
    told = node.told("kept.json")
    assert told == node.told()
    taken = {name: peak["taken_gib"] for name, peak in told["phases"].items()}
    assert taken == {"start": 10, "weights": 60, "caches": 70, "compile": 90, "warm-up": 80}
    assert (told["state"], told["key"], told["before_gib"], told["seconds"]) == ("ready", "k", 10, 40)
    assert (told["graphs_gib"], told["compiler_gib"], told["compilers_gib"]) == (0, 2.5, 2.51)
    said = tell(told)
    assert said.proven and "90.0 of the node's 100.0 GiB were taken at most, in the phase compile" in said.message


@pytest.mark.parametrize("seen", [True, False])
def test_caches_that_were_allocated_between_two_looks_do_not_count_as_graphs(node: Node, seen: bool) -> None:
    """On an H200 they took less than half a second (2026-11-30)."""
    for now, phase, available in ((0, "weights", 50), (1, "caches", 49), (2, "graphs", 20), (3, "graphs", 18)):
        node.begin(phase)
        if seen or phase != "caches":
            node.look(now, available)
    node.status = 200
    node.look(9, 19)
    taken = {name: peak["taken_gib"] for name, peak in node.told("kept.json")["phases"].items()}
    assert taken == {"weights": 50, "caches": 80, "graphs": 82}


def test_full_caches_are_dropped_first_and_not_all_the_time(node: Node) -> None:
    said = [node.look(now, 60, free) for now, free in ((0, 60), (1, 9), (2, 9), (3, 9), (4, 30), (5, 9))]
    assert node.dropped == [1, 3, 5] and set(said) == {"loads"}
    # Nothing can be dropped where caches hold less than is free.
    node.look(9, 9.5, 9)
    assert node.dropped == [1, 3, 5]


@pytest.mark.parametrize(
    ("available", "states"),
    [
        ((4, 3, 3, 3, 3), "loads loads loads loads ended"),
        ((4, 3, 3, 50, 3.9), "loads loads loads loads ended"),
        ((4, 3, 3, 5, 4), "loads loads loads loads loads"),
        ((50, 4, 4, 4, 4), "loads loads loads loads loads"),
        # All would be gone in less than 1.5 seconds.
        ((9, 6, 4.5, 3), "loads loads loads ended"),
        ((5, 3.9, 3.8, 3.7), "loads loads loads loads"),
    ],
)
def test_a_load_is_ended_after_its_pages_were_dropped_if_little_memory_lasts_or_soon_none_is_left(
    available: tuple[float, ...], states: str, node: Node
) -> None:
    node.begin("weights")
    assert " ".join(node.look(number / 2, gib) for number, gib in enumerate(available)) == states
    low = [number / 2 for number, gib in enumerate(available) if gib < 4]
    assert node.dropped == low[:1]
    if states.endswith("ended"):
        told = tell(node.told())
        assert not told.proven and node.told("kept.json")["state"] == "ended"
        assert told.message.startswith("the load was ended in its phase weights before the node froze: 3.")


@pytest.mark.parametrize(
    ("before", "times"),
    [
        (None, 1),
        ({"state": "ended", "key": "k", "times": 2, "before_gib": 1}, 3),
        ({"state": "ended", "key": "other", "times": 2, "before_gib": 1}, 1),
        ({"state": "ready", "key": "k"}, 1),
        ({"state": "ended", "key": "k"}, 1),
        ([], 1),
    ],
)
def test_loads_that_are_ended_in_a_row_are_counted(before: Any, times: int, node: Node) -> None:
    if before is not None:
        (node.path / "kept.json").write_text(json.dumps(before))
    for now in (0.0, 2.0):
        node.look(now, 2)
    assert node.told("kept.json")["times"] == node.told()["times"] == times


@pytest.mark.parametrize(
    ("planned", "swap", "states"),
    [
        # Available memory is 1 GiB, and less than 4 ends a load.
        (48, (60, 50, 12, 3.1, 3.1, 3.1), "loads loads loads loads loads loads"),
        (48, (60, 50, 12, 2.9, 2.9, 2.9, 2.9), "loads loads loads ended ended ended ended"),
        (48, (48, 20, 3.1, 2.9, 2.9, 2.9, 2.9), "loads loads loads loads loads loads ended"),
        # Swap that no plan has is not for this load.
        (0, (60, 60, 60, 60), "loads loads loads ended"),
        (2, (60, 60, 60, 60), "loads loads loads ended"),
    ],
)
def test_a_load_may_use_the_swap_that_the_plan_wants(
    planned: float, swap: tuple[float, ...], states: str, watch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(watch, tmp_path, monkeypatch, "--swap", str(planned))
    node.begin("weights")
    assert " ".join(node.look(number / 2, 1, swap=gib) for number, gib in enumerate(swap)) == states
    assert node.dropped[:1] == [0]
    if planned == 48:
        assert node.told()["swapped_gib"] == pytest.approx(48 - min(swap), abs=0.3)
        ended = states.endswith("ended")
        assert ("and 2.9 of the planned swap. Let SGLang" in node.told()["said"]) is ended
        assert "GiB were swapped out" in tell(node.told()).message


def test_nobody_waits_for_an_answer_while_memory_is_low(node: Node) -> None:
    node.look(0, 4.5)
    node.status = 200
    assert [node.look(now, gib) for now, gib in ((4, 3.9), (5, 3.9), (5.1, 50))] == ["loads"] * 3
    assert node.look(5.2, 50) == "ready"


def test_little_memory_is_looked_at_more_often(node: Node, watch: Any) -> None:
    pauses = []
    for now, gib in ((0, 50), (1, 16), (2, 15), (3, 50)):
        node.look(now, gib)
        pauses.append(node.load.pause)
    assert pauses == [watch.EVERY, watch.EVERY, watch.SOON, watch.EVERY]


def test_pages_are_not_dropped_twice_at_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Thread, "is_alive", lambda _self: True)
    for now in (0, 3, 6):
        node.look(now, 60, 9)
    assert node.dropped == [0]


def test_a_server_that_is_ready_is_left_to_the_guard_of_the_group(node: Node) -> None:
    node.status = 200
    assert [node.look(now, 1) for now in (0, 5, 10)] == ["ready"] * 3


def test_a_directory_that_cannot_be_written_ends_no_watch(node: Node) -> None:
    (node.path / "base").rmdir()
    (node.path / "base").touch()
    assert [node.look(now, 2) for now in (0.0, 2.0)] == ["loads", "ended"]


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


def test_all_processes_of_the_server_end_and_no_other(watch: Any) -> None:
    code = "print(1, flush=True); input()"
    for _generation in range(2):
        code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {code!r}]); input()"
    # A shell that starts these tests in the background lets them and their children ignore SIGQUIT.
    code = f"import signal; signal.signal(signal.SIGQUIT, signal.SIG_DFL); {code}"
    command = [sys.executable, "-c", code]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as server, subprocess.Popen(["cat"], **pipes) as other:
        assert server.stdout is not None and other.stdout is not None
        assert server.stdout.readline() == b"1\n"
        watch.end(watch.PROC, server.pid)
        # The innermost process has the pipe too.
        assert server.stdout.read() == b""
        assert server.wait() == -signal.SIGQUIT
        assert other.poll() is None
