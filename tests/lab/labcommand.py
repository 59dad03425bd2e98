# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run labctl, and playbooks in the lab's network, for the tests."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
LABCTL = CHECKOUT / "lab" / "labctl"
# the slowest playbook of the tests takes 8 minutes beside other work; a command that hangs must not use up a CI run
RUN_LIMIT_S = 1200
FINGERPRINT = ("python3", "-B", "/opt/gb10-lab/hosts/fingerprint.py")


@dataclass(frozen=True)
class LabCommand:
    """labctl for one state directory. Playbooks use ``inventory``, or the complete inventory that labctl writes.

    ``collections`` is a directory in which the collection is installed, whose playbooks are then run from there.
    """

    state: Path
    inventory: tuple[Path, ...] = ()
    collections: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        own = {"ANSIBLE_COLLECTIONS_PATH": str(self.collections)} if self.collections else {}
        return {**os.environ, "GB10_LAB_STATE": str(self.state), **own}

    @property
    def results(self) -> Path:
        """The directory in which playbooks store their results."""
        return self.state / "results"

    def __call__(self, *words: str, check: bool = True, timeout: float = 300) -> str:
        """Run labctl and return its standard output; fail with its standard error."""
        done = subprocess.run(
            [LABCTL, *words], env=self.environment, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert not check or done.returncode == 0, f"labctl {' '.join(words)}: {done.returncode}\n{done.stderr}"
        return done.stdout

    def up(self, nodes: int = 1, *, kubernetes: bool = False, hosts: str = "", layout: str = "switch") -> None:
        """Start the lab, or add nodes to it; with ``kubernetes``, first fetch its packages, which may take minutes."""
        kind = ["--hosts", hosts] if hosts else []
        wanted = ["--nodes", str(nodes), "--layout", layout, *kind]
        self("up", *wanted, "--kubernetes" if kubernetes else "--no-kubernetes", timeout=1800)

    def shell(self, host: str, script: str) -> str:
        """Run a bash script on a host and return its output; stop and fail at the first failing command."""
        return self("exec", host, "--", "bash", "-euo", "pipefail", "-c", script).strip()

    def fingerprint(self, host: str) -> str:
        """Return everything on a host that a role can change, as lines of text."""
        return self("exec", host, "--", *FINGERPRINT)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start labctl without waiting for its end."""
        return subprocess.Popen([LABCTL, *words], env=self.environment, stderr=subprocess.DEVNULL)

    def run(self, *command: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command on this machine, in the lab's network. After 20 minutes end it and fail with its output."""
        words = [LABCTL, "run", "--", *command]
        with subprocess.Popen(
            words, cwd=self.collections or CHECKOUT, env=self.environment, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            try:
                stdout, stderr = process.communicate(stdin, timeout=RUN_LIMIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                stdout, stderr = process.communicate()
                raise AssertionError(
                    f"{command} did not end within {RUN_LIMIT_S} s:\n{stdout[-8000:]}{stderr[-2000:]}"
                ) from None
        return subprocess.CompletedProcess(words, process.returncode, stdout, stderr)

    def playbook(self, playbook: str, *words: str | Path, **values: Any) -> list[str | Path]:
        """Return the command that runs a playbook, given by its name or by its path in the repository."""
        program = CHECKOUT / ".venv" / "bin" / "ansible-playbook"
        shipped = f"gb10.cluster.{playbook}" if self.collections else f"playbooks/{playbook}.yml"
        path = playbook if "/" in playbook else shipped
        values.setdefault("gb10_results_dir", str(self.results))
        # ``words`` come last: if two -e options set the same variable, Ansible uses the later one.
        given = [word for path in self.inventory or [self.state / "inventory"] for word in ("-i", path)]
        return [program, *given, path, "-e", json.dumps(values), *words]

    def play(self, playbook: str, *words: str | Path, check: bool = True, **values: Any) -> str:
        """Run a playbook with variables and return its output. It must succeed, or fail if ``check`` is false."""
        done = self.run(*self.playbook(playbook, *words, **values))
        assert (done.returncode == 0) is check, done.stdout[-8000:] + done.stderr[-2000:]
        return done.stdout

    def killed(self, playbook: str, point: str, *words: str | Path, **values: Any) -> str:
        """Run a playbook, kill it with all its children as soon as its output matches, and return that output."""
        output = ""
        with subprocess.Popen(
            [LABCTL, "run", "--", *self.playbook(playbook, *words, **values)], cwd=CHECKOUT,
            env={**self.environment, "PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            for line in process.stdout:
                output += line
                if re.search(point, output, re.DOTALL):
                    os.killpg(process.pid, signal.SIGKILL)
                    break
        assert process.returncode == -signal.SIGKILL, f"{point!r} was never reached:\n{output[-6000:]}"
        return output

    @contextmanager
    def reached(self, playbook: str, point: str, *words: str | Path, **values: Any) -> Iterator[subprocess.Popen[str]]:
        """Run a playbook, yield its process as soon as its output has a text, and then wait for its end.

        The output is a file, which the connections that Ansible keeps open may hold open as long as they like.
        """
        output = self.state / "reached.log"
        with output.open("w", encoding="utf-8") as file, subprocess.Popen(
            [LABCTL, "run", "--", *self.playbook(playbook, *words, **values)], cwd=CHECKOUT,
            env={**self.environment, "PYTHONUNBUFFERED": "1"}, stdout=file, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                while point not in " ".join(output.read_text(encoding="utf-8").split()):
                    assert process.poll() is None, f"{point!r} was never reached:\n{output.read_text()[-6000:]}"
                    time.sleep(0.05)
                yield process
                process.wait(timeout=RUN_LIMIT_S)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise

    def timed(self, playbook: str, **values: Any) -> str:
        """Run a playbook, which must succeed; print its seconds and its longest tasks, and return its output."""
        output, begun = self.state / "timed.log", time.monotonic()
        starts: list[tuple[float, str]] = []
        with output.open("w", encoding="utf-8") as file, output.open(encoding="utf-8") as reader, subprocess.Popen(
            [LABCTL, "run", "--", *self.playbook(playbook, **values)], cwd=CHECKOUT,
            env={**self.environment, "PYTHONUNBUFFERED": "1"}, stdout=file, stderr=subprocess.STDOUT,
        ) as process:  # fmt: skip
            while process.poll() is None and time.monotonic() < begun + RUN_LIMIT_S:
                passed = time.monotonic() - begun
                starts += [(passed, name) for name in re.findall(r"^TASK \[(.*)\]", reader.read(), re.MULTILINE)]
                time.sleep(0.05)
            process.kill()
        said, end = output.read_text(encoding="utf-8"), time.monotonic() - begun
        assert process.returncode == 0, said[-8000:]
        ends = [*(at for at, _name in starts[1:]), end]
        took = sorted(((until - at, name) for (at, name), until in zip(starts, ends, strict=True)), reverse=True)
        longest = "".join(f"\n{seconds:6.1f} s  {name}" for seconds, name in took[:5])
        print(f"\n{playbook}: {end:.0f} s, {len(starts)} tasks, the longest are{longest}")
        return said


def recap(output: str, count: str) -> dict[str, int]:
    """Return one count of a playbook's recap (``changed``, ``failed``, ...) per host."""
    end = output.partition("PLAY RECAP")[2]
    return {host: int(number) for host, number in re.findall(rf"^(\S+)\s*: .*\b{count}=(\d+)", end, re.MULTILINE)}


def changed(output: str) -> int:
    """Return the number of tasks that changed something on any host, and print them; fail if there is no recap."""
    counts = recap(output, "changed")
    assert counts, output[-2000:]
    for task in re.split(r"^TASK \[", output, flags=re.MULTILINE)[1:]:
        if re.search(r"^changed: ", task, re.MULTILINE):
            print(f"changed: {task[:2000]}")
    return sum(counts.values())
