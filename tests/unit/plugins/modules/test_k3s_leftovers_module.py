# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the leftovers of K3s are removed once, listed in check mode, and that errors become messages."""

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.modules import k3s_leftovers
from module_runs import run_module

Capture = pytest.CaptureFixture[str]
OURS = ":KUBE-SERVICES - [0:0]\n"


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A host with a VF in a killed pod's namespace, a pod route and a rule of kube-proxy; commands are recorded."""
    commands: list[list[str]] = []
    (tmp_path / "netns").mkdir()
    (tmp_path / "netns/cni-1").touch()
    (tmp_path / "k3s/server").mkdir(parents=True)
    (tmp_path / "k3s/token").touch()
    answers = {
        "ip -netns cni-1 -json -details link": json.dumps([{"ifname": "net1", "ifalias": "enp1s0f0v0"}]),
        "ip -json route": json.dumps([{"dst": "10.42.1.0/24"}]),
        "iptables-save": f"*filter\n{OURS}COMMIT\n",
        "ip6tables-save": "*filter\nCOMMIT\n",
    }

    def run(_module: AnsibleModule, command: list[str], **_options: object) -> tuple[int, str, str]:
        commands.append(command)
        return 0, answers.get(" ".join(command), ""), ""

    monkeypatch.setattr(AnsibleModule, "run_command", run)
    monkeypatch.setattr(AnsibleModule, "get_bin_path", lambda _module, name, *_rest: f"/usr/sbin/{name}")
    monkeypatch.setattr(k3s_leftovers, "NETNS", tmp_path / "netns")
    monkeypatch.setattr(k3s_leftovers, "processes", lambda: ({}, {}))
    monkeypatch.setattr(k3s_leftovers, "mounts_below", lambda *_arguments: ["/run/k3s/rootfs"])
    monkeypatch.setattr(k3s_leftovers, "LINKS", ())
    return commands


def clean(tmp_path: Path, capsys: Capture, check: bool = False) -> tuple[int, dict[str, Any]]:
    return run_module(k3s_leftovers, capsys, check=check, directories=[str(tmp_path / "k3s"), str(tmp_path / "gone")])


def test_check_mode_lists_and_removes_nothing(tmp_path: Path, capsys: Capture, called: list[list[str]]) -> None:
    status, result = clean(tmp_path, capsys, check=True)
    removed = result["removed"]
    assert (status, result["changed"], removed["returned_links"]) == (0, True, ["enp1s0f0v0"])
    assert (removed["mounts"], removed["routes"], removed["rules"]) == (
        ["/run/k3s/rootfs"],
        ["10.42.1.0/24"],
        ["iptables"],
    )
    assert removed["directories"] == [str(tmp_path / "k3s")]
    assert (tmp_path / "k3s/token").exists()
    assert not [command for command in called if {"delete", "set", "umount", "iptables-restore"} & set(command)]


def test_it_is_removed(tmp_path: Path, capsys: Capture, called: list[list[str]]) -> None:
    assert clean(tmp_path, capsys)[0] == 0
    assert ["ip", "-netns", "cni-1", "link", "set", "dev", "enp1s0f0v0", "netns", "1"] in called
    assert ["umount", "--lazy", "/run/k3s/rootfs"] in called
    assert ["ip", "route", "delete", "10.42.1.0/24"] in called
    assert ["iptables-restore"] in called
    assert not (tmp_path / "k3s").exists()
    assert not list((tmp_path / "netns").iterdir())


@pytest.mark.usefixtures("called")
def test_a_busy_directory_fails_with_what_was_done(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(path: Path) -> None:
        raise OSError(16, "Device or resource busy", str(path))

    monkeypatch.setattr(k3s_leftovers.shutil, "rmtree", busy)
    status, result = clean(tmp_path, capsys)
    assert (status, result["changed"], result["removed"]["directories"]) == (1, True, [])
    assert result["removed"]["mounts"] == ["/run/k3s/rootfs"]
    assert "busy" in result["msg"]
    assert "playbook reset again" in result["msg"]
