# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the leftovers of K3s are removed once, listed in check mode, and that errors become messages."""

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.modules import k3s_leftovers
from module_runs import Step, play

ANSWERS = {
    "ip -netns cni-1 -json -details link": json.dumps([{"ifname": "net1", "ifalias": "enp1s0f0v0"}]),
    "ip -json route": json.dumps([{"dst": "10.42.1.0/24"}]),
    "iptables-save": "*filter\n:KUBE-SERVICES - [0:0]\nCOMMIT\n",
    "ip6tables-save": "*filter\nCOMMIT\n",
}


class Host:
    """A host with a VF in a killed pod's namespace, a pod route and a rule of kube-proxy."""

    def __init__(self, place: Path, patch: pytest.MonkeyPatch) -> None:
        self.place, self.patch = place, patch
        self.options = {"directories": [str(place / "k3s"), str(place / "gone")]}
        self.commands: list[str] = []
        (place / "netns").mkdir()
        (place / "netns/cni-1").touch()
        (place / "k3s/server").mkdir(parents=True)
        (place / "k3s/token").touch()
        patch.setattr(AnsibleModule, "run_command", self.run)
        patch.setattr(AnsibleModule, "get_bin_path", lambda _module, name, *_rest: f"/usr/sbin/{name}")
        patch.setattr(k3s_leftovers, "NETNS", place / "netns")
        patch.setattr(k3s_leftovers, "processes", lambda: ({}, {}))
        patch.setattr(k3s_leftovers, "mounts_below", lambda *_arguments: ["/run/k3s/rootfs"])
        patch.setattr(k3s_leftovers, "LINKS", ())

    def run(self, command: list[str], **options: object) -> tuple[int, str, str]:
        words = " ".join(command)
        self.commands.append(f"{words} < {options['data']!r}" if options.get("data") else words)
        return 0, ANSWERS.get(words, ""), ""

    def shows(self) -> dict[str, Any]:
        shown = {
            "commands": self.commands,
            "here": sorted(str(p.relative_to(self.place)) for p in self.place.rglob("*")),
        }
        self.commands = []
        return shown


def be_busy(host: Host) -> None:
    def busy(path: Path) -> None:
        raise OSError(16, "Device or resource busy", str(path))

    host.patch.setattr(k3s_leftovers.shutil, "rmtree", busy)


CASES: dict[str, list[Step]] = {"listed, and removed": [{"check": True}, {}], "a busy directory": [be_busy, {}]}


def test_each_removal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    play("k3s_leftovers", k3s_leftovers, CASES, Host, capsys, tmp_path)
