# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The path of `make demo`, from untouched hosts to the verdict, and its faults; one lab, in the order of this file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LABCTL = ROOT / "lab" / "labctl"
RECAP = re.compile(r"^(\S+)\s+: ok=(\d+)\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", re.MULTILINE)
SPARKS = ["spark1", "spark2", "spark3", "spark4"]


class Lab:
    """A lab of its own for this file."""

    def __init__(self, state: Path) -> None:
        self.results = state / "results"
        self.environment = os.environ | {"GB10_LAB_STATE": str(state / "lab"), "ANSIBLE_NOCOLOR": "1"}

    def control(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(LABCTL), *arguments], env=self.environment, cwd=ROOT, capture_output=True, text=True, check=check
        )

    def play(self, playbook: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        results = ["-e", f"gb10_results_dir={self.results}"]
        program = str(Path(sys.executable).with_name("ansible-playbook"))
        command = [program, "-i", "inventory/lab", playbook, *results, *arguments]
        return self.control("run", "--", *command, check=False)

    def fingerprint(self) -> str:
        """Return what a deployment would change on the hosts, apart from the time stamps of connections."""
        files = "find /etc /usr/local /var/lib/rancher /opt -xdev -newer /etc/machine-id -type f 2>/dev/null | sort"
        look = f"{files}; ip -br addr; ip -br link"
        return "\n".join(self.control("exec", host, "--", "sh", "-c", look).stdout for host in ["control", *SPARKS])


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("demo"))
    try:
        up = lab.control("up", check=False)
        assert up.returncode == 0, up.stdout + up.stderr
        yield lab
    finally:
        lab.control("down")


def recap(output: str) -> dict[str, dict[str, int]]:
    names = ("ok", "changed", "unreachable", "failed")
    return {m[0]: dict(zip(names, map(int, m[1:]), strict=True)) for m in RECAP.findall(output)}


def test_check_mode_runs_through_on_virgin_hosts_and_changes_nothing(lab: Lab) -> None:
    before = lab.fingerprint()
    done = lab.play("playbooks/site.yml", "--check", "--diff")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert lab.fingerprint() == before


def test_site_ends_with_every_rank_on_rdma_over_both_rails(lab: Lab) -> None:
    done = lab.play("playbooks/site.yml")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    verdict = json.loads(next(lab.results.glob("**/transport.json")).read_text())
    assert verdict["transport_class"] == "rdma"
    assert verdict["satisfied"] is True
    assert sorted(r["rank"] for r in verdict["ranks"]) == [0, 1, 2, 3]
    for rank in verdict["ranks"]:
        assert set(rank["channels"]["IB"]) == {"0", "1"}


def test_a_second_run_changes_nothing(lab: Lab) -> None:
    done = lab.play("playbooks/site.yml")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    hosts = recap(done.stdout)
    assert set(SPARKS) < set(hosts)
    assert {host: counts["changed"] for host, counts in hosts.items()} == dict.fromkeys(hosts, 0)


@pytest.mark.parametrize(
    ("fault", "cause", "remedy"),
    [
        ("unprivileged", "/dev/infiniband", "gb10_rdma_mode"),
        ("no-vf-address", "Network is unreachable", "IPv4"),
        # last, since it takes away what the one before spoiled
        ("missing-nad", "gb10-rail1-vf0", "playbooks/kubernetes.yml"),
    ],
)
def test_a_fault_ends_the_run_with_rank_cause_and_remedy(lab: Lab, fault: str, cause: str, remedy: str) -> None:
    assert lab.play("playbooks/serve_stop.yml").returncode == 0
    done = lab.play("lab/serve_with_fault.yml", "-e", f"lab_fault={fault}")
    assert done.returncode != 0
    # Ansible folds long messages: judge the words.
    message = " ".join(done.stdout[done.stdout.rindex("fatal:") :].split())
    assert re.search(r"rank:? \d", message), message
    assert cause in message, message
    assert remedy in message, message
