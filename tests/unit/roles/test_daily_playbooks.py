# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the playbooks of daily work: which hosts a shutdown switches off, and in which order."""

from pathlib import Path
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

PLAYBOOKS = Path(__file__).resolve().parents[3] / "playbooks"


def shutdown() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DataLoader().load_from_file(str(PLAYBOOKS / "shutdown.yml"), trusted_as_template=True)
    return found


@pytest.mark.parametrize(
    ("given", "allowed"),
    [({}, False), ({"shutdown_confirm": "no"}, False), ({"shutdown_confirm": "yes"}, True)],
)
def test_a_shutdown_needs_a_confirmation(given: dict[str, str], *, allowed: bool) -> None:
    (task,) = shutdown()[1]["tasks"]
    templar = Templar(loader=DataLoader(), variables={"ansible_play_hosts": ["spark1", "spark2"], **given})
    assert templar.evaluate_conditional(task["ansible.builtin.assert"]["that"]) is allowed
    assert "switches spark1, spark2 off" in templar.template(task["ansible.builtin.assert"]["fail_msg"])


def test_the_servers_are_switched_off_last() -> None:
    off = [play["hosts"] for play in shutdown() if "poweroff" in str(play.get("tasks"))]
    assert off == ["gb10_cluster:!gb10_servers", "gb10_servers"]
