# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that main() creates, keeps, removes and refuses virtual functions."""

import errno
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import virtual_functions as sriov
from ansible_collections.gb10.cluster.plugins.module_utils._host import netns, system
from ansible_collections.gb10.cluster.plugins.module_utils._host import unit as host_unit
from ansible_collections.gb10.cluster.plugins.modules import sriov_vf
from module_runs import become_nobody, refuse_writes, run_module
from sysfs_samples import pci_function

PF, MACS = "enp1s0f0np0", ("02:95:2a:00:01:00", "02:95:2a:00:01:01")
WANTED: dict[str, Any] = {
    "pfs": [{"name": PF, "vf_count": 2, "rail": "rail0"}],
    "vfs": [{"pf": PF, "vf_index": i, "netdev": f"enp1s0f0v{i}", "mac": mac} for i, mac in enumerate(MACS)],
}


class Machine:
    """A PF whose driver makes VFs as soon as sriov_numvfs is written."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.device = pci_function(root, PF, "0000:01:00.0", total_vfs=4)
        self.links: dict[str, dict[str, Any]] = {PF: {}}
        self.ran: list[list[str]] = []

    def write_numvfs(self, _pf: str, count: int) -> None:
        (self.device / "sriov_numvfs").write_text(str(count))
        for link in self.device.glob("virtfn*"):
            link.unlink()
        self.links = {PF: {}}
        for index in range(count):
            function = self.root / f"devices/0000:01:00.{index + 2}"
            (function / "net" / f"enp1s0f0v{index}").mkdir(parents=True, exist_ok=True)
            (self.device / f"virtfn{index}").symlink_to(function)
            self.links[f"enp1s0f0v{index}"] = {"address": "ee:00:00:00:00:00"}

    def run(self, argv: Sequence[str], **_options: Any) -> subprocess.CompletedProcess[str]:
        self.ran.append(list(argv))
        if argv[:3] == ["ip", "link", "set"]:
            self.links[argv[4]]["address"] = argv[6]
        if argv[:2] == ["systemctl", "enable"]:
            (wanted := self.root / "units/multi-user.target.wants").mkdir()
            (wanted / argv[-1]).symlink_to(f"../{argv[-1]}")
        return subprocess.CompletedProcess(list(argv), 0, "", "")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)

    def unit(timeout: int, *_: object) -> host_unit.HostUnit:
        return host_unit.HostUnit(
            "gb10-sriov", "", "_fabric.virtual_functions", tmp_path / "sriov.json", "", timeout,
            units=tmp_path / "units", library=tmp_path / "library",
        )  # fmt: skip

    monkeypatch.setattr(sriov_vf, "CONFIG", tmp_path / "sriov.json")
    monkeypatch.setattr(sriov_vf, "boot_unit", unit)
    monkeypatch.setattr(sriov.Sysfs, "write_numvfs", made.write_numvfs)
    monkeypatch.setattr(system, "links", lambda: made.links)
    monkeypatch.setattr(system, "run", made.run)
    monkeypatch.setattr(netns, "holders", list)
    return made


def call(machine: Machine, capsys: pytest.CaptureFixture[str], **arguments: Any) -> tuple[int, dict[str, Any]]:
    return run_module(sriov_vf, capsys, sysfs_root=str(machine.root), timeout=1, **arguments)


def test_vfs_are_created_once_left_unchanged_and_removed(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    status, shown = call(machine, capsys, check=True, **WANTED)
    assert (status, shown["changed"], len(shown["steps"])) == (0, True, 3)
    assert not (machine.root / "sriov.json").exists()
    status, made = call(machine, capsys, **WANTED)
    assert (status, made["steps"]) == (0, shown["steps"])
    assert [vf["mac"] for vf in made["pfs"][0]["vfs"]] == list(MACS)
    assert json.loads((machine.root / "sriov.json").read_text())["origin"] == {PF: 0}
    assert call(machine, capsys, **WANTED)[1]["changed"] is False
    status, gone = call(machine, capsys, state="absent")
    assert (status, gone["steps"]) == (0, [f"{PF}: sriov_numvfs = 0"])
    assert not (machine.root / "sriov.json").exists()
    assert call(machine, capsys, state="absent")[1]["changed"] is False


def test_more_vfs_than_the_firmware_offers_change_nothing(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    status, result = call(machine, capsys, pfs=[{"name": PF, "vf_count": 9}])
    assert (status, result["changed"]) == (1, False)
    assert result["findings"][0]["rule"] == "sriov.count.above_hardware"
    assert "Nothing was changed" in result["msg"]
    assert machine.ran == []


def test_a_vf_without_its_keys_is_refused(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    status, result = call(machine, capsys, pfs=WANTED["pfs"], vfs=[{"pf": PF}])
    assert status == 1
    assert "vfs need pf, vf_index, netdev and mac" in result["msg"]


def test_a_user_without_become_is_told_so(
    machine: Machine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    become_nobody(monkeypatch)
    refuse_writes(monkeypatch)
    status, result = call(machine, capsys, **WANTED)
    assert (status, result["changed"]) == (1, False)
    assert "Permission denied" in result["msg"]
    assert "ran as user ansible" in result["msg"]
    assert "become: true" in result["msg"]
    assert "gb10/" in result["msg"]


def test_a_read_only_file_system_is_named(
    machine: Machine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_writes(monkeypatch, errno.EROFS)
    status, result = call(machine, capsys, **WANTED)
    assert status == 1
    assert "findmnt -T" in result["msg"]


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_damaged_file_with_the_first_state_is_kept(
    machine: Machine, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (machine.root / "sriov.json").write_text(text)
    status, result = call(machine, capsys, **WANTED)
    assert status == 1
    assert "sriov.json: not a JSON object" in result["msg"]
    assert (machine.root / "sriov.json").read_text() == text


def test_a_write_that_the_driver_refuses_has_its_reason(tmp_path: Path) -> None:
    pci_function(tmp_path, PF, "0000:01:00.0")
    (tmp_path / f"class/net/{PF}/device/sriov_numvfs").mkdir()
    with pytest.raises(system.HostError, match=rf"{PF}: sriov_numvfs = 2 was refused\. .*Is a directory"):
        sriov.Sysfs(tmp_path).write_numvfs(PF, 2)
