# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run labctl, and playbooks in the lab's network, for the tests."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
LABCTL = CHECKOUT / "lab" / "labctl"
FINGERPRINT = ("python3", "-B", "/opt/gb10-lab/hosts/fingerprint.py")


@dataclass(frozen=True)
class LabCommand:
    """labctl for one state directory. Playbooks use ``inventory``, or the complete inventory that labctl writes."""

    state: Path
    inventory: tuple[Path, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "GB10_LAB_STATE": str(self.state)}

    @property
    def results(self) -> Path:
        """Where playbooks put what they found."""
        return self.state / "results"

    def __call__(self, *words: str, check: bool = True, timeout: float = 300) -> str:
        """Run labctl; its standard output. Fails with what it said on standard error."""
        done = subprocess.run(
            [LABCTL, *words], env=self.environment, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert not check or done.returncode == 0, f"labctl {' '.join(words)}: {done.returncode}\n{done.stderr}"
        return done.stdout

    def up(self, nodes: int = 1, *, kubernetes: bool = False, hosts: str = "", layout: str = "switch") -> None:
        """Start the lab, or add nodes to it; with Kubernetes its packages are brought first, which may take long."""
        kind = ["--hosts", hosts] if hosts else []
        wanted = ["--nodes", str(nodes), "--layout", layout, *kind]
        self("up", *wanted, "--kubernetes" if kubernetes else "--no-kubernetes", timeout=1800)

    def shell(self, host: str, script: str) -> str:
        """Run a script of bash on a host; it fails with its first failing command."""
        return self("exec", host, "--", "bash", "-euo", "pipefail", "-c", script).strip()

    def fingerprint(self, host: str) -> str:
        """Everything on a host that a role can change."""
        return self("exec", host, "--", *FINGERPRINT)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start labctl and don't wait for it."""
        return subprocess.Popen([LABCTL, *words], env=self.environment, stderr=subprocess.DEVNULL)

    def run(self, *command: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command beside the hosts, in the lab's network."""
        return subprocess.run(
            [LABCTL, "run", "--", *command],
            cwd=CHECKOUT, env=self.environment, input=stdin, capture_output=True, text=True, timeout=1800, check=False,
        )  # fmt: skip

    def playbook(self, playbook: str, *words: str | Path, **values: Any) -> list[str | Path]:
        """The command that plays ``playbook``: its name, or its path in the repository."""
        program = CHECKOUT / ".venv" / "bin" / "ansible-playbook"
        path = playbook if "/" in playbook else f"playbooks/{playbook}.yml"
        values.setdefault("gb10_results_dir", str(self.results))
        # Words come last: of two -e that say different things the later one counts.
        given = [word for path in self.inventory or [self.state / "inventory"] for word in ("-i", path)]
        return [program, *given, path, "-e", json.dumps(values), *words]

    def play(self, playbook: str, *words: str | Path, check: bool = True, **values: Any) -> str:
        """Run a playbook with variables; what it said. It has to succeed, or to fail without ``check``."""
        done = self.run(*self.playbook(playbook, *words, **values))
        assert (done.returncode == 0) is check, done.stdout[-8000:] + done.stderr[-2000:]
        return done.stdout

    def killed(self, playbook: str, point: str, *words: str | Path, **values: Any) -> str:
        """Run a playbook and kill it, with all its children, as soon as its output matches; the output until then."""
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


def recap(output: str, count: str) -> dict[str, int]:
    """One of the counts of a playbook's last lines (``changed``, ``failed``, ...), host by host."""
    end = output.partition("PLAY RECAP")[2]
    return {host: int(number) for host, number in re.findall(rf"^(\S+)\s*: .*\b{count}=(\d+)", end, re.MULTILINE)}


def changed(output: str) -> int:
    """How many tasks changed something, of all hosts; fails for an output without an end."""
    counts = recap(output, "changed")
    assert counts, output[-2000:]
    return sum(counts.values())
