# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the modules that start K3s, read its state and remove it. hostile/test_hostile_archive.py tests refusals."""

import hashlib
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._host import system
from ansible_collections.gb10.cluster.plugins.module_utils._node import facts as preflight_facts
from ansible_collections.gb10.cluster.plugins.module_utils._node.commands import Answer
from ansible_collections.gb10.cluster.plugins.modules import (
    k3s_airgap_info,
    k3s_backup_info,
    k3s_leftovers,
    k3s_service,
    k3s_service_info,
    preflight_info,
)
from module_runs import Step, run_module, steps_of

Capture = pytest.CaptureFixture[str]


class Systemd:
    """A systemd in which the command ``fails`` fails ``times`` times; ``journal`` is what K3s printed."""

    def __init__(self, place: Path, patch: pytest.MonkeyPatch) -> None:
        self.place, self.options = place, {"name": "k3s"}
        self.active, self.unit, self.started, self.broken = "inactive", "disabled", "", ""
        self.fails, self.times, self.journal = "", 9, ""
        self.commands: list[str] = []
        patch.setattr(AnsibleModule, "run_command", self.run)
        patch.setattr(system, "last_words", lambda unit, _since: self.journal if unit == "k3s.service" else "")
        patch.setattr(AnsibleModule, "get_bin_path", lambda _module, name, *_rest: f"/usr/bin/{name}")

    def run(self, command: list[str], **_options: object) -> tuple[int, str, str]:
        self.commands.append(" ".join(command))
        if self.broken:
            return 1, "", self.broken
        if command[1] == "show":
            state = f"ActiveState={self.active}\nUnitFileState={self.unit}\n"
            return 0, f"{state}ExecMainStartTimestamp={self.started}\n", ""
        failed = command[1] == self.fails and sum(one.split()[1] == self.fails for one in self.commands) <= self.times
        return (1, "", "Job for k3s.service failed.") if failed else (0, "", "")


EVERYTHING = {"enabled": True, "daemon_reload": True}
SERVICE: dict[str, list[Step]] = {
    "active": [{"active": "active", **more} for more in ({}, {"state": "restarted"}, {"enabled": True})],
    "inactive": [{"check": True}, {}],
    "activating, as an agent": [{"active": "activating", "name": "k3s-agent"}],
    "failed": [{"active": "failed", **EVERYTHING, "check": True}, EVERYTHING],
    "only a reload": [{"active": "active", "unit": "enabled", **EVERYTHING}],
    "it does not start": [{"fails": "start", "journal": journal} for journal in ("the token is another", "")],
    "it starts the second time": [{"fails": "start", "times": 1, "journal": "etcd is slow"}],
    "it restarts the second time": [
        {"active": "active", "state": "restarted", "fails": "restart", "times": 1, "journal": "etcd is slow"}
    ],
    "it is not enabled": [{"fails": "enable", "enabled": True}],
    "no systemd": [{"broken": "System has not been booted with systemd\n"}],
}


def with_files(names: str, **options: Any) -> Step:
    """Return options with files of the case's directory: of the service, or with the checksum of a K3s."""

    def step(host: Systemd) -> dict[str, Any]:
        for name, text in (("config.yaml", ""), ("same", "k3s"), ("other", "older")):
            (host.place / name).write_text(text)
        wanted = [str(host.place / name) for name in names.split()]
        sums = dict.fromkeys(wanted, hashlib.sha256(b"k3s").hexdigest())
        return {"files": wanted, **options, "sums": sums if "same" in names else {}}

    return step


STATES = (("active", "enabled"), ("active", "disabled"), ("activating", "enabled"), ("failed", "enabled"))
SERVICE_INFO: dict[str, list[Step]] = {
    "states": [{"active": active, "unit": unit, "files": []} for active, unit in (*STATES, ("inactive", ""))],
    "older and newer files": [
        with_files("config.yaml missing", active="active", started=started) for started in ("@0", "@4000000000")
    ],
    "files that the host has": [with_files("same other missing")],
    "no systemd": [{"broken": "System has not been booted with systemd\n", "files": []}],
}


class Directory:
    """A directory with the files of a release."""

    def __init__(self, place: Path, _patch: pytest.MonkeyPatch) -> None:
        self.place, self.options = place, {"path": str(place), "arch": "arm64"}


def has(**files: str | None) -> Step:
    def step(host: Directory) -> None:
        for name, text in files.items():
            path = host.place / name.replace("_", "-").replace("-txt", ".txt")
            path.mkdir() if text is None else path.write_text(text)

    return step


AIRGAP: dict[str, list[Step]] = {
    "files": [has(k3s_arm64="k3s", sha256sum_arm64_txt=f"{hashlib.sha256(b'k3s').hexdigest()}  k3s-arm64\n"), {}],
    "no binary": [{}],
    "no readable sums": [has(k3s="k3s", sha256sum_amd64_txt=None), {"arch": "amd64"}],
}


ANSWERS = {
    "ip -netns cni-1 -json -details link": json.dumps([{"ifname": "net1", "ifalias": "enp1s0f0v0"}]),
    "ip -json route": json.dumps([{"dst": "10.42.1.0/24"}]),
    "iptables-save": "*filter\n:KUBE-SERVICES - [0:0]\nCOMMIT\n",
    "ip6tables-save": "*filter\nCOMMIT\n",
}


class Cleaned:
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
        return {"here": sorted(str(path.relative_to(self.place)) for path in self.place.rglob("*"))}


def be_busy(host: Cleaned) -> None:
    def busy(path: Path) -> None:
        raise OSError(16, "Device or resource busy", str(path))

    host.patch.setattr(k3s_leftovers.shutil, "rmtree", busy)


LEFTOVERS: dict[str, list[Step]] = {"listed, and removed": [{"check": True}, {}], "a busy directory": [be_busy, {}]}


test_each_step = steps_of(
    k3s_service=(k3s_service, Systemd, SERVICE),
    k3s_service_info=(k3s_service_info, Systemd, SERVICE_INFO),
    k3s_airgap_info=(k3s_airgap_info, Directory, AIRGAP),
    k3s_leftovers=(k3s_leftovers, Cleaned, LEFTOVERS),
)


def test_a_missing_archive_is_named(tmp_path: Path, capsys: Capture) -> None:
    status, result = run_module(k3s_backup_info, capsys, path=str(tmp_path / "a.gz"), data_dir="/data")
    assert (status, "a.gz" in result["msg"]) == (1, True)


def test_preflight_reads_a_host_below_its_roots(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight_info, "runner", lambda _module: lambda _command: Answer(1, "", "no"))
    monkeypatch.setattr(preflight_facts.os, "geteuid", lambda: 1000)
    roots = {name: str(tmp_path / name) for name in ("proc", "etc", "dev", "netns", "cgroup")}
    monkeypatch.setattr(preflight_info, "Roots", partial(preflight_facts.Roots, **roots))
    status, result = run_module(
        preflight_info, capsys, paths=[str(tmp_path)], controller_time=time.time() - 100, sysfs_root=str(tmp_path)
    )
    facts = result["ansible_facts"]["gb10_preflight"]
    assert (status, result["changed"], facts["user"]["uid"], facts["pfs"]) == (0, False, 1000, [])
    assert 99 < facts["clock_offset_s"] < 160
    assert facts["netplan"]["error"] == "no"
