# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test role k3s on hosts where an earlier run ended before the server was started."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_plays import ansible_cases

NEVER, STARTED = {"installed": True, "started": False}, {"installed": True, "started": True}
# Hosts of the run, tasks of the role, what the host check found, and what is said; empty if the tasks succeed
Case = tuple[str, str, dict[str, Any], str]
CASES: dict[str, Case] = {
    "no cluster": (
        "n1",
        "credentials",
        {},
        "there yet, or sudo refuses this user. Run playbook kubernetes with --limit s1,s2 first, or without --limit.",
    ),
    "second cluster": (
        "all",
        "first_check",
        {"s1": NEVER, "s2": STARTED},
        "K3s runs on s2 already; K3s was not changed. Put s2 first in gb10_servers",
    ),
    "new cluster": ("all", "first_check", {"s1": NEVER, "s2": NEVER}, ""),
    "unseen server": (
        "s1,n1",
        "first_check",
        {"s1": NEVER},
        "--limit leaves out s2, which may run one already; K3s was not changed. Run this playbook without --limit, "
        "or with --limit s1,s2.",
    ),
    "running server": ("s1", "first_check", {"s1": STARTED}, ""),
}
IN_CHECK_MODE: dict[str, Case] = {
    "nothing to read": ("all", "credentials", dict.fromkeys(("s1", "s2", "n1"), NEVER), ""),
    "nothing to save": ("all", "backup", {}, "K3s was never started on s1 with k3s_data_dir"),
    "first server left out": (
        "s2",
        "backup",
        {},
        "This run leaves out s1, whose state is saved; nothing was changed. Run it without --limit, or an",
    ),
}


def played(directory: Path, cases: Mapping[str, Case], *options: str) -> dict[str, tuple[bool, str]]:
    """Play the cases on this machine, with what the host check found."""
    plays: dict[str, dict[str, Any]] = {}
    for name, (hosts, tasks_from, states, _told) in cases.items():
        found = {"k3s_host_state": "{{ states[inventory_hostname] | default({}) }}"}
        plays[f"Before {name}"] = {
            "hosts": "all",
            "vars": {"states": states},
            "tasks": [{"ansible.builtin.set_fact": found}],
        }
        role = {"name": "gb10.cluster.k3s", "tasks_from": tasks_from}
        plays[name] = {"hosts": hosts, "tasks": [{"ansible.builtin.import_role": role}]}
    common = {
        "k3s_data_dir": str(directory),
        "k3s_kubeconfig": str(directory / "config"),
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
    }
    groups = {
        "gb10_servers": {"hosts": {"s1": {}, "s2": {}}},
        "gb10_nodes": {"hosts": {"n1": {}}},
        "all": {"vars": common},
    }
    (directory / "hosts.yml").write_text(yaml.safe_dump(groups))
    return ansible_cases(directory, plays, "-i", directory / "hosts.yml", *options)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[bool, str]]:
    """Return which cases failed, and their output."""
    directory = tmp_path_factory.mktemp("plays")
    found = played(directory, CASES) | played(directory, IN_CHECK_MODE, "--check")
    assert not (directory / "config").exists()
    return found


@pytest.mark.parametrize("name", [*CASES, *IN_CHECK_MODE])
def test_an_installation_that_is_not_whole_is_named_before_a_host_is_changed(
    done: dict[str, tuple[bool, str]], name: str
) -> None:
    told = (CASES | IN_CHECK_MODE)[name][3]
    failed, output = done[name]
    assert failed is bool(told), output
    assert told in output
    before = output.partition(told)[0] if told else ""
    assert "Write the token files" not in before and "Archive datastore" not in before
