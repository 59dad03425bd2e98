# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the routes, sysctls and firewall rules of hosts that forward for others."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._host import system
from ansible_collections.gb10.cluster.plugins.module_utils._netplan import interfaces, transit

PFS = [
    {"name": "enp1s0f0np0", "address": "10.112.255.1", "prefix": 24,
     "routes": [{"to": "10.123.255.0/24", "via": "10.112.255.2"}]},
    {"name": "enp1s0f1np1", "address": "10.141.255.1", "prefix": 24, "routes": []},
]  # fmt: skip
VFS = [{"netdev": "enp1s0f0v0", "address": "10.112.0.1", "prefix": 24}]
DESIRED = interfaces.interfaces(PFS, VFS, 9000)
PORTS = interfaces.forwarding(DESIRED)
ROUTES = {interface.name: interface.routes for interface in DESIRED}


def test_pfs_get_addresses_and_routes_and_forward_but_vfs_do_not() -> None:
    ethernets = yaml.safe_load(interfaces.render_netplan(DESIRED))["network"]["ethernets"]
    assert ethernets["enp1s0f0np0"]["addresses"] == ["10.112.255.1/24"]
    assert ethernets["enp1s0f0np0"]["routes"] == [{"to": "10.123.255.0/24", "via": "10.112.255.2"}]
    assert "routes" not in ethernets["enp1s0f0v0"]
    assert PORTS == ["enp1s0f0np0", "enp1s0f1np1"]
    forwarding = {key for key in interfaces.sysctls(DESIRED) if key.endswith("/forwarding")}
    assert forwarding == {f"net/ipv4/conf/{name}/forwarding" for name in PORTS}


def test_a_route_that_is_not_one_is_refused() -> None:
    bad = {**PFS[0], "routes": [{"to": "default; reboot", "via": "10.112.255.2"}]}
    with pytest.raises(ValueError, match="default; reboot"):
        interfaces.interfaces([bad], [], 9000)


def test_the_firewall_is_opened_between_the_ports_only_and_in_a_chain_of_its_own(tmp_path: Path) -> None:
    """Run the unit's own commands with an iptables that only prints."""
    unit, want = transit.files(PORTS).values()
    assert unit
    assert want == "[Unit]\nWants=gb10-transit.service\n"
    program = tmp_path / "iptables"
    program.write_text('#!/bin/sh\necho "$*"\n')
    program.chmod(0o755)
    commands = {}
    for line in unit.splitlines():
        key, _equals, command = line.partition("=")
        if key in ("ExecStart", "ExecStop"):
            script = command.removeprefix("-").removeprefix("/bin/sh -c '").removesuffix("'")
            done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True,
                                  env={"PATH": str(tmp_path)})  # fmt: skip
            commands[key] = done.stdout.splitlines()
    closed = ["-w -D FORWARD -j GB10-TRANSIT", "-w -F GB10-TRANSIT", "-w -X GB10-TRANSIT"]
    assert commands["ExecStop"] == closed
    assert commands["ExecStart"] == [
        *closed,
        "-w -N GB10-TRANSIT",
        "-w -A GB10-TRANSIT -i enp1s0f0np0 -o enp1s0f1np1 -j ACCEPT",
        "-w -A GB10-TRANSIT -i enp1s0f1np1 -o enp1s0f0np0 -j ACCEPT",
        "-w -I FORWARD -j GB10-TRANSIT",
    ]


def test_a_host_without_iptables_has_nothing_to_open(tmp_path: Path) -> None:
    script = next(line for line in transit.render(PORTS).splitlines() if line.startswith("ExecStart="))
    shell = script.removeprefix("ExecStart=/bin/sh -c '").removesuffix("'")
    done = subprocess.run(["/bin/sh", "-c", shell], check=False, env={"PATH": str(tmp_path)})
    assert done.returncode == 0


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A host whose commands are recorded; ``active`` is the unit, ``routes`` and ``rule`` what is live."""
    state: dict[str, Any] = {"ran": [], "active": False, "routes": [], "rule": False}

    def run(argv: Sequence[str], check: bool = True, **_options: Any) -> subprocess.CompletedProcess[str]:
        state["ran"].append(" ".join(argv))
        assert check is (argv[0] != "iptables")
        return subprocess.CompletedProcess(argv, int(argv[0] == "iptables" and not state["rule"]), "", "")

    monkeypatch.setattr(transit, "UNIT", tmp_path / "gb10-transit.service")
    monkeypatch.setattr(system, "run", run)
    monkeypatch.setattr(system, "run_json", lambda _argv: state["routes"])
    monkeypatch.setattr(system, "is_active", lambda _unit: state["active"])
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/sbin/{name}")
    return state


def test_the_unit_follows_its_file(host: dict[str, Any]) -> None:
    transit.sync()
    assert host["ran"] == []
    transit.UNIT.write_text("")
    transit.sync()
    assert host["ran"] == ["systemctl daemon-reload", "systemctl restart gb10-transit.service"]
    transit.UNIT.unlink()
    host.update(active=True, ran=[])
    transit.sync()
    assert host["ran"] == ["systemctl stop gb10-transit.service", "systemctl daemon-reload"]


def test_files_are_removed_only_where_they_exist(host: dict[str, Any]) -> None:
    assert transit.files([]) == {}
    transit.UNIT.write_text("")
    assert list(transit.files([]).values()) == [None, None]


def test_a_lost_route_or_rule_is_a_deviation(host: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert transit.deviations(ROUTES, PORTS) == [
        "route: 10.123.255.0/24 via 10.112.255.2 is missing",
        "firewall: FORWARD lacks the chain GB10-TRANSIT",
    ]
    host.update(routes=[{"dst": "10.123.255.0/24", "gateway": "10.112.255.2"}], rule=True)
    assert transit.deviations(ROUTES, PORTS) == []
    host["rule"] = False
    assert transit.deviations({"enp1s0f0np0": ()}, []) == []
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    assert transit.deviations({}, PORTS) == []
    both = [("10.1.0.0/24", "10.0.0.1"), ("10.2.0.0/24", "10.0.0.1")]
    host["routes"] = [{"dst": "10.9.0.0/24"}, {"dst": "10.1.0.0/24", "gateway": "10.0.0.1"}]
    missing = "route: 10.2.0.0/24 via 10.0.0.1 is missing"
    assert transit.deviations({"a": both, "b": both}, []) == [missing] * 2
