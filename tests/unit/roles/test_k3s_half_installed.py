# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test role k3s on hosts where an earlier run ended before the server was started."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml
from ansible_plays import ansible

ROOT = Path(__file__).resolve().parents[3]
NEVER_STARTED = {"installed": True, "started": False}


def played(tmp_path: Path, tasks_from: str, states: dict[str, Any], *options: str) -> tuple[int, str]:
    """Play tasks of the role on this machine, with what the host check found; return the output on one line."""
    role = {"name": "gb10.cluster.k3s", "tasks_from": tasks_from}
    found: dict[str, Any] = {"ansible.builtin.set_fact": {"k3s_host_state": "{{ states[inventory_hostname] }}"}}
    found["when"] = "inventory_hostname in states"
    play = {"hosts": "all", "gather_facts": False, "tasks": [found, {"ansible.builtin.import_role": role}]}
    (tmp_path / "book.yml").write_text(yaml.safe_dump([play]))
    groups = {"gb10_servers": {"hosts": {"s1": {}, "s2": {}}}, "gb10_nodes": {"hosts": {"n1": {}}}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(groups))
    asked = {
        "states": states,
        "k3s_data_dir": str(tmp_path),
        "k3s_kubeconfig": str(tmp_path / "config"),
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
    }
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    words = [
        "-i",
        tmp_path / "hosts.yml",
        "-e",
        f"@{tmp_path / 'asked.json'}",
        *options,
        tmp_path / "book.yml",
    ]
    done = ansible("ansible-playbook", *words)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def test_check_mode_reads_nothing_from_a_server_that_was_never_started(tmp_path: Path) -> None:
    states = dict.fromkeys(("s1", "s2", "n1"), NEVER_STARTED)
    code, output = played(tmp_path, "credentials", states, "--check")
    assert code == 0, output
    assert not (tmp_path / "config").exists()


def test_a_node_that_joins_no_cluster_is_refused_in_one_sentence(tmp_path: Path) -> None:
    code, output = played(tmp_path, "credentials", {}, "--limit", "n1")
    assert code != 0
    assert "there yet. Run playbook kubernetes for s1,s2 first, or without --limit." in output
    assert "Write the token files" not in output


def test_a_new_first_server_beside_the_servers_of_a_cluster_is_refused(tmp_path: Path) -> None:
    states = {"s1": NEVER_STARTED, "s2": {"installed": True, "started": True}}
    code, output = played(tmp_path, "first_check", states)
    assert code != 0
    assert "K3s runs on s2 already; nothing was changed. Put s2 first in gb10_servers" in output


def test_a_new_first_server_of_a_new_cluster_is_accepted(tmp_path: Path) -> None:
    code, output = played(tmp_path, "first_check", dict.fromkeys(("s1", "s2"), NEVER_STARTED))
    assert code == 0, output


def test_a_new_first_server_is_refused_while_others_are_left_out(tmp_path: Path) -> None:
    code, output = played(tmp_path, "first_check", {"s1": NEVER_STARTED}, "--limit", "s1,n1")
    assert code != 0
    assert "--limit leaves out s2, which may run one already; nothing was changed. Run this playbook" in output
    assert "or with --limit s1,s2." in output


def test_a_first_server_that_runs_is_played_alone(tmp_path: Path) -> None:
    code, output = played(tmp_path, "first_check", {"s1": {"installed": True, "started": True}}, "--limit", "s1")
    assert code == 0, output


def test_a_backup_of_a_server_that_was_never_started_is_refused(tmp_path: Path) -> None:
    code, output = played(tmp_path, "backup", {}, "--check")
    assert code != 0
    assert "K3s was never started on s1 with k3s_data_dir" in output
    assert "Archive datastore" not in output.partition("Run playbook kubernetes first,")[0]


def test_a_backup_without_the_first_server_is_refused(tmp_path: Path) -> None:
    code, output = played(tmp_path, "backup", {}, "--check", "--limit", "s2")
    assert code != 0
    assert "This run leaves out s1, whose state is saved; nothing was changed. Run it without --limit, or an" in output
