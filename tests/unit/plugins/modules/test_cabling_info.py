# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the module reads the neighbours of each port, and how it fails."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host import system
from ansible_collections.gb10.cluster.plugins.modules import cabling_info
from ansible_collections.gb10.cluster.plugins.modules.cabling_info import parse_lldp
from module_runs import run_module

PEER, OWN_VF = "fe80::4ab0:2dff:fe00:200", "fe80::eeff:1"
ANSWERS = "\n".join(
    f"64 bytes from {address}%enp1s0f0np0: icmp_seq=1 ttl=64 time=0.05 ms"
    for address in ("fe80::4ab0:2dff:fe00:100", PEER, PEER, OWN_VF)
)
LINK_LOCAL = {"local": "fe80::4ab0:2dff:fe00:100", "prefixlen": 64, "scope": "link"}
LINKS = {
    "enp1s0f0np0": {"address": "48:B0:2D:00:01:00", "addr_info": [LINK_LOCAL]},
    "enp1s0f0v0": {
        "address": "02:00:00:00:01:00",
        "addr_info": [{"local": "10.100.0.1", "prefixlen": 24, "scope": "global"}],
    },
}
TABLE = [
    {"dst": PEER, "lladdr": "48:B0:2D:00:02:00", "state": ["REACHABLE"]},
    {"dst": OWN_VF, "lladdr": "02:00:00:00:01:00", "state": ["STALE"]},
    {"dst": "fe80::dead", "state": ["FAILED"]},
]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A host with one connected and one unconnected port; ``largest`` is the largest MTU that passes."""
    state: dict[str, Any] = {"largest": 9000, "sysfs": str(tmp_path), "links": dict(LINKS), "lldp": {}}
    for name, carrier in (("enp1s0f0np0", "1"), ("enp1s0f1np1", "0")):
        netdev = tmp_path / "class/net" / name
        (netdev / "device").mkdir(parents=True)
        for file, text in (("device/sriov_totalvfs", "8"), ("carrier", carrier), ("mtu", "9000"), ("speed", "200000")):
            (netdev / file).write_text(text)

    def run(argv: Sequence[str], **_options: Any) -> subprocess.CompletedProcess[str]:
        if "-s" in argv:
            size = int(argv[argv.index("-s") + 1]) + 48
            return subprocess.CompletedProcess(argv, int(size > state["largest"]), "", "")
        if argv[0] == "lldpctl":
            return subprocess.CompletedProcess(argv, 0, json.dumps(state["lldp"]), "")
        return subprocess.CompletedProcess(argv, 0, ANSWERS, "")

    monkeypatch.setattr(system, "run", run)
    monkeypatch.setattr(system, "links", lambda: state["links"])
    monkeypatch.setattr(system, "run_json", lambda _argv: TABLE)
    monkeypatch.setattr(system, "is_active", lambda _unit: bool(state["lldp"]))
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    monkeypatch.setattr(system, "root_remedy", lambda: "")
    return state


@pytest.mark.parametrize(("largest", "passes"), [(9000, 9000), (1500, 1500), (1000, 0)])
def test_a_port_sees_its_peer_and_not_itself(
    host: dict[str, Any], capsys: pytest.CaptureFixture[str], largest: int, passes: int
) -> None:
    host["largest"] = largest
    status, result = run_module(cabling_info, capsys, sysfs_root=host["sysfs"])
    assert (status, result["msg"], result["changed"]) == (0, "2 ports, 1 of them see a neighbour", False)
    first, second = result["ansible_facts"]["gb10_cabling"]
    assert (first["mac"], first["neighbours"], first["mtu_passes"]) == (
        "48:b0:2d:00:01:00",
        ["48:b0:2d:00:02:00"],
        passes,
    )
    assert (second["carrier"], second["neighbours"], second["mtu_passes"]) == (False, [], None)
    assert (first["link_local"], second["link_local"]) == (True, False)
    assert result["ansible_facts"]["gb10_addresses"] == {"enp1s0f0np0": [], "enp1s0f0v0": ["10.100.0.1/24"]}


@pytest.mark.parametrize(("answers", "seen"), [(True, "48:b0:2d:00:02:00"), (False, "48:b0:2d:00:03:00")])
def test_an_announcement_counts_only_where_nobody_answers(
    host: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answers: bool, seen: str
) -> None:
    announced = {"name": "enp1s0f0np0", "port": [{"id": [{"type": "mac", "value": "48:b0:2d:00:03:00"}]}]}
    host["lldp"] = {"lldp": [{"interface": [announced]}]}
    if not answers:
        monkeypatch.setattr(system, "run_json", lambda _argv: [])
    _status, result = run_module(cabling_info, capsys, sysfs_root=host["sysfs"])
    assert result["ansible_facts"]["gb10_cabling"][0]["neighbours"] == [seen]


def test_a_host_without_ping_is_named(
    host: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_argv: Sequence[str], **_options: Any) -> None:
        raise system.HostError("ping is not installed")

    monkeypatch.setattr(system, "run", missing)
    for required, expected in ((True, 1), (False, 0)):
        status, result = run_module(cabling_info, capsys, sysfs_root=host["sysfs"], required=required)
        assert (status, result["msg"], "ansible_facts" in result) == (expected, "ping is not installed", False)


@pytest.mark.usefixtures("host")
def test_an_ordinary_user_is_refused_and_does_not_see_nobody(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(system, "root_remedy", lambda: "The task ran as user nvidia, but needs root")
    status, result = run_module(cabling_info, capsys, sysfs_root=str(tmp_path))
    assert (status, "needs root" in result["msg"], "ansible_facts" in result) == (1, True, False)


def test_a_host_without_ports_sees_nothing(
    capsys: pytest.CaptureFixture[str], host: dict[str, Any], tmp_path: Path
) -> None:
    host["links"].clear()
    status, result = run_module(cabling_info, capsys, sysfs_root=str(tmp_path / "none"))
    assert (status, result["ansible_facts"]) == (0, {"gb10_cabling": [], "gb10_addresses": {}})


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
    with cabling_info.lldp(["enp1s0f0np0", "enp1s0f1np1"]) as announced:
        assert announced(())["enp1s0f0np0"]["switch"] == "crs812"
    assert len(Daemon.started) == (not running)
    for argv in Daemon.started:
        assert argv[-2:] == ["-I", "enp1s0f0np0,enp1s0f1np1"], "only the fabric's ports"
        assert ["-u", argv[argv.index("-u") + 1]] == list(asked[0][1:3]), "our own instance is asked"


def test_no_switch_is_asked_where_only_cables_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "is_active", lambda _unit: False)
    monkeypatch.setattr(system, "links", dict)
    monkeypatch.setattr(shutil, "which", pytest.fail)
    port = {"name": "enp1s0f0np0", "carrier": False}
    assert [seen["neighbours"] for seen in cabling_info.look_everywhere([port], switches=False)] == [[]]


def test_without_lldpd_nothing_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "is_active", lambda _unit: False)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with cabling_info.lldp(["enp1s0f0np0"]) as announced:
        assert announced(()) == {}
