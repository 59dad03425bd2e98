# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a file of netplan has one remedy, and that a change says first how it is undone."""

from pathlib import Path

import yaml
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.data import Rules

ROOT = Path(__file__).resolve().parents[3]
FILE = "/etc/netplan/40-cx7.yaml"
COMMAND = f"sudo mv {FILE} /root/"


def test_the_page_moves_the_leftover_of_nvidia_s_playbook_as_preflight_says() -> None:
    preflight = Rules("_node").finding("preflight.netplan.leftover", FILE, path=FILE)
    assert COMMAND in preflight.remedy
    assert COMMAND in (ROOT / "docs" / "prepare.md").read_text(encoding="utf-8")


def test_what_a_host_does_after_ctrl_c_is_said_before_its_network_changes() -> None:
    first, second = yaml.safe_load((ROOT / "roles/netplan/tasks/apply.yml").read_text(encoding="utf-8"))[:2]
    assert "Ctrl-C" in first["gb10.cluster.show"]["text"]
    assert "netplan_undo_timeout" in first["gb10.cluster.show"]["text"]
    assert "gb10.cluster.netplan_transaction" in second
