# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A lab that serves models, as the tests of serving see it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labcommand import LABCTL, LabCommand

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 300


@dataclass
class ServingLab:
    """A lab with Kubernetes; playbooks run as a user runs them."""

    lab: LabCommand

    @classmethod
    def start(cls, lab: LabCommand, nodes: int = 4) -> ServingLab:
        """Bring up hosts, fabric and Kubernetes."""
        up = subprocess.run(
            [LABCTL, "up", "--nodes", str(nodes), "--kubernetes"],
            env=lab.environment,
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
        assert up.returncode == 0, up.stdout + up.stderr
        made = cls(lab)
        made.play("fabric")
        made.play("kubernetes")
        return made

    def play(self, playbook: str, *arguments: str, check: bool = True, **values: Any) -> str:
        """Run a playbook with variables; return its output."""
        # `up` may have started fewer hosts than inventory/lab names; the state's inventory lists those that run.
        command = [LABCTL, "run", "--", "ansible-playbook", "-i", self.lab.state / "inventory"]
        values.setdefault("gb10_results_dir", str(self.lab.state / "results"))
        done = subprocess.run(
            [*command, f"playbooks/{playbook}.yml", "-e", json.dumps(values), *arguments],
            cwd=ROOT,
            env=self.lab.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=1500,
        )
        assert (done.returncode == 0) is check, done.stdout[-6000:] + done.stderr[-2000:]
        return done.stdout

    def kubectl(self, *words: str) -> str:
        return self.lab("exec", "control", "--", "k3s", "kubectl", "-n", "gb10-serving", *words)

    def pods(self, instance: str) -> list[dict[str, Any]]:
        """Return the pods of a group, rank 0 first."""
        selector = f"gb10.cluster/instance={instance},gb10.cluster/rank"
        found = json.loads(self.kubectl("get", "pods", "-l", selector, "-o", "json"))["items"]
        return sorted(found, key=lambda pod: int(pod["metadata"]["labels"]["gb10.cluster/rank"]))

    def in_head(self, instance: str, *words: str) -> str:
        """Run a program in the head's container."""
        return self.kubectl("exec", f"{instance}-0-0", "-c", "sglang", "--", *words)

    def signal(self, node: str, rank: int, name: str) -> None:
        """Send a signal to a rank's process, from its host."""
        # The bracket keeps pkill from finding its own command line.
        self.lab("exec", node, "--", "pkill", f"-{name}", "-f", f"[l]aunch_server.*--node-rank {rank} ")

    def wait_ready(self, instance: str, before: Iterable[str], ranks: int, patience: float = PATIENCE) -> float:
        """Wait until all ranks are ready and none of the processes in ``before`` is left; return the seconds."""
        old = set(before)
        started = time.monotonic()
        while time.monotonic() - started < patience:
            pods = self.pods(instance)
            if len(pods) == ranks and all(map(is_ready, pods)) and not old & incarnations(pods):
                return time.monotonic() - started
            time.sleep(2)
        raise AssertionError(f"not ready after {patience} s:\n{self.kubectl('get', 'pods', '-o', 'wide')}")


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions", [])}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


def incarnations(pods: list[dict[str, Any]]) -> set[str]:
    """Return what changes with every start of every rank's process."""
    return {
        f"{pod['metadata']['uid']}/{status['restartCount']}"
        for pod in pods
        for status in pod["status"].get("containerStatuses", [])
    }


def revisions(pods: list[dict[str, Any]]) -> set[str]:
    return {pod["metadata"]["annotations"]["gb10.cluster/revision"] for pod in pods}


def changed(output: str) -> int:
    """Return how many tasks changed something, over all hosts of a run."""
    return sum(int(part.split()[0]) for part in output.partition("PLAY RECAP")[2].split("changed=")[1:])
