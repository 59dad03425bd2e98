# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a reset removes only what is K3s's own, and keeps what the remaining servers need."""

from pathlib import Path
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

ROLE = Path(__file__).resolve().parents[3] / "roles" / "k3s"


@pytest.mark.parametrize(("hosts", "removed"), [(["s1", "s2", "n1"], True), (["s2"], False), (["n1"], False)])
def test_the_context_goes_only_with_the_last_server(hosts: list[str], *, removed: bool) -> None:
    loader = DataLoader()
    tasks = loader.load_from_file(str(ROLE / "tasks" / "reset.yml"), trusted_as_template=True)
    (task,) = [task for task in tasks if "gb10.cluster.kubeconfig" in task]
    known = {"k3s_servers": ["s1", "s2"], "ansible_play_hosts": hosts}
    assert Templar(loader=loader, variables=known).evaluate_conditional(task["when"]) is removed


@pytest.mark.parametrize(
    ("servers", "limit", "allowed"),
    [
        (["s1"], ["s1"], False),
        (["s1"], ["s1", "n1"], False),
        (["s1"], ["s1", "n1", "n2"], True),
        (["s1"], ["n1"], True),
        (["s1", "n1"], ["s1"], True),
        (["s1", "n1"], ["s1", "n1"], False),
    ],
)
def test_the_last_servers_do_not_leave_alone(servers: list[str], limit: list[str], *, allowed: bool) -> None:
    loader = DataLoader()
    tasks = loader.load_from_file(str(ROLE / "tasks" / "confirm_reset.yml"), trusted_as_template=True)
    task = tasks[-1]
    known = {
        "k3s_servers": servers,
        "groups": {"gb10_cluster": ["s1", "n1", "n2"]},
        "ansible_play_hosts_all": limit,
        **task["vars"],
    }
    templar = Templar(loader=loader, variables=known)
    assert templar.evaluate_conditional(task["ansible.builtin.assert"]["that"]) is allowed
    if not allowed:
        message = templar.template(task["ansible.builtin.assert"]["fail_msg"])
        assert f"leaves out {', '.join(host for host in ('s1', 'n1', 'n2') if host not in limit)}, " in message


CA = "a" * 64


@pytest.mark.parametrize(
    ("former", "token", "other"),
    [
        ({"exists": True, "checksum": CA}, f"K10{'b' * 64}::node:secret", True),
        ({"exists": True, "checksum": CA}, f"K10{CA}::node:secret", False),
        ({"exists": True, "checksum": CA}, "secret", False),
        ({"exists": False}, f"K10{CA}::node:secret", False),
        (None, f"K10{CA}::node:secret", False),
    ],
)
def test_the_networks_of_a_former_cluster_go_and_those_of_the_same_one_stay(
    former: dict[str, Any] | None, token: str, *, other: bool
) -> None:
    loader = DataLoader()
    tasks = loader.load_from_file(str(ROLE / "tasks" / "former.yml"), trusted_as_template=True)
    task = tasks[-1]
    assert task["ansible.builtin.file"]["state"] == "absent"
    known = loader.load_from_file(str(ROLE / "vars" / "main.yml"), trusted_as_template=True)
    known |= {"__k3s_joining_files": [{"content": token}], "k3s_former_ca": {"stat": former} if former else {}}
    assert Templar(loader=loader, variables=known).evaluate_conditional(task["when"]) is other


def test_a_node_that_leaves_names_the_groups_that_stop_once_each() -> None:
    loader = DataLoader()
    variables = loader.load_from_file(str(ROLE / "vars" / "main.yml"), trusted_as_template=True)
    pods = [{"metadata": {"labels": {"gb10.cluster/instance": name}}} for name in ("qwen", "glm", "qwen")]
    known = variables | {"k3s_node_name": "spark2", "k3s_node_ranks": {"resources": pods}}
    (task,) = [
        task
        for task in loader.load_from_file(str(ROLE / "tasks" / "leave.yml"), trusted_as_template=True)[0]["block"]
        if "__k3s_stopping" in str(task.get("when"))
    ]
    templar = Templar(loader=loader, variables=known)
    assert templar.evaluate_conditional(task["when"])
    text = templar.template(task["gb10.cluster.show"]["text"])
    assert text.startswith("spark2 leaves the cluster, and what has a rank on it stops now: glm, qwen. Serve it on")
    known["k3s_node_ranks"] = {"skipped": True}
    assert not Templar(loader=loader, variables=known).evaluate_conditional(task["when"])
