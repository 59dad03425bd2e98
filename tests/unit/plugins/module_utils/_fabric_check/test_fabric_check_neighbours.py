# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the switch that lldpd names for each port."""

from __future__ import annotations

import json

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._fabric_check.neighbours import parse_lldp


def interface(name: str, *kinds: str) -> dict[str, object]:
    chassis = {"name": [{"value": "crs812"}], "capability": [{"type": kind, "enabled": True} for kind in kinds]}
    port = {"id": [{"type": "ifname", "value": "qsfp56-1"}], "descr": [{"value": "uplink 1"}]}
    return {"name": name, "chassis": [chassis], "port": [port]}


def test_switches_are_named_and_hosts_left_out() -> None:
    text = json.dumps(
        {"lldp": [{"interface": [interface("enp1s0f0np0", "Bridge", "Router"), interface("eth0", "Station")]}]}
    )
    assert parse_lldp(text) == {"enp1s0f0np0": {"switch": "crs812", "switch_port": "uplink 1"}}


@pytest.mark.parametrize(
    "text", ["", "{}", '{"lldp": []}', '{"lldp": [{}]}', '{"lldp": [{"interface": [{"name": "a"}]}]}']
)
def test_a_port_without_announcements_has_no_neighbour(text: str) -> None:
    assert parse_lldp(text) == {}
