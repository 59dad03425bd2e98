# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the programs beside a group start with the files that their ConfigMap gives them, and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host.system import package_files


@pytest.mark.parametrize(
    ("program", "option"),
    [
        ("_pod.fallback", "--settings"),
        ("_pod.supervise", "--first-step-timeout"),
        ("_pod.sidecar", "--nccl-logs"),
    ],
)
def test_a_program_starts_with_what_it_ships(program: str, option: str, tmp_path: Path) -> None:
    for path, source in package_files(program, tmp_path).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    command = [sys.executable, "-m", f"gb10.{program}", "--help"]
    done = subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    assert option in done.stdout
