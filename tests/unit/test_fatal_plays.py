# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that plays end for all hosts when one of them fails, where the others must not be changed without it.

Otherwise Ansible goes on with the other hosts, also in the plays that follow.
"""

import sys
from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_plays import ansible

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("book", "name"),
    [
        ("kubernetes", "Check every host before changing any"),
        ("kubernetes", "Start the servers"),
        ("upgrade", "Plan the upgrade"),
        ("update", "Plan the update"),
        # A rank without its model would stop the group that runs.
        ("group_start", "Start the model group as a whole and verify its transport"),
        ("compare_transports", "Serve over TCP, prove the transport and measure"),
        ("compare_transports", "Serve over RoCE, prove the transport and measure"),
        # If the first server fails, the datastores of the others are the only ones left.
        ("restore", "Restore the cluster's state"),
    ],
)
def test_a_failed_host_ends_the_run_for_all(book: str, name: str) -> None:
    plays = yaml.safe_load((ROOT / "playbooks" / f"{book}.yml").read_text(encoding="utf-8"))
    (play,) = [play for play in plays if play["name"] == name]
    assert play["any_errors_fatal"] is True


def played(tmp_path: Path, book: str, first: str, last: str, *servers: str) -> str:
    """Play a part of a playbook with a task in place of its roles; no ssh reaches s1, and the task fails on s0."""
    plays = yaml.safe_load((ROOT / "playbooks" / f"{book}.yml").read_text(encoding="utf-8"))
    names = [play["name"] for play in plays]
    part = plays[names.index(first) : names.index(last) + 1]
    for play in part:
        if imported := play.get("ansible.builtin.import_playbook"):
            play["ansible.builtin.import_playbook"] = str(ROOT / "playbooks" / imported)
        else:
            play["tasks"] = [
                {"ansible.builtin.ping": {"data": "{{ 'crash' if inventory_hostname == 's0' else 'pong' }}"}}
            ]
            play["vars_files"] = [str(ROOT / "playbooks" / file) for file in play.get("vars_files", [])]
    lost = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    every = {name: lost if name == "s1" else {} for name in (*servers, "n1")}
    groups = {
        "gb10_servers": {"hosts": dict.fromkeys(servers)},
        "gb10_nodes": {"hosts": {"n1": {}}},
        "gb10_cluster": {"hosts": every},
        "k3s_upgrade_node": {"hosts": dict.fromkeys(every)},
        "all": {"vars": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}},
    }
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(groups))
    (tmp_path / "book.yml").write_text(yaml.safe_dump(part))
    words = ["-i", tmp_path / "hosts.yml", tmp_path / "book.yml"]
    done = ansible("ansible-playbook", *words)
    assert done.returncode != 0
    assert f"fatal: [{servers[0]}]: " in done.stdout
    return " ".join((done.stdout + done.stderr).split())


def test_no_agent_joins_after_a_server_was_lost(tmp_path: Path) -> None:
    output = played(tmp_path, "kubernetes", "Start the servers", "Join the agents", "s1")
    assert "ok: [n1]" not in output
    assert "error: s1: an error ended an earlier play on these hosts, so the plays after it were not started." in output


@pytest.mark.parametrize("lost", ["s0", "s1"])
def test_no_other_node_is_upgraded_after_one_was_lost(lost: str, tmp_path: Path) -> None:
    first, last = "Upgrade the servers one after another", "Upgrade the agents one after another"
    output = played(tmp_path, "upgrade", first, last, lost, "s2")
    assert "ok: [" not in output


RUNS, NEW = {"installed": True, "started": True}, {"installed": False, "started": False}
AGENT = {"installed": True, "started": False}


@pytest.mark.parametrize(
    ("server", "agent", "servers", "agents"),
    [
        (RUNS, AGENT, "gb10_servers:gb10_nodes", "gb10_nodes:!gb10_servers:!gb10_nodes"),
        (RUNS, NEW, "gb10_servers", "gb10_nodes:!gb10_servers"),
        (NEW, AGENT, "gb10_servers", "gb10_nodes:!gb10_servers"),
        (AGENT, AGENT, "gb10_servers", "gb10_nodes:!gb10_servers"),
        (RUNS, None, "gb10_servers", "gb10_nodes:!gb10_servers"),
        (None, None, "gb10_servers", "gb10_nodes:!gb10_servers"),
    ],
    ids=["k3s everywhere", "new agent", "new server", "stopped server", "agent left out", "nobody was read"],
)
def test_agents_wait_for_the_servers_unless_k3s_is_on_all_hosts(
    server: dict[str, bool] | None, agent: dict[str, bool] | None, servers: str, agents: str
) -> None:
    loader = DataLoader()
    book = loader.load_from_file(str(ROOT / "playbooks" / "kubernetes.yml"), trusted_as_template=True)
    plays = {play.get("name"): play for play in book}
    states = {"s0": server, "n0": agent}
    known = {
        "groups": {"gb10_servers": ["s0"], "gb10_nodes": ["s0", "n0"], "gb10_cluster": ["s0", "n0"]},
        "hostvars": {host: {"k3s_host_state": state} if state else {} for host, state in states.items()},
    }
    for name, hosts in (("Start the servers", servers), ("Join the agents", agents)):
        play = plays[name]
        assert Templar(loader=loader, variables=known | play["vars"]).template(play["hosts"]) == hosts
