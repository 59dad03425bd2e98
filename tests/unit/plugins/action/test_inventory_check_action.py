# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that playbook preflight refuses inventories that Ansible itself accepts or reports without a place."""

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


HOSTS = "gb10_cluster: {children: {gb10_servers: {hosts: {spark1: {}}}, gb10_nodes: {hosts: {spark1: {}}}}}\n"


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
