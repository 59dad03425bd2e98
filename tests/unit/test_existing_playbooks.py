# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the playbooks neither install into a cluster of somebody else nor remove anything from it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

PLAYBOOKS = Path(__file__).resolve().parents[2] / "playbooks"
# Roles that change the cluster itself. Of multus, an existing cluster gets the network attachments.
OURS = {"gb10.cluster.k3s", "gb10.cluster.device_plugins", "gb10.cluster.multus"}


def plays(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load((PLAYBOOKS / f"{name}.yml").read_text(encoding="utf-8")))


def uses(play: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return role, entry point and condition of every role of a play."""
    found = [(entry["role"], "main", entry.get("when", "")) for entry in play.get("roles", [])]
    for task in play.get("tasks", []):
        called = task.get("ansible.builtin.import_role") or task.get("ansible.builtin.include_role")
        if called:
            found.append((called["name"], called.get("tasks_from", "main"), task.get("when", "")))
    return found


@pytest.mark.parametrize("name", ["kubernetes", "reset"])
def test_what_changes_the_cluster_is_left_out(name: str) -> None:
    found = [(use, play) for play in plays(name) for use in uses(play) if use[0] in OURS and use[1] != "render"]
    assert found
    for (role, entry, condition), play in found:
        wanted = "existing" if entry == "attachments" else "not existing"
        assert condition == wanted or condition.startswith("not existing and "), f"{role} {entry}"
        assert play["vars_files"] == ["vars/provider.yml"]


@pytest.mark.parametrize("name", ["backup", "restore", "update", "upgrade"])
def test_what_is_only_about_k3s_is_refused(name: str) -> None:
    assert plays(name)[0]["vars"]["needed_provider"] == "k3s"


def test_a_group_is_proven_before_and_after_an_update_as_by_playbook_verify() -> None:
    tasks = yaml.safe_load((PLAYBOOKS.parent / "roles" / "update" / "tasks" / "serve.yml").read_text(encoding="utf-8"))
    inner = {"tasks": [part for task in tasks for part in task.get("block", [])]}
    every = [*(plays(name) for name in ("verify", "group_start", "group_stop")), [inner]]
    found = [[use[1:] for play in book for use in uses(play) if use[0] == "gb10.cluster.nccl_verify"] for book in every]
    assert [[entry for entry, _condition in proofs] for proofs in found] == [["main", "answers"]] * len(every)
    assert found[0] == found[1]


def test_no_other_playbook_changes_the_cluster() -> None:
    known = {"kubernetes", "reset", "backup", "restore", "upgrade", "group_start", "group_stop"}
    others = {path.stem for path in PLAYBOOKS.glob("*.yml")} - known
    assert not [
        name for name in others for play in plays(name) for use in uses(play) if use[0] in OURS and use[1] != "render"
    ]
