# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that NCCL's lines are repeated once and whole, and that nothing but NCCL's files is read."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pod.evidence import NcclFiles, open_file


def test_lines_are_repeated_once_and_whole_over_several_starts(tmp_path: Path) -> None:
    files = NcclFiles(tmp_path)
    assert (list(files.new_lines()), files.look().start) == ([], "")
    first = tmp_path / "1"
    first.mkdir()
    (first / "h.40").write_bytes(b"one\ntw")
    (first / "h.41").write_bytes(b"other\n")
    assert b"".join(files.new_lines()) == b"one\nother\n"
    before = files.look().signature
    with (first / "h.40").open("ab") as stream:
        stream.write(b"o\n")
    assert files.look().signature != before
    assert b"".join(files.new_lines()) == b"two\n"
    assert b"".join(files.new_lines()) == b""
    shutil.rmtree(first)
    (tmp_path / "2").mkdir()
    # A process of the next start has the same process id as an earlier one.
    (tmp_path / "2" / "h.40").write_bytes(b"new\n")
    assert b"".join(files.new_lines()) == b"new\n"
    found = files.look()
    assert (found.start, found.files, found.changed) == ("2", (tmp_path / "2" / "h.40",), "")


def test_the_process_that_wrote_last_is_read_last(tmp_path: Path) -> None:
    start = tmp_path / "1"
    start.mkdir()
    for name, when in (("h.1000", 20), ("h.999", 10)):
        (start / name).write_text("x")
        os.utime(start / name, (when, when))
    assert [path.name for path in NcclFiles(tmp_path).look().files] == ["h.999", "h.1000"]


def test_a_line_without_an_end_is_passed_on_in_pieces(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "h.40").write_bytes(b"x" * ((1 << 20) + 5))
    assert sum(map(len, NcclFiles(tmp_path).new_lines())) == 1 << 20


def test_links_and_pipes_that_the_server_makes_are_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "token").write_text("t0ken\n")
    logs = tmp_path / "logs"
    start = logs / "1"
    start.mkdir(parents=True)
    (logs / "9").symlink_to(secret)
    os.mkfifo(start / "pipe")
    (start / "token").symlink_to(secret / "token")
    files = NcclFiles(logs)
    assert (list(files.new_lines()), files.look().files) == ([], ())
    assert "directory" not in files.look().changed
    opened = list(Path("/proc/self/fd").iterdir())
    # The server replaces the directory of its start after the sidecar has looked.
    with pytest.raises(OSError, match="9"), open_file(logs / "9" / "token"):
        pass
    for name in ("token", "pipe"):
        with pytest.raises(OSError, match=r"token|not a regular file"), open_file(start / name):
            pass
    assert len(list(Path("/proc/self/fd").iterdir())) == len(opened)


def written(start: Path) -> None:
    start.mkdir()
    for name in ("h.40", "h.41"):
        (start / name).write_bytes(b"12345")


def replaced(file: Path) -> None:
    # The old file keeps its inode, as it does while NCCL has it open.
    file.rename(file.parent.with_name("kept"))
    file.write_bytes(b"123456")


@pytest.mark.parametrize(
    ("disturb", "said"),
    [
        (lambda start: (start / "h.40").write_bytes(b"123456"), ""),
        (lambda start: (start / "h.42").write_bytes(b"1"), ""),
        (lambda start: (start / "h.42").write_bytes(b""), ""),
        (lambda start: (start / "h.40").write_bytes(b"1234"), "h.40 shrank from 5 to 4 bytes"),
        (lambda start: (start / "h.41").unlink(), "h.41 is missing"),
        (lambda start: (shutil.rmtree(start), start.mkdir()), "h.40 is missing; h.41 is missing"),
        (lambda start: replaced(start / "h.40"), "h.40 was replaced"),
        (lambda start: (start / "h.42").mkdir(), "'h.42' is no regular file"),
        (lambda start: (start.parent / "9").mkdir(), "the directory 9 was added"),
        (
            lambda start: [(start.parent / name).mkdir() for name in ("9", "10")],
            "the directory 9 was added; the directory 10 was added",
        ),
        (lambda start: (start.parent / "a\nb").mkdir(), "the directory 'a\\nb' was added"),
        (lambda start: (start.parent / "\u0663").mkdir(), "the directory '\\u0663' was added"),
    ],
)
def test_what_nccl_does_not_do_to_its_files_is_named(
    tmp_path: Path, disturb: Callable[[Path], object], said: str
) -> None:
    start = tmp_path / "1"
    written(start)
    files = NcclFiles(tmp_path)
    assert files.look().changed == ""
    disturb(start)
    looks = [files.look() for _again in range(2)]
    assert [look.changed for look in looks] == [said] * 2
    assert looks[0].start == "1"
    # What was undone stays named.
    if (start / "h.42").is_dir():
        (start / "h.42").rmdir()
        assert files.look().changed == said
    # The next start has evidence of its own.
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    written(tmp_path / "2")
    assert (files.look().start, files.look().changed) == ("2", "")
