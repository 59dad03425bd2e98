# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run role fabric_plan on two hosts whose sysfs is a directory of the test."""

import json
import subprocess
import sys
from pathlib import Path

import yaml
from ansible_plays import ansible
from fabric_samples import Variables, fabric
from sysfs_samples import pci_function

ROOT = Path(__file__).resolve().parents[4]


def play(directory: Path, variables: Variables, *arguments: str) -> subprocess.CompletedProcess[str]:
    for number, pf in enumerate(("enp1s0f0np0", "enP2p1s0f0np0")):
        pci_function(directory / "sys", pf, f"000{number}:01:00.0", total_vfs=4)
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    local["gb10_sysfs_root"] = str(directory / "sys")
    hosts = {name: {**values, **local} for name, values in variables.items()}
    (directory / "hosts.yml").write_text(yaml.safe_dump({"gb10_nodes": {"hosts": hosts}}))
    keep = {
        "name": "Keep",
        "ansible.builtin.copy": {
            "content": "{{ ansible_facts['gb10_fabric_plan'] | to_json }}",
            "dest": str(directory / "{{ inventory_hostname }}.json"),
            "mode": "0644",
        },
    }
    book = {"hosts": "gb10_nodes", "gather_facts": False, "roles": ["gb10.cluster.fabric_plan"], "tasks": [keep]}
    (directory / "book.yml").write_text(yaml.safe_dump([book]))
    return ansible("ansible-playbook", "-i", directory / "hosts.yml", directory / "book.yml", *arguments)


def test_every_host_of_the_play_gets_the_whole_plan_which_is_not_printed_as_data(tmp_path: Path) -> None:
    done = play(tmp_path, fabric(2), "-v")
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = (json.loads((tmp_path / f"spark{number}.json").read_text()) for number in (1, 2))
    assert first == second
    assert list(first["hosts"]) == ["spark1", "spark2"]
    assert first["findings"] == []
    assert "gb10_fabric_plan" not in done.stdout


def test_the_plan_is_shown_and_nothing_is_written(tmp_path: Path) -> None:
    before = set((ROOT / "results").glob("*")) if (ROOT / "results").exists() else set()
    done = play(tmp_path, fabric(2), "--tags", "plan")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rail1  10.101.0.0/16  enP2p1s0f0np0  roceP2p1s0f0  4    all" in done.stdout
    assert "spark2  2   10.100.0.2/24 … 10.100.3.2/24, 10.101.0.2/24 … 10.101.3.2/24" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["book.yml", "hosts.yml", "sys"]
    assert (set((ROOT / "results").glob("*")) if (ROOT / "results").exists() else set()) == before


def test_all_conflicts_are_reported_and_no_fact_is_set(tmp_path: Path) -> None:
    variables = fabric(2, gb10_fabric_mtu=1000)
    variables["spark2"]["gb10_node_id"] = 1
    done = play(tmp_path, variables)
    assert done.returncode == 2
    assert "[fabric.node_id.duplicate]" in done.stdout
    assert "[fabric.mtu.low]" in done.stdout
    assert "networks:" not in done.stdout
    assert not list(tmp_path.glob("*.json"))
