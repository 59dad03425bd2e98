# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a program that ends or hangs is started again in the same container, and ends with it."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.client import BadStatusLine
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host.system import package_files
from ansible_collections.gb10.cluster.plugins.module_utils._pod import sidecar
from ansible_collections.gb10.cluster.plugins.module_utils._pod.api import serve_pages
from ansible_collections.gb10.cluster.plugins.module_utils._pod.sidecar import lives

# Each start takes the next line of the plan. The program answers while the file "up" exists.
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from gb10._pod.sidecar import keep
place = Path(sys.argv[1])
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


class Container:
    """A container whose program behaves at each start as planned."""

    def __init__(self, path: Path, *plan: str) -> None:
        self.path = path
        code = path / "code"
        for name, text in package_files("_pod.sidecar", code).items():
            name.parent.mkdir(parents=True, exist_ok=True)
            name.write_text(text)
        command = [sys.executable, "-c", PROGRAM, str(path), *plan]
        environment = {"PYTHONPATH": str(code)}
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def starts(self, wanted: int) -> list[int]:
        """Return the process numbers of the starts, as soon as there are so many."""
        end = time.monotonic() + 120
        while time.monotonic() < end:
            seen = (self.path / "starts").read_text().split() if (self.path / "starts").exists() else []
            if len(seen) >= wanted:
                return [int(word) for word in seen]
            time.sleep(0.05)
        raise AssertionError(f"{seen} starts, {wanted} wanted")

    def stop(self) -> tuple[int, str, str]:
        self.process.terminate()
        output, errors = self.process.communicate(timeout=60)
        return self.process.returncode, output, errors


@pytest.fixture
def container(tmp_path: Path) -> Iterator[list[Container]]:
    running: list[Container] = []
    yield running
    for one in running:
        one.process.kill()
        one.process.wait()


def test_a_program_that_crashes_is_started_again_in_its_container(container: list[Container], tmp_path: Path) -> None:
    container.append(Container(tmp_path, "killed", "raises", "exits", "runs"))
    last = container[0].starts(4)[-1]
    assert container[0].process.poll() is None
    status, output, errors = container[0].stop()
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
    for _look in range(1000):
        try:
            os.kill(last, 0)
        except ProcessLookupError:
            break
        time.sleep(0.05)
    with pytest.raises(ProcessLookupError):
        os.kill(last, 0)


def test_a_program_that_hangs_is_killed_and_one_that_starts_slowly_is_not(
    container: list[Container], tmp_path: Path
) -> None:
    container.append(Container(tmp_path, "hangs", "slow"))
    container[0].starts(2)
    for _look in range(1000):
        if (tmp_path / "up").exists():
            break
        time.sleep(0.05)
    status, output, _errors = container[0].stop()
    assert (status, output.count("hung and was killed"), output.count("started again")) == (0, 1, 1)
    assert len(container[0].starts(2)) == 2


@pytest.mark.parametrize(("status", "alive"), [(200, True), (503, False)])
def test_a_program_lives_if_its_page_says_so(status: int, alive: bool) -> None:
    asked = []

    def page(path: str) -> tuple[int, str]:
        asked.append(path)
        return status, ""

    server = serve_pages(0, page)
    try:
        assert lives(server.server_address[1]) is alive
        assert asked == ["/live"]
    finally:
        server.shutdown()
        server.server_close()
    assert not lives(server.server_address[1])


@pytest.mark.parametrize("error", [OSError("refused"), BadStatusLine("garbage")])
def test_a_program_whose_page_cannot_be_read_does_not_live(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_words: object, **_more: object) -> None:
        raise error

    monkeypatch.setattr(urllib.request.OpenerDirector, "open", refuse)
    assert not lives(9)


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
    done: list[object] = []

    class Ended(Exception):
        """Ends the loop."""

    def rest(seconds: float) -> None:
        done.append(seconds)
        if len(done) == 4:
            raise Ended

    monkeypatch.setattr(sidecar, "_start", lambda _work: done.append("start"))
    monkeypatch.setattr(sidecar, "_wait", lambda *_words: "ended")
    monkeypatch.setattr(sidecar, "signal", SimpleNamespace(signal=lambda *_words: None, SIGTERM=15))
    monkeypatch.setattr(sidecar, "time", SimpleNamespace(sleep=rest))
    with pytest.raises(Ended):
        sidecar.keep(lambda: None, lambda: True, 2.5)
    assert done == ["start", 2.5] * 2


def test_a_signal_between_two_starts_ends_the_container(container: list[Container], tmp_path: Path) -> None:
    container.append(Container(tmp_path, *["exits"] * 50))
    container[0].starts(2)
    container[0].process.send_signal(signal.SIGTERM)
    assert container[0].process.wait(60) == 0


def test_a_signal_at_the_end_of_a_program_ends_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[Callable[[], None]] = []

    def gone(_child: int, _signal: int) -> None:
        raise ProcessLookupError

    noted = SimpleNamespace(signal=lambda _number, handler: handlers.append(handler), SIGTERM=15)
    monkeypatch.setattr(sidecar, "signal", noted)
    monkeypatch.setattr(sidecar, "os", SimpleNamespace(kill=gone))
    monkeypatch.setattr(sidecar, "_start", lambda _work: 4711)
    monkeypatch.setattr(sidecar, "_wait", lambda *_words: handlers[0]())
    with pytest.raises(SystemExit) as end:
        sidecar.keep(lambda: None, lambda: True)
    assert end.value.code == 0
