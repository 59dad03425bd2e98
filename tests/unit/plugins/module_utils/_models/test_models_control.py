# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a transfer's process starts once, outlives its parent, and can be ended in every state."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._models import control


def obedient(at: control.Control, ends: bool = True) -> Callable[[Callable[[str], None]], None]:
    """Return work that ends when it is asked to, or never."""

    def work(report: Callable[[str], None]) -> None:
        end = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_arguments: end.set() if ends else None)
        at.write({"pid": os.getpid(), "group": os.getpgid(0)})
        report("")
        end.wait()

    return work


def launch(directory: Path, ends: bool = True) -> control.Control:
    at = control.Control(directory)
    assert at.acquire()
    assert control.detach(obedient(at, ends)) == ""
    at.release()
    return at


def test_the_process_is_no_child_and_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    at = launch(tmp_path / "c")
    assert at.is_locked()
    assert at.read()["pid"] not in (0, os.getpid()) and at.read()["group"] != os.getpgid(0)
    assert at.stop()
    assert not (tmp_path / "c").exists()
    assert not at.stop()


def test_a_second_process_is_not_started(tmp_path: Path) -> None:
    at = launch(tmp_path / "c")
    assert not control.Control(tmp_path / "c").acquire()
    at.stop()
    assert control.Control(tmp_path / "c").acquire()


@pytest.mark.parametrize("made_again", [True, False])
def test_the_lock_of_a_directory_that_was_removed_meanwhile_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_again: bool
) -> None:
    real, calls = fcntl.flock, list[int]()

    def flock(stream: IO[str], how: int) -> None:
        calls.append(how)
        if len(calls) == 1:
            shutil.rmtree(tmp_path / "c")
            if made_again:
                (tmp_path / "c").mkdir()
                (tmp_path / "c/lock").touch()
        real(stream, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    at = control.Control(tmp_path / "c")
    assert at.acquire() and at.is_locked()
    at.release()


def test_a_process_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_PATIENCE", 0.5)
    at = launch(tmp_path / "c", ends=False)
    assert at.stop()
    assert not at.is_locked()


def test_the_first_report_is_returned_and_an_exception_is_one(tmp_path: Path) -> None:
    def fail(_report: Callable[[str], None]) -> None:
        raise RuntimeError("no memory")

    def twice(report: Callable[[str], None]) -> None:
        report("first")
        report("second")

    assert control.detach(twice) == "first"
    assert "no memory" in control.detach(fail)


def test_what_the_modules_and_the_process_say_is_in_the_directory(tmp_path: Path) -> None:
    at = control.Control(tmp_path)
    at.write({"pid": 1})
    assert at.acquire()
    assert at.contact() == 0 and at.read() == {}, "of a killed process"
    at.touch()
    at.write({"pid": 2, "owner": control.digest("s")})
    assert at.contact() and at.read()["pid"] == 2
    assert at.is_of_another("t") and not at.is_of_another("s")
    at.release()
    assert not at.is_of_another("t"), "no process lives"


@pytest.mark.parametrize("content", ["", "{}", '{"pid": 999999999}'])
def test_what_a_killed_process_left_is_removed(tmp_path: Path, content: str) -> None:
    at = control.Control(tmp_path / "c")
    assert at.acquire()
    (at.directory / "status").write_text(content)
    at.release()
    assert not at.stop()
    assert not at.directory.exists()


def test_the_state_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    at = control.Control(tmp_path / "c")
    assert at.acquire()
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o700
