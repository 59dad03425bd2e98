# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the program of the unit that drops caches, with files in place of /proc."""

import sys
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host import memory_guard
from ansible_collections.gb10.cluster.plugins.module_utils._host.memory_guard import History, Limits

LIMITS = Limits(free=10)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    for name in ("sys/vm/drop_caches", "sys/vm/compact_memory"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    return tmp_path


def show(proc: Path, free: int, available: int) -> None:
    sizes = {"MemTotal": 100, "MemFree": free, "MemAvailable": available}
    (proc / "meminfo").write_text("".join(f"{name}: {gib * 2**20} kB\n" for name, gib in sizes.items()))


def dropped(proc: Path) -> tuple[str, str]:
    return (proc / "sys/vm/drop_caches").read_text(), (proc / "sys/vm/compact_memory").read_text()


def test_a_kernel_without_pressure_information_waits_for_no_memory(proc: Path) -> None:
    show(proc, 2, 60)
    reading = memory_guard.Reading.parse((proc / "meminfo").read_text(), "")
    assert (reading.some, reading.full, reading.swap) == (0, 0, 0)


def test_a_full_page_cache_is_dropped_and_the_figures_are_told(proc: Path) -> None:
    show(proc, 2, 60)
    said = memory_guard.look(proc, LIMITS, History(), 0)
    assert dropped(proc) == ("3\n", "1\n")
    assert "dropped caches" in said and "2.0 GiB are free" in said


def test_enough_free_memory_is_left_alone_in_silence(proc: Path) -> None:
    show(proc, 50, 60)
    assert memory_guard.look(proc, LIMITS, History(), 0) == ""
    assert dropped(proc) == ("", "")


def test_low_memory_is_told_once_and_its_end_too(proc: Path) -> None:
    history, said = History(), []
    for now, available in enumerate((3, 3, 50, 50)):
        show(proc, available, available)
        said.append(memory_guard.look(proc, LIMITS, history, now).partition(":")[0])
    assert said == ["low memory", "", "enough memory again", ""]


def test_the_program_takes_its_limit_from_the_command_line(
    proc: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show(proc, 2, 60)

    def once(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(memory_guard.time, "sleep", once)
    monkeypatch.setattr(sys, "argv", ["memory_guard", "--free", "10", "--proc", str(proc)])
    with pytest.raises(KeyboardInterrupt):
        memory_guard.main()
    assert "dropped caches" in capsys.readouterr().out
