# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what all scripts have in common."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
COMMANDS = [path for path in sorted(SCRIPTS.glob("[!_]*.py")) if "ArgumentParser" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("script", COMMANDS, ids=lambda path: path.stem)
def test_a_script_ends_silently_when_nobody_reads_its_output(script: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, script, "--help"], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")
