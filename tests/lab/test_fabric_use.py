# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fabric as its user meets it: planned, run with nothing to do, and with IPv6 beside IPv4. One lab of two nodes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from labcommand import LABCTL, LabCommand

ROOT = Path(__file__).resolve().parents[2]


class Cluster:
    """A lab without Kubernetes; commands run in its network."""

    def __init__(self, lab: LabCommand) -> None:
        self.lab = lab
        lab.up(nodes=2)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the lab's network, from the repository's root."""
        return subprocess.run(
            [LABCTL, "run", "--", *command],
            cwd=ROOT,
            env=self.lab.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=1500,
        )

    def play(self, playbook: str, *arguments: str, **values: Any) -> str:
        """Run a playbook with variables; what it said, unwrapped."""
        values.setdefault("gb10_results_dir", str(self.lab.state / "results"))
        command = ["ansible-playbook", "-i", str(self.lab.state / "inventory"), f"playbooks/{playbook}.yml"]
        done = self.run(*command, "-e", json.dumps(values), *arguments)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        return " ".join(done.stdout.split())


@pytest.fixture(scope="module")
def cluster(make_lab: Callable[[], LabCommand]) -> Cluster:
    made = Cluster(make_lab())
    made.play("fabric")
    return made


def test_the_plan_is_a_table_and_a_file(cluster: Cluster) -> None:
    said = cluster.play("fabric", "--tags", "plan")
    plan = json.loads((cluster.lab.state / "results" / "fabric-plan.json").read_text(encoding="utf-8"))
    for host in plan["hosts"].values():
        for vf in host["vfs"]:
            assert vf["mac"] in said
            assert vf["address"] in said


def test_a_run_with_nothing_to_do_has_few_tasks(cluster: Cluster) -> None:
    inventory = str(cluster.lab.state / "inventory")
    done = cluster.run(sys.executable, "benchmarks/fabric_plan.py", "--inventory", inventory)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"nothing to do: \d+ tasks a host", done.stdout)


def test_ipv6_addresses_come_beside_ipv4_and_go_again(cluster: Cluster) -> None:
    rails = [
        {"name": "rail0", "pf": "enp1s0f0np0", "network": "10.100.0.0/16", "network6": "fd00:10:100::/48"},
        {"name": "rail1", "pf": "enP2p1s0f0np0", "network": "10.101.0.0/16", "network6": "fd00:10:101::/48"},
    ]
    cluster.play("fabric", gb10_fabric_rails=rails)
    shown = cluster.lab.shell("spark2", "ip -br address show dev enP2p1s0f0v1")
    assert "10.101.1.2/24" in shown
    assert "fd00:10:101:1::1:2/64" in shown
    cluster.play("fabric")
    assert "fd00:10:101" not in cluster.lab.shell("spark2", "ip -br address show dev enP2p1s0f0v1")
