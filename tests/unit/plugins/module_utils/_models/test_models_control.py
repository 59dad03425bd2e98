# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a transfer's process starts once, outlives its parent, and can be ended in every state."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._models import control


def obedient(at: control.Control, ends: bool = True) -> Callable[[Callable[[str], None]], None]:
    """Return work that ends when it is asked to, or never."""

    def work(report: Callable[[str], None]) -> None:
        at.write({"pid": os.getpid(), "parent": os.getppid(), "group": os.getpgid(0)})
        report("")
        while not (ends and at.stop_requested()):
            time.sleep(0.05)

    return work


def launch(directory: Path, ends: bool = True) -> control.Control:
    at = control.Control(directory)
    assert at.acquire()
    assert control.detach(obedient(at, ends)) == ""
    at.release()
    return at


def test_the_process_is_no_child_and_is_ended_by_the_stop_file(tmp_path: Path) -> None:
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


def test_what_an_earlier_process_left_is_cleared(tmp_path: Path) -> None:
    at = control.Control(tmp_path)
    assert at.contact() == 0 and at.read() == {}
    at.touch()
    (tmp_path / "stop").touch()
    at.write({"pid": 1})
    assert at.contact() and at.stop_requested() and at.read() == {"pid": 1}
    at.clear()
    assert at.contact() == 0 and at.read() == {} and not at.stop_requested()


def test_the_state_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    at = control.Control(tmp_path / "c")
    assert at.acquire()
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o700
