# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the switch that lldpd names for each port."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._fabric_check import neighbours
from ansible_collections.gb10.cluster.plugins.module_utils._fabric_check.neighbours import parse_lldp
from ansible_collections.gb10.cluster.plugins.module_utils._host import system


def interface(name: str, *kinds: str) -> dict[str, object]:
    chassis = {"name": [{"value": "crs812"}], "capability": [{"type": kind, "enabled": True} for kind in kinds]}
    port = {"id": [{"type": "ifname", "value": "qsfp56-1"}], "descr": [{"value": "uplink 1"}]}
    return {"name": name, "chassis": [chassis], "port": [port]}


def test_switches_are_named_and_hosts_left_out() -> None:
    text = json.dumps(
        {"lldp": [{"interface": [interface("enp1s0f0np0", "Bridge", "Router"), interface("eth0", "Station")]}]}
    )
    assert parse_lldp(text) == {
        "enp1s0f0np0": {"macs": [], "switch": "crs812", "switch_port": "uplink 1"},
        "eth0": {"macs": []},
    }


def test_a_host_announces_the_mac_of_its_port() -> None:
    heard = interface("enp1s0f0np0", "Station")
    heard["port"] = [{"id": [{"type": "mac", "value": "48:B0:2D:00:02:00"}]}]
    assert parse_lldp(json.dumps({"lldp": [{"interface": [heard]}]})) == {
        "enp1s0f0np0": {"macs": ["48:b0:2d:00:02:00"]}
    }


def test_announcements_of_own_vfs_are_left_out() -> None:
    own = interface("enp1s0f0np0", "Bridge")
    own["port"] = [{"id": [{"type": "mac", "value": "02:00:00:00:01:00"}], "descr": [{"value": "enp1s0f0v0"}]}]
    text = json.dumps({"lldp": [{"interface": [own]}]})
    assert parse_lldp(text, {"02:00:00:00:01:00"}) == {}


def test_the_port_is_named_and_not_the_vf_that_announces_after_it() -> None:
    port, vf = interface("enp2s0", "Bridge"), interface("enp2s0", "Bridge")
    vf["port"] = [{"id": [{"type": "mac", "value": "02:00:00:00:01:01"}], "descr": [{"value": "enp1s0v1"}]}]
    heard = parse_lldp(json.dumps({"lldp": [{"interface": [port, vf]}]}))
    assert heard == {"enp2s0": {"macs": ["02:00:00:00:01:01"], "switch": "crs812", "switch_port": "uplink 1"}}


@pytest.mark.parametrize("text", ["", "{}", '{"lldp": []}', '{"lldp": [{}]}'])
def test_a_host_without_announcements_hears_nothing(text: str) -> None:
    assert parse_lldp(text) == {}


class Daemon:
    """An lldpd that runs until it is terminated."""

    started: ClassVar[list[list[str]]] = []
    terminated = 0

    def __init__(self, argv: list[str], **_options: Any) -> None:
        self.started.append(argv)
        Path(argv[argv.index("-u") + 1]).touch()

    def poll(self) -> int | None:
        return None

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_error: object) -> None:
        assert self.terminated

    def terminate(self) -> None:
        self.terminated += 1


@pytest.mark.parametrize("running", [True, False])
def test_an_installed_lldpd_is_asked_and_started_for_the_moment(monkeypatch: pytest.MonkeyPatch, running: bool) -> None:
    asked: list[Sequence[str]] = []
    text = json.dumps({"lldp": [{"interface": [interface("enp1s0f0np0", "Bridge")]}]})

    def run(argv: Sequence[str], **_options: Any) -> subprocess.CompletedProcess[str]:
        asked.append(argv)
        return subprocess.CompletedProcess(argv, 0, text, "")

    monkeypatch.setattr(system, "is_active", lambda _unit: running)
    monkeypatch.setattr(system, "run", run)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/sbin/{name}")
    monkeypatch.setattr(subprocess, "Popen", Daemon)
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    monkeypatch.setattr(Daemon, "started", [])
    with neighbours.lldp(["enp1s0f0np0", "enp1s0f1np1"]) as announced:
        assert announced(())["enp1s0f0np0"]["switch"] == "crs812"
    assert len(Daemon.started) == (not running)
    for argv in Daemon.started:
        assert argv[-2:] == ["-I", "enp1s0f0np0,enp1s0f1np1"], "only the fabric's ports"
        assert ["-u", argv[argv.index("-u") + 1]] == list(asked[0][1:3]), "our own instance is asked"


def test_without_lldpd_nothing_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "is_active", lambda _unit: False)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with neighbours.lldp(["enp1s0f0np0"]) as announced:
        assert announced(()) == {}
