# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run Ansible in a process that a server forks, which saves its imports (measured: 0.7 of 1.0 CPU seconds of a play).

A test with settings of its own starts a program, because Ansible reads settings when it is imported. GB10_TEST_FORKS=0
starts programs for all tests.
"""

import json
import os
import select
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = Path(sys.executable).parent
SETTINGS = ROOT / "ansible.cfg"
# Variables that Ansible or Python reads when it is imported.
READ_EARLY = ("ANSIBLE_", "HOME", "LANG", "LC_", "PYTHON", "TMPDIR")
# How often the tests of this process have started Ansible. conftest.py prints the sum of all processes.
STARTS: Counter[str] = Counter()


def early(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the server cannot change after its start. Output to a file never has colours."""
    known = {name: value for name, value in environment.items() if name.startswith(READ_EARLY)}
    known.pop("ANSIBLE_CONFIG", None)
    known.pop("ANSIBLE_NOCOLOR", None)
    return known


class Server:
    """The server of this process: started for the first play, ended by stop()."""

    program = Path(__file__).with_name("ansible_server.py")

    def __init__(self, **environment: str) -> None:
        self.environment = os.environ | environment
        self.process: subprocess.Popen[bytes] | None = None

    def serves(self, cwd: Path, environment: Mapping[str, str]) -> bool:
        """Tell whether a play in this directory has the settings of the server."""
        settings = Path(environment.get("ANSIBLE_CONFIG") or cwd / "ansible.cfg")
        same = settings.exists() and settings.samefile(SETTINGS) and early(environment) == early(self.environment)
        return same and os.environ.get("GB10_TEST_FORKS") != "0"

    def run(
        self, words: list[str], cwd: Path, environment: Mapping[str, str], timeout: float | None
    ) -> subprocess.CompletedProcess[str]:
        """Run one program to its end. Raise TimeoutExpired after `timeout` seconds."""
        if self.process is None:
            own = self.environment | {"ANSIBLE_CONFIG": str(SETTINGS)}
            command = [sys.executable, self.program]
            self.process = subprocess.Popen(command, env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin
        assert self.process.stdout
        with tempfile.TemporaryDirectory() as directory:
            request = {"words": words, "cwd": str(cwd), "env": dict(environment)}
            Path(directory, "request.json").write_text(json.dumps(request), encoding="utf-8")
            self.process.stdin.write(directory.encode() + b"\n")
            self.process.stdin.flush()
            if not select.select([self.process.stdout], [], [], timeout)[0]:
                self.stop()
                raise subprocess.TimeoutExpired(words, timeout or 0)
            status = int(self.process.stdout.readline())
            output, errors = (Path(directory, name).read_text(encoding="utf-8") for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(words, status, output, errors)

    def stop(self) -> None:
        """End the server, and wait for it so that its CPU time counts as that of this process."""
        if self.process:
            self.process.communicate()
            self.process = None


SERVER = Server()


def ansible(
    program: str,
    *words: str | Path,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    server: Server = SERVER,
) -> subprocess.CompletedProcess[str]:
    """Run one of Ansible's programs with the settings of the repository; return its status and output."""
    command = [str(PROGRAMS / program), *map(str, words)]
    environment = os.environ if env is None else env
    forked = server.serves(cwd, environment)
    STARTS["forked" if forked else "program"] += 1
    if forked:
        return server.run(command, cwd, environment, timeout)
    return subprocess.run(
        command, check=False, cwd=cwd, env=environment, timeout=timeout,
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip


def ansible_cases(
    directory: Path, plays: Mapping[str, Mapping[str, Any]], *words: str | Path
) -> dict[str, tuple[bool, str]]:
    """Run one playbook with a play for each case, also after one that fails.

    Return by name whether the play failed, and its output on one line.
    """
    book = []
    for name, play in plays.items():
        # A task with run_once that fails excludes the other hosts from the plays that follow.
        caught = [{"ansible.builtin.debug": {"msg": "THE CASE FAILED"}}, {"ansible.builtin.meta": "clear_host_errors"}]
        tasks = [{"block": play["tasks"], "rescue": caught}]
        book.append({"name": name, "gather_facts": False, **play, "tasks": tasks})
    (directory / "book.yml").write_text(yaml.safe_dump(book), encoding="utf-8")
    done = ansible("ansible-playbook", *words, directory / "book.yml")
    said = {name: done.stdout.partition(f"PLAY [{name}] ")[2].partition("\nPLAY ")[0] for name in plays}
    assert all(said.values()), done.stdout + done.stderr
    return {name: ("THE CASE FAILED" in text, " ".join(text.split())) for name, text in said.items()}
