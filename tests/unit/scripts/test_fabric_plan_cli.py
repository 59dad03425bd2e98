# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the command line of scripts/fabric_plan.py on every inventory of the repository."""

import json
from functools import partial
from pathlib import Path

import fabric_plan
import pytest
from ansible_plays import ansible
from script_runs import called

ROOT = Path(__file__).resolve().parents[3]
# inventory/lab is only an overlay for the others.
INVENTORIES = sorted(path for path in (ROOT / "inventory").iterdir() if path.name != "lab")

HOSTS = """\
gb10_nodes:
  hosts:
    spark1: {gb10_node_id: 1}
    spark2: {gb10_node_id: 2}
  vars:
    gb10_fabric_vf_count: 1
    gb10_fabric_rails: [{name: rail0, pf: enp1s0f0np0, network: 10.100.0.0/16}]
"""


run = partial(called, fabric_plan.main)


def listed(inventory: Path) -> str:
    done = ansible("ansible-inventory", "-i", inventory, "--list")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("inventory", INVENTORIES, ids=lambda path: path.name)
def test_every_inventory_of_the_repository_is_planned(inventory: Path) -> None:
    listing = listed(inventory)
    done = run("--json", "-", text=listing)
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert set(answer) == {"plan", "findings"}
    assert all(host["vfs"] for host in answer["plan"]["hosts"].values())
    table = run("-", text=listing)
    assert table.returncode == 0
    assert all(name in table.stdout for name in answer["plan"]["hosts"])
    if inventory == INVENTORIES[0]:  # each run with an inventory starts a program
        assert json.loads(run("--json", str(inventory)).stdout) == answer


def test_errors_are_printed_and_exit_1(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text(HOSTS.replace("gb10_node_id: 2", "gb10_node_id: 1"))
    done = run(str(tmp_path))
    assert done.returncode == 1
    assert "[fabric.node_id.duplicate]" in done.stdout


def test_a_value_that_only_ansible_can_compute_has_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text(HOSTS)
    (tmp_path / "host_vars").mkdir()
    (tmp_path / "host_vars" / "spark1.yml").write_text("gb10_node_id: '{{ item }}'\n")
    (tmp_path / "host_vars" / "spark2.yml").write_text("gb10_node_id: !vault encrypted\n")
    done = run("--json", str(tmp_path))
    assert done.returncode == 1
    findings = [one for one in json.loads(done.stdout)["findings"] if one["rule"] == "fabric.value.template"]
    assert [one["where"] for one in findings] == ["spark1", "spark2"]
    assert all("--tags plan" in one["remedy"] for one in findings)


def test_an_ini_inventory_is_read(tmp_path: Path) -> None:
    rails = '[{"name": "rail0", "pf": "enp1s0f0np0", "network": "10.100.0.0/16"}]'
    hosts = "[gb10_nodes]\nspark1 gb10_node_id=1\nspark2 gb10_node_id=2\n[gb10_nodes:vars]\ngb10_fabric_vf_count=1\n"
    (tmp_path / "hosts.ini").write_text(f"{hosts}gb10_fabric_rails={rails}\n")
    done = run(str(tmp_path / "hosts.ini"))
    assert done.returncode == 0, done.stderr
    assert "2 hosts, 1 rails, 2 VFs, 1 NADs" in done.stdout


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("gb10_nodes: [", "did not find expected node content"),
        ("- spark1", "should be a dictionary"),
        (HOSTS.replace("{gb10_node_id: 1}", "{gb10_node_id: 1, gb10_node_id: 3}"), "line 3 has this key"),
    ],
)
def test_an_unreadable_inventory_exits_2_and_says_why(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "hosts.yml").write_text(content)
    done = run(str(tmp_path))
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())  # the length of the path decides where a line ends
    assert f"{tmp_path}/hosts.yml" in done.stderr
    assert "Traceback" not in done.stderr


def test_all_files_that_cannot_be_read_are_named_with_their_lines(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text(HOSTS)
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "gb10_nodes.yml").write_text("gb10_fabric_mtu: 9000\ngb10_fabric_mtu: 1500\n")
    (tmp_path / "group_vars" / "all.yml").write_text("$ANSIBLE_VAULT;1.1;AES256\n6162\n")
    done = run(str(tmp_path))
    assert done.returncode == 2
    assert f"error: {tmp_path}/group_vars/gb10_nodes.yml:2: gb10_fabric_mtu: line 1" in " ".join(done.stderr.split())
    assert f"error: {tmp_path}/group_vars/all.yml: the file is encrypted" in " ".join(done.stderr.split())


def test_variables_that_ansible_does_not_read_are_named_alone(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text(HOSTS.partition("  vars:")[0])
    (tmp_path / "gb10_nodes.yml").write_text("gb10_fabric_mtu: 1500\n")
    done = run(str(tmp_path))
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    assert said.startswith(f"error: {tmp_path}/gb10_nodes.yml: ") and said.count("error: ") == 1


def test_without_ansible_core_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric_plan, "find_spec", lambda name: None)
    with pytest.raises(fabric_plan.InventoryError, match=r"has no ansible-core.*make venv"):
        fabric_plan.list_inventory(tmp_path)


def test_hosts_of_a_group_include_those_of_its_children() -> None:
    listing = {"gb10_nodes": {"hosts": ["a"], "children": ["more"]}, "more": {"hosts": ["b", "a"]}}
    assert fabric_plan.hosts_of(listing, "gb10_nodes") == ["a", "b"]
    assert fabric_plan.hosts_of(listing, "missing") == []


def test_standard_input_that_is_no_json_exits_2() -> None:
    done = run("-", text="spark1")
    assert done.returncode == 2
    assert "ansible-inventory --list" in done.stderr
