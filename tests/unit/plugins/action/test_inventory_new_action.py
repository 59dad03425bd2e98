# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that an inventory is written once, and that the next playbook can use it unchanged."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.action.inventory_new import ActionModule
from ansible_plays import ansible
from cabling_samples import End, cable, facts, ring

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


def test_a_machine_without_ports_is_written_and_fails_with_the_reason(tmp_path: Path) -> None:
    result = write(tmp_path, gb10_cabling=[], gb10_pf_totalvfs={})
    assert result["failed"]
    assert "fabric.rails.none" in result["msg"]
    assert (tmp_path / "hosts.yml").is_file()


def test_mistakes_of_the_cabling_are_named(tmp_path: Path) -> None:
    same_cage = [*cable((1, 0), (2, 0)), *cable((2, 1), (3, 1)), *cable((3, 0), (1, 1))]
    result = write(tmp_path, *same_cage)
    assert result["msg"].count("[cabling.same_cage]") == 2
    assert "failed" not in result


def test_a_machine_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    ports = facts(1)["spark1"]
    with pytest.raises(
        AnsibleActionFail, match=r"192\.168\.10\.11 and 192\.168\.10\.12; .*: addresses of the same machine"
    ):
        write(tmp_path, gb10_cabling=ports)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_inventory_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    write(path)
    (path / "hosts.yml").write_text("mine", encoding="utf-8")
    with pytest.raises(AnsibleActionFail, match="never overwritten"):
        write(path)
    assert (path / "hosts.yml").read_text(encoding="utf-8") == "mine"
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(AnsibleActionFail, match="never overwritten"):
        write(tmp_path / "file")


def test_check_mode_writes_nothing_and_an_empty_directory_is_used(tmp_path: Path) -> None:
    assert f"{tmp_path} would be written" in write(tmp_path, check_mode=True)["msg"]
    assert list(tmp_path.iterdir()) == []
    write(tmp_path)
    assert (tmp_path / "group_vars" / "gb10_cluster.yml").is_file()


def test_a_machine_that_was_not_read_is_named(tmp_path: Path) -> None:
    action = ActionModule.__new__(ActionModule)
    action._task = SimpleNamespace(check_mode=False)
    with pytest.raises(AnsibleActionFail, match=r"10\.0\.0\.1: not read"):
        action.act({"path": str(tmp_path)}, {"hostvars": {"10.0.0.1": {}}, "ansible_play_hosts_all": ["10.0.0.1"]})
