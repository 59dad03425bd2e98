# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the program of the sidecar: its settings, threads, probes and pages, and that it is started again."""

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from http.client import BadStatusLine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host.system import package_files
from ansible_collections.gb10.cluster.plugins.module_utils._pod import sidecar
from gate_rank import GATE, Rank, page_of

PATHS = ("/live", "/ready", "/metrics", "/token")
WELL, UNREADY, HUNG = [200, 200, 200, 404], [200, 503, 200, 404], [503, 503, 503, 404]


def test_probes_and_metrics_fail_while_the_sidecar_hangs_or_the_api_does_not_know_of_a_lost_proof(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 0.0
    monkeypatch.setattr(sidecar.time, "monotonic", lambda: clock)
    rank.watch.judged_at = 0.0
    page = page_of(monkeypatch, rank.watch.gate, rank.watch)
    rank.nccl("1")
    rank.step()
    steps: list[tuple[float, str, bool, bool, list[int]]] = [
        (0.0, "IB", False, False, WELL),
        (32.5, "IB", False, False, WELL),
        (33.0, "IB", False, False, HUNG),
        (33.0, "IB", True, False, WELL),
        # A proof that stays needs no answer of the API server.
        (33.0, "IB", True, True, WELL),
        (33.0, "Socket", True, True, UNREADY),
        (33.0, "Socket", True, False, WELL),
    ]
    for clock, net, turns, rank.api.away, expected in steps:
        rank.nccl("1", net=net)
        if turns:
            with suppress(OSError):
                rank.turn(clock - rank.now)
        answers = {path: page(path) for path in PATHS}
        assert [code for code, _text in answers.values()] == expected
        assert [path for path, (_code, text) in answers.items() if text] == ["/metrics"] * (expected is not HUNG)
    assert rank.api.conditions[-1].reason == "WrongTransport"


@pytest.mark.parametrize(
    ("judged", "closes", "expected"), [(0.5, False, WELL), (0.0, False, HUNG), (0.5, True, UNREADY)]
)
def test_without_a_transport_to_prove_the_other_parts_have_their_metrics(
    judged: float, closes: bool, expected: list[int], rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sidecar.time, "monotonic", lambda: 30.0)
    memory, answers, health, load = (
        SimpleNamespace(text=f"{name}\n", judged_at=judged, closes=closes)
        for name in ("memory", "answers", "health", "load")
    )
    page = page_of(monkeypatch, rank.watch.gate, None, memory, None, answers, health, load)
    assert [page(path)[0] for path in PATHS] == expected
    assert page("/metrics")[1] == ("" if expected is HUNG else "memory\nanswers\nhealth\nload\n")


def ship(place: Path) -> None:
    for path, source in package_files("_pod.sidecar", place).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)


def test_the_program_as_it_is_shipped_repeats_lines_and_ends_at_once_when_its_pod_ends(tmp_path: Path) -> None:
    ship(tmp_path)
    start = tmp_path / "logs" / "1"
    start.mkdir(parents=True)
    (start / "h.40").write_text("h:40:40 [0] NCCL INFO Using network IB\n")
    command = [sys.executable, "-m", "gb10._pod.sidecar", "--nccl-logs", str(start.parent)]
    program = subprocess.Popen(command, env={"PYTHONPATH": str(tmp_path)}, cwd="/", stdout=subprocess.PIPE)
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == b"h:40:40 [0] NCCL INFO Using network IB\n"
        program.terminate()
        assert program.wait(60) == 0
    finally:
        program.kill()
        program.communicate()


class Ended(Exception):
    """Ends a loop."""


def resting(done: list[Any], turns: int) -> SimpleNamespace:
    """Return a module time that notes the pauses of a loop, and ends it after so many turns."""

    def rest(seconds: float) -> None:
        done.append(seconds)
        if done.count(seconds) == turns:
            raise Ended

    return SimpleNamespace(**vars(time) | {"sleep": rest})


