# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fabric under real pods: proven from inside them, guarded while they hold VFs, gone without a trace at the end.

One lab with Kubernetes and two nodes, in the order of this file.
"""

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
SPARKS = ("spark1", "spark2")
POD = "gb10-serving/gemma-4-31b-it-1-0"
IN_POD = "nsenter -t $(pgrep -f '[l]aunch_server.*--node-rank 1 ' | head -1) -n ip link set net1 mtu"


class Cluster:
    """A lab with Kubernetes and the untouched hosts' fingerprints."""

    def __init__(self, lab: LabCommand) -> None:
        self.lab = lab
        argv = [LABCTL, "up", "--nodes", "2", "--kubernetes"]
        up = subprocess.run(argv, env=lab.environment, capture_output=True, text=True, timeout=1800, check=False)
        assert up.returncode == 0, up.stdout + up.stderr
        self.untouched = {host: self.fingerprint(host) for host in SPARKS}

    def fingerprint(self, host: str) -> set[str]:
        return set(self.lab("exec", host, "--", "python3", "-B", "/opt/gb10-lab/hosts/fingerprint.py").splitlines())

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

    def play(self, playbook: str, *arguments: str, ok: bool = True, **values: Any) -> str:
        """Run a playbook with variables; what it said, unwrapped."""
        values = {
            "gb10_results_dir": str(self.lab.state / "results"),
            "serving_plan_overrides": {"topology": {"nodes": 2, "tp": 2}},
            **values,
        }
        command = ["ansible-playbook", "-i", str(self.lab.state / "inventory"), f"playbooks/{playbook}.yml"]
        done = self.run(*command, "-e", json.dumps(values), *arguments)
        assert (done.returncode == 0) is ok, done.stdout[-6000:] + done.stderr[-2000:]
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


def test_the_last_backup_comes_back_in_one_command_and_once_more_leads_forward(cluster: Cluster) -> None:
    cluster.play("fabric_restore")
    assert "fd00:10:101:1::1:2/64" in cluster.lab.shell("spark2", "ip -br address show dev enP2p1s0f0v1")
    cluster.play("fabric_restore")
    shown = cluster.lab.shell("spark2", "ip -br address show dev enP2p1s0f0v1")
    assert "10.101.1.2/24" in shown
    assert "fd00:10:101" not in shown


def test_every_direction_is_proven_from_inside_the_pods(cluster: Cluster) -> None:
    cluster.play("kubernetes")
    cluster.play("serve")
    said = cluster.play("verify")
    assert "4 directions on all rails and VFs pass with full-size packets" in said


def test_a_pod_with_a_small_mtu_is_named(cluster: Cluster) -> None:
    cluster.lab.shell("spark2", f"{IN_POD} 1500")
    try:
        said = cluster.play("verify", ok=False)
    finally:
        cluster.lab.shell("spark2", f"{IN_POD} 9000")
    assert "net1 has MTU 1500, planned 9000" in said
    assert re.search(r"spark2 .*mtu", said)


def test_vfs_of_pods_are_kept_and_the_pod_is_named(cluster: Cluster) -> None:
    said = cluster.play("fabric", ok=False, gb10_fabric_vf_count=2)
    assert "sriov.vf.in_use" in said
    assert f"pod {POD}" in said
    assert cluster.lab.shell("spark2", "cat /run/gb10-lab/sys/class/net/enp1s0f0np0/device/sriov_numvfs") == "4"


def test_reset_leaves_nothing(cluster: Cluster) -> None:
    cluster.play("reset", k3s_reset_confirm="yes")
    for host in SPARKS:
        now = cluster.fingerprint(host)
        left = sorted(now - cluster.untouched[host])
        lost = sorted(cluster.untouched[host] - now)
        assert (left, lost) == ([], []), host
