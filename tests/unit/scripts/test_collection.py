# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what all scripts have in common, and which of them need only Python and contact no host."""

import json
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


BLOCKED = """
import runpy, sys
def refuse(event, arguments):
    if event.startswith(("socket.", "subprocess.")):
        sys.exit(f"{event} {arguments}")
sys.addaudithook(refuse)
sys.modules.update(dict.fromkeys(("ansible", "jsonschema", "yaml")))
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(
    ("script", "words", "said"),
    [
        ("nccl_verdict.py", ["{file}"], "unknown"),
        ("sglang_check.py", ["--sglang", "0.5.23", "--", "--model-path", "m", "--tp-sizes", "4"], "--tp-size"),
        ("sglang_rows.py", ["{rows}"], "none"),
        ("output_guard.py", ["{file}"], "0 of 1 outputs are garbage"),
    ],
)
def test_a_script_needs_only_python_and_contacts_no_host(
    tmp_path: Path, script: str, words: list[str], said: str
) -> None:
    (tmp_path / "file").write_text("The fabric is up, and every rank has answered.\n")
    row = {"id": "mine", "sglang": "0.5.23", "flags": ["--tp-size", "2"], "truth": "works"}
    (tmp_path / "rows").write_text(json.dumps([row]))
    given = [word.format(file=tmp_path / "file", rows=tmp_path / "rows") for word in words]
    argv = [sys.executable, "-c", BLOCKED, str(SCRIPTS / script), *given]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert said in done.stdout, done.stderr
