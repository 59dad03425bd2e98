# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a file of netplan has one remedy wherever it is found, and that a change says first how it is undone."""

from pathlib import Path

import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.netplan import Interface, leftovers
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.data import Rules

ROOT = Path(__file__).resolve().parents[3]
FILE = "/etc/netplan/40-cx7.yaml"
COMMAND = f"sudo mv {FILE} /root/"


def test_the_leftover_of_nvidia_s_playbook_has_one_remedy() -> None:
    text = {Path(FILE): "network:\n  ethernets:\n    enp1s0f0np0:\n      dhcp4: true\n"}
    wanted = Interface("enp1s0f0np0", 9000)
    (found,) = leftovers([wanted], {}, text)
    preflight = Rules("_node").finding("preflight.netplan.leftover", FILE, path=FILE)
    assert found.remedy.rstrip(".") == preflight.remedy.rstrip(".")
    assert COMMAND in found.remedy
    assert COMMAND in (ROOT / "docs" / "prepare.md").read_text(encoding="utf-8")


def test_what_a_host_does_after_ctrl_c_is_said_before_its_network_changes() -> None:
    first, second = yaml.safe_load((ROOT / "roles/netplan/tasks/apply.yml").read_text(encoding="utf-8"))[:2]
    assert "Ctrl-C" in first["gb10.cluster.show"]["text"]
    assert "netplan_undo_timeout" in first["gb10.cluster.show"]["text"]
    assert "gb10.cluster.netplan_transaction" in second