def begin(rank: Rank, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> list[str]:
    """Prepare the environment of the program, and return its command."""
    monkeypatch.setenv("POD_NAMESPACE", "s")
    monkeypatch.setenv("POD_UID", "u")
    monkeypatch.setattr(sidecar, "PodApi", lambda *_words: rank.api)
    gate = json.dumps(GATE | {"sysfs_root": str(rank.sysfs)} | changes)
    return ["sidecar", "--nccl-logs", str(rank.logs), "--gate", gate, "--state", str(rank.logs)]


def test_one_part_that_fails_or_hangs_does_not_keep_the_others_from_their_work(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hangs, ended = threading.Event(), threading.Event()

    def rest(_seconds: float) -> None:
        if rank.api.conditions:
            ended.set()
        if ended.wait(0.01):
            raise Ended

    def hang(_name: str) -> None:
        hangs.wait(20)
        raise OSError("timed out")

    def fail(_now: float) -> None:
        raise RuntimeError("a fault of this program")

    rank.nccl("1", net="Socket")
    monkeypatch.setattr(sys, "argv", begin(rank, monkeypatch, memory={"stop": 4}))
    monkeypatch.setattr(rank.api, "pod", hang)
    monkeypatch.setattr(sidecar, "NodeMemory", lambda *_words, **_more: SimpleNamespace(step=fail))
    monkeypatch.setattr(sidecar, "keep", lambda work, _answers: work())
    monkeypatch.setattr(threading, "excepthook", lambda _arguments: None)
    # Only the sidecar's own pause: module subprocess sleeps too while it waits for a program.
    monkeypatch.setattr(sidecar, "time", SimpleNamespace(**vars(time) | {"sleep": rest}))
    monkeypatch.setattr(sidecar, "serve_metrics", lambda *_words: None)
    before = set(threading.enumerate())
    with pytest.raises(Ended):
        sidecar.main()
    hangs.set()
    # A thread that rests after the test would rest for ever, as the pause is then the real one.
    for thread in set(threading.enumerate()) - before:
        thread.join()
    # Rank 0 judged and published while its question about rank 1 had no answer.
    assert [one.reason for one in rank.api.conditions] == ["WrongTransport"]
    assert "trying again: RuntimeError('a fault of this program')" in capsys.readouterr().out


WATCHED = ["Watch.ask", "Watch.publish", "Watch.step"]


@pytest.mark.parametrize(
    ("expect", "memory", "asks", "steps"),
    [
        (GATE["expect"], None, "off", WATCHED),
        (None, {"stop": 4}, "off", ["NodeMemory.step"]),
        (GATE["expect"], {"stop": 4}, "report", ["Answers.step", "NodeMemory.step", *WATCHED]),
        (None, None, "off", []),
    ],
)
def test_the_program_does_what_its_settings_ask_for(
    expect: object, memory: object, asks: str, steps: list[str], rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    served: list[Any] = []
    lived: list[int] = []
    kept: list[Any] = []

    def thread(target: Any, args: tuple[Any, ...], daemon: bool) -> Any:
        """Do the work at once."""
        assert daemon
        return SimpleNamespace(start=lambda: target(*args))

    command = begin(rank, monkeypatch, expect=expect, memory=memory, answers=asks)
    monkeypatch.setattr(sidecar, "serve_metrics", lambda *words: served.extend(words))
    monkeypatch.setattr(sidecar, "forever", lambda _interval, step: done.append(step.__qualname__))
    monkeypatch.setattr(sidecar, "keep", lambda *words: kept.extend(words))
    monkeypatch.setattr(sidecar, "lives", lived.append)
    monkeypatch.setattr(threading, "Thread", thread)
    for words in (command, command[:3]):
        monkeypatch.setattr(sys, "argv", words)
        sidecar.main()
    for work in kept[::2]:
        work()
    assert sorted(done) == sorted(["Health.step", "Load.step", *steps, *["work.<locals>.<lambda>"] * 2])
    assert [bool(part) for part in served[1:]] == [bool(expect), bool(memory), True, asks != "off", True, True]
    assert (served[0].pod, served[0].rails[0].device) == ("g-0-0", "mlx0")
    assert served[0].memory == (sidecar.Limits(stop=4) if memory else None)
    # Without a gate there is no page to ask for.
    assert ([answers() for answers in kept[1::2]], lived) == ([None, True], [0])


def test_the_lines_of_all_files_are_repeated(rank: Rank, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    rank.nccl("1", lines=1)
    (rank.logs / "1/g-0-0.41").write_text("other\n")
    sidecar.repeat(rank.watch.files)
    assert len(capsysbinary.readouterr().out.splitlines()) == 2


def test_a_step_is_repeated_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[Any] = []
    monkeypatch.setattr(sidecar, "time", resting(turns, 3))
    with pytest.raises(Ended):
        sidecar.forever(2.5, lambda _now: turns.append("step"))
    assert turns == ["step", 2.5] * 3


# Each start takes the next line of the plan. The program answers while the file "up" exists.
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from gb10._pod.sidecar import keep
place = Path(sys.argv[1])
if sys.argv[2] == "ends in its fork":
    os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGTERM))
def work():
    starts = place / "starts"
    number = len(starts.read_text().split()) if starts.exists() else 0
    with starts.open("a") as stream:
        stream.write(f"{os.getpid()} ")
    how = sys.argv[2:][number]
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "raises":
        print("its last words")
        raise RuntimeError("a fault")
    if how == "exits":
        sys.exit(3)
    if how == "hangs":
        (place / "up").touch()
        time.sleep(1)
        (place / "up").unlink()
    if how == "slow":
        time.sleep(1.2)  # more than the four pauses after which a program that answered hangs
    (place / "up").touch() if how != "hangs" else None
    time.sleep(60)
keep(work, lambda: (place / "up").exists(), 0.2)
"""


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


class Container:
    """A container whose program behaves at each start as planned."""

    def __init__(self, path: Path, *plan: str) -> None:
        self.path = path
        code = path / "code"
        ship(code)
        command = [sys.executable, "-c", PROGRAM, str(path), *plan]
        environment = {"PYTHONPATH": str(code)}
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def starts(self, wanted: int) -> list[int]:
        """Return the process numbers of the starts, as soon as there are so many."""
        file = self.path / "starts"
        wait_until(lambda: len(file.read_text().split() if file.exists() else []) >= wanted)
        return [int(word) for word in file.read_text().split()] if file.exists() else []

    def stop(self) -> tuple[int, str, str]:
        self.process.terminate()
        output, errors = self.process.communicate(timeout=60)
        return self.process.returncode, output, errors


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Callable[..., Container]]:
    running: list[Container] = []

    def start(*plan: str) -> Container:
        running.append(Container(tmp_path, *plan))
        return running[-1]

    yield start
    for one in running:
        one.process.kill()
        one.process.wait()


def test_a_program_that_crashes_is_started_again_in_its_container(container: Callable[..., Container]) -> None:
    started = container("killed", "raises", "exits", "runs")
    last = started.starts(4)[-1]
    assert started.process.poll() is None
    status, output, errors = started.stop()
    assert status == 0
    ends = [line.partition("the program ")[2] for line in output.splitlines() if "the program " in line]
    again = "; it is started again"
    assert ends == [f"ended with status -9{again}", *[f"ended with status 1{again}"] * 2]
    assert "RuntimeError: a fault" in errors
    assert "SystemExit: 3" in errors
    assert output.splitlines().count("its last words") == 1
    # A child ends by itself: it neither takes the work of its parent nor the way in which that one ends.
    assert "ChildProcessError" not in errors
    assert "SystemExit: 0" not in errors
    # The program ends with its container.
    wait_until(lambda: not Path(f"/proc/{last}").exists())


def test_a_program_that_hangs_is_killed_and_one_that_starts_slowly_is_not(
    container: Callable[..., Container], tmp_path: Path
) -> None:
    started = container("hangs", "slow")
    started.starts(2)
    wait_until((tmp_path / "up").exists)
    status, output, _errors = started.stop()
    assert (status, output.count("hung and was killed"), output.count("started again")) == (0, 1, 1)
    assert len(started.starts(2)) == 2


@pytest.mark.parametrize(
    ("answer", "alive"), [(200, True), (503, False), (OSError("refused"), False), (BadStatusLine("garbage"), False)]
)
def test_a_program_lives_if_its_page_says_so(answer: Any, alive: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(_opener: object, url: str, timeout: float) -> Any:
        assert (url, timeout) == ("http://127.0.0.1:9/live", 3)
        if isinstance(answer, Exception):
            raise answer
        return nullcontext(SimpleNamespace(status=answer))

    monkeypatch.setattr(urllib.request.OpenerDirector, "open", ask)
    assert sidecar.lives(9) is alive


@pytest.mark.parametrize(("pause", "until", "killed"), [(8.0, 12.0, 30.0), (3.0, 7.0, 18.0)])
def test_a_child_is_killed_that_answered_and_is_mute_for_a_while(
    pause: float, until: float, killed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, kills = [0.0], []

    def rest(seconds: float) -> None:
        assert seconds == 0.5
        clock[0] += seconds
        assert clock[0] < 60

    fake_os = SimpleNamespace(
        waitpid=lambda *_words: (0, 0), kill=lambda child, _signal: kills.append((child, clock[0])), WNOHANG=1
    )
    monkeypatch.setattr(sidecar, "os", fake_os)
    monkeypatch.setattr(sidecar, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=rest))
    assert sidecar._wait(7, lambda: clock[0] <= until, pause) == "hung and was killed"
    assert kills == [(7, killed)]


def test_a_child_is_started_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    monkeypatch.setattr(sidecar, "_start", lambda _work: done.append("start"))
    monkeypatch.setattr(sidecar, "_wait", lambda *_words: "ended")
    monkeypatch.setattr(sidecar, "signal", SimpleNamespace(**vars(signal) | {"signal": lambda *_words: None}))
    monkeypatch.setattr(sidecar, "time", resting(done, 2))
    with pytest.raises(Ended):
        sidecar.keep(lambda: None, lambda: True, 2.5)
    assert done == ["start", 2.5] * 2


def test_a_signal_between_two_starts_ends_the_container(container: Callable[..., Container]) -> None:
    started = container(*["exits"] * 50)
    started.starts(2)
    started.process.send_signal(signal.SIGTERM)
    assert started.process.wait(60) == 0


def test_a_signal_while_a_program_starts_ends_both(container: Callable[..., Container]) -> None:
    """The exception of the handler was lost: Python ignores those of hooks that run at a fork."""
    started = container("ends in its fork")
    assert started.process.wait(60) == 0
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started.starts(0)))


def test_a_signal_at_the_end_of_a_program_ends_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[Callable[[], None]] = []

    def gone(_child: int, _signal: int) -> None:
        raise ProcessLookupError

    noted = SimpleNamespace(**vars(signal) | {"signal": lambda _number, handler: handlers.append(handler)})
    monkeypatch.setattr(sidecar, "signal", noted)
    monkeypatch.setattr(sidecar, "os", SimpleNamespace(kill=gone))
    monkeypatch.setattr(sidecar, "_start", lambda _work: 4711)
    monkeypatch.setattr(sidecar, "_wait", lambda *_words: handlers[0]())
    with pytest.raises(SystemExit) as end:
        sidecar.keep(lambda: None, lambda: True)
    assert end.value.code == 0
