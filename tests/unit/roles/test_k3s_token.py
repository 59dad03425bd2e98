# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a token with which K3s could not start again is refused before any host is changed."""

import re
import sys
from pathlib import Path

import yaml
from ansible_plays import ansible

ROOT = Path(__file__).resolve().parents[3]
CA = f"K10{'0123456789abcdef' * 4}::server:"


# Host, token that it has, token that is asked for, whether it is accepted
CASES = {
    "same": (f"{CA}the-first-one\n", "the-first-one", True),
    "whole": (f"{CA}the-first-one\n", f"{CA}the-first-one", True),
    "other": (f"{CA}the-first-one\n", "the-second-one", False),
    # An installation that was interrupted before the first start
    "none": (None, "the-second-one", True),
}


def test_only_the_token_of_the_cluster_is_accepted(tmp_path: Path) -> None:
    hosts = {}
    for host, (known, wanted, _accepted) in CASES.items():
        (tmp_path / host / "server").mkdir(parents=True)
        if known is not None:
            (tmp_path / host / "server" / "token").write_text(known)
        hosts[host] = {"k3s_token": wanted, "k3s_data_dir": str(tmp_path / host)}
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"gb10_servers": {"hosts": hosts, "vars": local}}))
    role = {"name": "gb10.cluster.k3s", "tasks_from": "token"}
    play = {"hosts": "all", "gather_facts": False, "tasks": [{"ansible.builtin.import_role": role}]}
    (tmp_path / "book.yml").write_text(yaml.safe_dump([play]))
    done = ansible("ansible-playbook", "--check", "-i", tmp_path / "hosts.yml", tmp_path / "book.yml")
    output = " ".join((done.stdout + done.stderr).split())
    failed = {host: "1" for host, (_known, _wanted, accepted) in CASES.items() if not accepted}
    recap = dict(re.findall(r"(\w+) +: ok=.*? failed=(\d)", done.stdout))
    assert {host: count for host, count in recap.items() if count != "0"} == failed, output
    assert set(recap) == set(CASES)
    assert "k3s_token is not the token of the cluster" in output
    assert "the-first-one" not in output
    assert "the-second-one" not in output
