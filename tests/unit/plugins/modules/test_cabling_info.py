# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the module reads the neighbours of each port, and how it fails."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host import system
from ansible_collections.gb10.cluster.plugins.modules import cabling_info
from ansible_collections.gb10.cluster.plugins.modules.cabling_info import parse_lldp
from module_runs import Step, steps_of

PORT = "enp1s0f0np0"
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


def interface(name: str, *kinds: str, mac: str = "", port: str = "uplink 1") -> dict[str, Any]:
    """Return what lldpd tells of a neighbour with these kinds that are enabled, and of its port."""
    chassis = {"name": [{"value": "crs812"}], "capability": [{"type": kind, "enabled": True} for kind in kinds]}
    own = {"type": "mac", "value": mac} if mac else {"type": "ifname", "value": "qsfp56-1"}
    return {"name": name, "chassis": [chassis], "port": [{"id": [own], "descr": [{"value": port}]}]}


class Host:
    """A host with one connected and one unconnected port; ``largest`` is the largest MTU that passes.

    ``heard`` are the announcements of an lldpd that runs; one that is ``installed`` is started for the moment.
    """

    def __init__(self, place: Path, patch: pytest.MonkeyPatch) -> None:
        self.patch, self.options, self.place = patch, {"sysfs_root": str(place)}, place
        self.largest, self.table, self.links = 9000, TABLE, dict(LINKS)
        self.heard: list[dict[str, Any]] = []
        self.runs, self.installed, self.broken, self.remedy = False, False, False, ""
        self.commands: list[str] = []
        self.hides = r"(?<=gb10-lldp-)\w+"
        for name, carrier in ((PORT, "1"), ("enp1s0f1np1", "0")):
            netdev = place / "class/net" / name
            (netdev / "device").mkdir(parents=True)
            values = {"device/sriov_totalvfs": "8", "carrier": carrier, "mtu": "9000", "speed": "200000"}
            for file, text in values.items():
                (netdev / file).write_text(text)
        patch.setattr(system, "run", self.run)
        patch.setattr(system, "links", lambda: self.links)
        patch.setattr(system, "run_json", lambda _argv: self.table)
        patch.setattr(system, "is_active", lambda _unit: self.runs)
        patch.setattr(shutil, "which", lambda name: f"/usr/sbin/{name}" if self.installed else None)
        patch.setattr(system, "root_remedy", lambda: self.remedy)
        patch.setattr(subprocess, "Popen", self.start)
        patch.setattr(time, "sleep", lambda _seconds: None)

    def run(self, argv: Sequence[str], **_options: Any) -> subprocess.CompletedProcess[str]:
        if self.broken:
            raise system.HostError("ping is not installed")
        self.commands.append(" ".join(argv))
        code = int("-s" in argv and int(argv[argv.index("-s") + 1]) + 48 > self.largest)
        text = json.dumps({"lldp": [{"interface": self.heard}]}) if argv[0] == "lldpctl" else ANSWERS
        return subprocess.CompletedProcess(argv, code, "" if "-s" in argv else text, "")

    def start(self, argv: list[str], **_options: Any) -> Daemon:
        self.commands.append(" ".join(argv))
        Path(argv[argv.index("-u") + 1]).touch()
        return Daemon(self.commands)


class Daemon(ExitStack):
    """An lldpd that runs until it is terminated."""

    def __init__(self, commands: list[str]) -> None:
        super().__init__()
        self.callback(commands.append, "left")
        self.poll, self.terminate = lambda: None, partial(commands.append, "terminated")


OTHER = interface(PORT, "Station", mac="48:b0:2d:00:03:00")
SWITCH = interface(PORT, "Bridge", "Router")


def heard(*told: dict[str, Any]) -> Step:
    return {"runs": True, "table": [], "heard": [*told]}


CASES: dict[str, list[Step]] = {
    **{f"MTU {largest} passes": [{"largest": largest}] for largest in (9000, 1500, 1000)},
    # An announcement counts only where nobody answers.
    "announcements": [{"runs": True, "heard": [OTHER]}, {"table": []}],
    "a switch, and a host": [heard(SWITCH, interface("eth0", "Station"))],
    "the MAC of a host's port": [heard(interface(PORT, "Station", mac="48:B0:2D:00:04:00"))],
    "an own VF": [heard(interface(PORT, "Bridge", mac="02:00:00:00:01:00", port="enp1s0f0v0"))],
    "the VF of a switch after its port": [
        heard(SWITCH, interface(PORT, "Bridge", mac="02:00:00:00:01:01", port="enp1s0v1"))
    ],
    "a switch": [{"runs": True, "heard": [SWITCH]}, {"switches": False}],
    "an lldpd that does not run": [{"installed": True, "heard": [SWITCH]}, {"switches": False}],
    "no ping": [{"broken": True, "required": True}, {"required": False}],
    "no root": [{"remedy": "The task ran as user nvidia, but needs root"}],
    "no ports": [lambda host: shutil.rmtree(host.place / "class"), {"links": {}}],
}
test_each_look = steps_of(cabling_info=(cabling_info, Host, CASES))


@pytest.mark.parametrize("text", ["", "{}", '{"lldp": []}', '{"lldp": [{}]}'])
def test_a_host_without_announcements_hears_nothing(text: str) -> None:
    assert parse_lldp(text) == {}
