# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that an inventory is written once, and that the next playbook can use it unchanged."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.action.inventory_new import ActionModule
from ansible_plays import ansible
from cabling_samples import End, cable, facts, ring
from stored import compare

ROOT = Path(__file__).resolve().parents[4]


def write(path: Path, *links: tuple[End, ...], check_mode: bool = False, **changes: Any) -> dict[str, Any]:
    """Write an inventory for three hosts, by default a ring, that were reached by their addresses."""
    hostvars: dict[str, Any] = {}
    for number, (host, ports) in enumerate(facts(3, *(links or ring(3))).items(), start=11):
        ipv4 = {"interface": "enP7s7", "address": f"192.168.10.{number}", "prefix": "24"}
        own = {"hostname": host, "default_ipv4": ipv4, "user_id": "nvidia", "gb10_cabling": ports}
        own["gb10_pf_totalvfs"] = {port["name"]: 8 for port in ports}
        hostvars[ipv4["address"]] = {"ansible_facts": {**own, **changes}}
    action = ActionModule.__new__(ActionModule)
    action._task = SimpleNamespace(check_mode=check_mode)
    return action.act({"path": str(path)}, {"hostvars": hostvars, "ansible_play_hosts_all": list(hostvars)})


def test_the_written_inventory_is_planned_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    result = write(path)
    assert "3 hosts, 6 rails, 24 VFs" in result["msg"]
    assert "spark1 cage 0 === spark2 cage 1" in result["msg"]
    words = ["-i", path, "playbooks/plan.yml", "-e", "gb10_kubeconfig=/nonexistent"]
    done = ansible("ansible-playbook", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    # An owner edits a rail per line.
    assert (path / "group_vars/gb10_cluster.yml").read_text(encoding="utf-8").count("\n  - {") == 6


def test_a_command_without_addresses_is_refused(tmp_path: Path) -> None:
    done = ansible("ansible-playbook", "-i", ",", "playbooks/inventory_new.yml", "-e", f"inventory_new_path={tmp_path}")
    assert done.returncode == 2
    assert "[inventory_new.addresses]" in done.stdout
    assert "PLAY [Write an inventory]" not in done.stdout


SHOWN = re.compile(r"(failed: )?DIRECTORY|\d+ hosts|refused|.*\[[\w.]+\]$")
SAME_CAGE = (*cable((1, 0), (2, 0)), *cable((2, 1), (3, 1)), *cable((3, 0), (1, 1)))
# What is there before, the cables, and options
CASES: dict[str, tuple[dict[str, str], tuple[Any, ...], dict[str, Any]]] = {
    "an empty directory": ({}, (), {}),
    "check mode": ({}, (), {"check_mode": True}),
    "no ports": ({}, (), {"gb10_cabling": [], "gb10_pf_totalvfs": {}}),
    "cables of the same cage": ({}, SAME_CAGE, {}),
    "one machine with several addresses": ({}, (), {"gb10_cabling": facts(1)["spark1"]}),
    "an inventory": ({"hosts.yml": "mine"}, (), {}),
    "a file": ({"": "mine"}, (), {}),
}


def test_what_is_written_and_said_is_what_is_stored(tmp_path: Path) -> None:
    found = {}
    for number, (name, (before, links, options)) in enumerate(CASES.items()):
        path = tmp_path / str(number)
        if "" not in before:
            path.mkdir()
        for file, text in before.items():
            (path / file).write_text(text)
        try:
            result = write(path, *links, **options)
            said = f"{'failed: ' if result.get('failed') else ''}{result['msg']}"
        except AnsibleActionFail as error:
            said = f"refused: {error}"
        left = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
        # The stored plans and cablings have the other lines.
        lines = [line for line in said.replace(str(path), "DIRECTORY").splitlines() if SHOWN.match(line)]
        found[name] = [*lines, f"files: {', '.join(left)}"]
        assert [text for file, text in before.items() if (path / file).read_text() != text] == []
    compare("inventories_written", found)


def test_a_machine_that_was_not_read_is_named(tmp_path: Path) -> None:
    action = ActionModule.__new__(ActionModule)
    action._task = SimpleNamespace(check_mode=False)
    with pytest.raises(AnsibleActionFail, match=r"10\.0\.0\.1: not read"):
        action.act({"path": str(tmp_path)}, {"hostvars": {"10.0.0.1": {}}, "ansible_play_hosts_all": ["10.0.0.1"]})
