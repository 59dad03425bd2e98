# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A lab whose cluster the product's own playbooks make, as a user beside it runs them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labcommand import LABCTL, LabCommand

CHECKOUT = LABCTL.parents[1]
CACHE = Path(os.environ.get("GB10_CACHE") or Path.home() / ".cache" / "gb10-lab")
FINGERPRINT = ("python3", "-B", "/opt/gb10-lab/hosts/fingerprint.py")


@dataclass
class Site:
    """``lab`` is up; the inventory is the one that labctl wrote for exactly its hosts, and ``more`` beside it."""

    lab: LabCommand
    group: str = "gemma-4-31b-it"
    more: Path | None = None
    before: dict[str, str] = field(default_factory=dict)

    def up(self, nodes: int) -> None:
        """Start the lab with Kubernetes, or add nodes to it."""
        done = subprocess.run(
            [LABCTL, "up", "--nodes", str(nodes), "--kubernetes"],
            env=self.lab.environment, capture_output=True, text=True, timeout=1800, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def _command(self, playbook: str, words: Sequence[str], values: dict[str, Any]) -> list[str]:
        values.setdefault("gb10_results_dir", str(self.lab.state / "results"))
        program = CHECKOUT / ".venv" / "bin" / "ansible-playbook"
        path = f"playbooks/{playbook}.yml"
        inventories = ["-i", self.lab.state / "inventory", *(["-i", self.more] if self.more else [])]
        given = ["-e", json.dumps(values), *words]
        return [str(word) for word in (LABCTL, "run", "--", program, *inventories, path, *given)]

    def play(self, playbook: str, *words: str, check: bool = True, **values: Any) -> str:
        """Run a playbook with variables; its output."""
        done = subprocess.run(
            self._command(playbook, words, values),
            cwd=CHECKOUT, env=self.lab.environment, capture_output=True, text=True, timeout=1800, check=False,
        )  # fmt: skip
        assert (done.returncode == 0) is check, done.stdout[-8000:] + done.stderr[-2000:]
        return done.stdout

    def killed(self, playbook: str, point: str, **values: Any) -> str:
        """Run a playbook and kill its control process as soon as its output matches; the output until then."""
        environment = {**self.lab.environment, "PYTHONUNBUFFERED": "1"}
        output = ""
        with subprocess.Popen(
            self._command(playbook, (), values), cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            for line in process.stdout:
                output += line
                if re.search(point, output, re.DOTALL):
                    os.killpg(process.pid, signal.SIGKILL)
                    break
        assert process.returncode == -signal.SIGKILL, f"{point!r} was never reached:\n{output[-6000:]}"
        return output

    def kubectl(self, *words: str, stdin: str | None = None, check: bool = True) -> str:
        """Run kubectl as a laptop would; what it printed."""
        path = next(iter(sorted(CACHE.glob("kubernetes-*/bin/kubectl"))))
        argv = [LABCTL, "run", "--", path, "--kubeconfig", self.lab.state / "kubeconfig", "--context", "gb10", *words]
        done = subprocess.run(
            argv, env=self.lab.environment, input=stdin, capture_output=True, text=True, timeout=300, check=False
        )
        assert not check or done.returncode == 0, f"kubectl {' '.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout + (done.stderr if done.returncode else "")

    def get(self, *words: str) -> dict[str, Any]:
        """What the API has."""
        return dict(json.loads(self.kubectl("get", *words, "-o", "json")))

    def pods(self) -> list[dict[str, Any]]:
        """The pods of the group, rank 0 first."""
        selector = f"gb10.cluster/instance={self.group},gb10.cluster/rank"
        found = self.get("--namespace=gb10-serving", "pods", f"--selector={selector}")["items"]
        return sorted(found, key=lambda pod: int(pod["metadata"]["labels"]["gb10.cluster/rank"]))

    def incarnations(self) -> set[str]:
        """What changes with every start of every rank; fails unless all ranks are ready."""
        pods = self.pods()
        assert pods
        for pod in pods:
            assert {c["type"]: c["status"] for c in pod["status"]["conditions"]}["Ready"] == "True"
        return {
            f"{pod['metadata']['uid']}/{status['restartCount']}"
            for pod in pods
            for status in pod["status"]["containerStatuses"]
        }

    def fingerprint(self, host: str) -> str:
        """Everything on a host that a role can change."""
        return self.lab("exec", host, "--", *FINGERPRINT)

    def left(self, host: str, may_differ: str) -> list[str]:
        """Lines of a host's fingerprint that differ from the one in ``before``."""
        patience = time.monotonic() + 10
        while True:
            now = set(self.fingerprint(host).splitlines())
            then = set(self.before[host].splitlines())
            found = sorted([f"+ {line}" for line in now - then] + [f"- {line}" for line in then - now])
            found = [line for line in found if not re.search(may_differ, line[2:])]
            if not found or time.monotonic() > patience:
                return found
            time.sleep(1)


def changed(output: str) -> int:
    """How many tasks changed something, of all hosts."""
    return sum(int(number) for number in re.findall(r"changed=(\d+)", output.partition("PLAY RECAP")[2]))
