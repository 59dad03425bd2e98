# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that playbook preflight refuses inventories that Ansible itself accepts or reports without a place."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.action import inventory_check
from ansible_plays import ansible

ROOT = Path(__file__).resolve().parents[4]


def refused(inventory: Path, playbook: str = "preflight", *options: str) -> str:
    """Run the playbook, which must fail, with the repository's settings; return its output on one line."""
    words = ["-i", inventory, f"playbooks/{playbook}.yml", *options]
    done = ansible("ansible-playbook", *words)
    assert done.returncode == 2, done.stdout
    return " ".join(done.stdout.split())


def test_a_key_that_occurs_twice_is_reported_with_its_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "group_vars").mkdir()
    variables = tmp_path / "group_vars" / "gb10_cluster.yml"
    variables.write_text("gb10_fabric_mtu: 9000\ngb10_fabric_mtu: 1500\n")
    hosts = tmp_path / "hosts.yml"
    hosts.write_text("gb10_cluster:\n  hosts: {spark1: {}}\n  hosts: {spark2: {}}\n")
    output = refused(tmp_path)
    assert f"error: {variables}:2: gb10_fabric_mtu: line 1 has this key in the same mapping" in output
    # Ansible has not read this file, so that no group has a host. That is not a mistake of its own.
    assert f"error: {hosts}:3: hosts: line 2 has this key in the same mapping" in output
    assert "inventory.group" not in output


def test_an_ini_inventory_without_the_group_of_all_hosts_does_not_pass(tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.ini"
    inventory.write_text("[gb10_nodes]\nspark1 ansible_host=192.0.2.1\n[gb10_servers]\nspark1\n")
    assert "gb10_cluster = []: no host is in this group" in refused(inventory)


HOSTS = "gb10_cluster: {children: {gb10_servers: {hosts: {spark1: {}}}, gb10_nodes: {hosts: {spark1: {}}}}}\n"


def test_all_mistakes_in_files_and_templates_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text(HOSTS)
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "gb10_node.yml").write_text("gb10_fabric_mtu: 1500\n")
    (tmp_path / "group_vars" / "gb10_cluster.yml").write_text(
        "gb10_models_dir: '{{ models_root }}/models'\n"
        "k3s_version:\n"
        "sglang_instance: '{{ serving_plan_profile }}-{{ ansible_facts.hostname }}'\n"
        "sglang_hf_token: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  6162\n"
    )
    output = refused(tmp_path)
    assert "spark1: gb10_models_dir: 'models_root' is undefined. Correct it" in output
    assert "spark1: k3s_version: there is no value after this name" in output
    assert "spark1: sglang_hf_token: " in output and "--ask-vault-pass (-J)" in output
    assert "group_vars/gb10_node: Ansible does not read it" in output
    assert "sglang_instance" not in output


def test_an_encrypted_file_is_named_with_the_option_that_it_needs(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text(HOSTS)
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "gb10_cluster.yml").write_text("$ANSIBLE_VAULT;1.1;AES256\n6162\n")
    output = refused(tmp_path)
    assert f"error: {tmp_path}/group_vars/gb10_cluster.yml: the file is encrypted, and no password was given." in output
    assert "Add --ask-vault-pass (-J)" in output


def test_a_file_that_is_not_utf_8_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_bytes(b"# K\xf6ln\n" + HOSTS.encode())
    output = refused(tmp_path)
    assert f"{tmp_path}/hosts.yml:1: this line is not UTF-8 text" in output
    assert "inventory.group" not in output


def test_what_follows_from_a_file_that_is_not_read_is_not_reported(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text(HOSTS)
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "gb10_cluster.txt").write_text("gb10_fabric_mtu: 1500\n")
    output = refused(tmp_path, "fabric")
    assert "Rename it to group_vars/gb10_cluster.yml." in output
    assert "fabric.rails.none" not in output


def test_a_wrong_vault_password_is_told_from_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text(HOSTS)
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "gb10_cluster.yml").write_text("$ANSIBLE_VAULT;1.1;AES256\n" + "6162" * 20 + "\n")
    (tmp_path / "password").write_text("wrong")
    output = refused(tmp_path / "hosts.yml", "preflight", "--vault-password-file", str(tmp_path / "password"))
    assert "Give the password with which it was encrypted." in output


def test_an_encrypted_sudo_password_without_the_vault_s_password_is_reported_before_a_host_is_contacted(
    tmp_path: Path,
) -> None:
    (tmp_path / "hosts.yml").write_text(HOSTS)
    (tmp_path / "key").write_text("key\n")
    vault = ansible("ansible-vault", "encrypt_string", "--vault-password-file", tmp_path / "key", "secret")
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "gb10_cluster.yml").write_text(f"ansible_become_password: {vault.stdout}\n")
    output = refused(tmp_path)
    assert "error: spark1: ansible_become_password: Error rendering template: Attempt to use undecryptable" in output
    assert "--ask-vault-pass (-J)" in output


@pytest.mark.parametrize("left", [["spark1", "spark2"], ["spark1"]])
def test_a_stage_after_the_check_of_every_value_looks_only_for_lost_hosts(
    left: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory_check, "load_known", lambda: pytest.fail("the values were read again"))
    action = object.__new__(inventory_check.ActionModule)
    known = {"ansible_play_hosts_all": ["spark1", "spark2"], "ansible_play_hosts": left}
    result = action.act({"earlier": {"later": {}}}, known)
    assert result["failed"] is (left == ["spark1"])
    assert ("spark2: an error ended an earlier play" in result["msg"]) is result["failed"]


def test_mistakes_of_five_kinds_come_in_one_run_with_their_files_and_lines(tmp_path: Path) -> None:
    inventory = tmp_path / "mine"
    shutil.copytree(ROOT / "inventory" / "2x-gb10-direct", inventory)
    group, hosts = inventory / "group_vars" / "gb10_cluster.yml", inventory / "hosts.yml"
    text = group.read_text().replace("topology: direct", "topology: switch")
    text = text.replace("preset: throughput", "preset: trough")
    group.write_text(f"{text}gb10_fabric_mtuu: 9000\nsglang_log_lines: many\n")
    text = hosts.read_text().replace("gb10_node_id: 2}", "gb10_node_id: 1}")
    hosts.write_text(f"{text}        spark3: {{ansible_host: 192.168.10.13, gb10_node_id: 999}}\n")
    output = refused(inventory, "plan")
    for rule in ("serving.profile", "variables.unknown", "variables.value", "node_id.duplicate", "node_id.range"):
        assert output.count(f"{rule}]") == 1, rule
    assert output.count("error: ") == 5
    lines = [number for number, line in enumerate(group.read_text().splitlines(), 1) if "preset: trough" in line]
    assert f"Set in {group}:{lines[0]}." in output
