# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the sidecar repeats NCCL's lines, each once and whole, and reads nothing but NCCL's files."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

FILE = Path(__file__).resolve().parents[4] / "roles/sglang/files/transport_sidecar.py"
SPEC = importlib.util.spec_from_file_location("transport_sidecar", FILE)
assert SPEC is not None and SPEC.loader is not None
sidecar = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(sidecar)


def test_lines_are_repeated_once_and_whole_over_several_starts(tmp_path: Path) -> None:
    repeater = sidecar.Repeater(tmp_path)
    assert list(repeater.new_lines()) == []
    first = tmp_path / "1"
    first.mkdir()
    (first / "h.40").write_bytes(b"one\ntw")
    (first / "h.41").write_bytes(b"other\n")
    assert b"".join(repeater.new_lines()) == b"one\nother\n"
    with (first / "h.40").open("ab") as stream:
        stream.write(b"o\n")
    assert b"".join(repeater.new_lines()) == b"two\n"
    assert b"".join(repeater.new_lines()) == b""
    for path in first.iterdir():
        path.unlink()
    first.rmdir()
    (tmp_path / "2").mkdir()
    # A process of the next start has the number of an earlier one.
    (tmp_path / "2" / "h.40").write_bytes(b"new\n")
    assert b"".join(repeater.new_lines()) == b"new\n"


def test_a_line_without_an_end_is_passed_on_in_pieces(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "h.40").write_bytes(b"x" * ((1 << 20) + 5))
    repeater = sidecar.Repeater(tmp_path)
    assert sum(map(len, repeater.new_lines())) == 1 << 20


def test_links_and_pipes_that_the_server_makes_are_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "token").write_text("t0ken\n")
    logs = tmp_path / "logs"
    start = logs / "1"
    start.mkdir(parents=True)
    (logs / "link").symlink_to(secret)
    os.mkfifo(start / "pipe")
    repeater = sidecar.Repeater(logs)
    assert list(repeater.new_lines()) == []
    (start / "token").symlink_to(secret / "token")
    try:
        said = b"".join(repeater.new_lines())
    except OSError:
        said = b""
    assert said == b""
