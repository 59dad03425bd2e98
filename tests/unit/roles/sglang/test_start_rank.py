# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the start of a rank: a new directory for NCCL's files, then the patch hooks, then the server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).resolve().parents[4] / "roles/sglang/files/start_rank.py"
SERVER = """
import os
path = os.environ["NCCL_DEBUG_FILE"].replace("%h", "host").replace("%p", str(os.getpid()))
open(path, "w").write("line\\n")
print(path, os.getpid())
"""


def start(logs: Path, *words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FILE), "--nccl-logs", str(logs), *words, "--", sys.executable, "-c", SERVER]
    environment = {**os.environ, "NCCL_DEBUG_FILE": "/dev/stdout"} | (env or {})
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_every_start_has_its_own_directory_and_nothing_of_the_start_before(tmp_path: Path) -> None:
    seen = []
    for _start in range(2):
        done = start(tmp_path)
        assert done.returncode == 0, done.stderr
        path, pid = done.stdout.split()
        seen.append(Path(path).parent)
        assert [str(file) for file in tmp_path.glob("*/*")] == [str(seen[-1] / f"host.{pid}")]
        assert seen[-1].stat().st_mode & 0o777 == 0o755
    assert seen[0] != seen[1]


def test_links_and_files_that_a_server_left_are_deleted_and_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "link").symlink_to(kept)
    (logs / "plain").write_text("NCCL INFO via NET/IB/0")
    assert start(logs).returncode == 0
    assert len(list(logs.iterdir())) == 1
    assert (kept / "file").exists()


def test_without_a_directory_the_server_is_not_started(tmp_path: Path) -> None:
    done = start(tmp_path / "missing")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no new directory for NCCL's logs can be made, so the server is not started" in done.stderr


def test_a_patch_that_fails_stops_the_start(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text("print('applied')")
    bad.write_text("raise SystemExit(3)")
    logs = tmp_path / "logs"
    logs.mkdir()
    assert "applied" in start(logs, "--patch", str(good)).stdout
    done = start(logs, "--patch", str(good), "--patch", str(bad))
    assert done.returncode == 1
    assert "patch bad failed with exit code 3; the server is not started" in done.stderr
    assert "host." not in done.stdout
