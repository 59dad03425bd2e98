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
from module_runs import Step, lose_rights, play, refuse_writes
from sysfs_samples import pci_function

PF, MACS = "enp1s0f0np0", ("02:95:2a:00:01:00", "02:95:2a:00:01:01")
WANTED: dict[str, Any] = {
    "pfs": [{"name": PF, "vf_count": 2, "rail": "rail0"}],
    "vfs": [{"pf": PF, "vf_index": i, "netdev": f"enp1s0f0v{i}", "mac": mac} for i, mac in enumerate(MACS)],
}


class Machine:
    """A PF whose driver makes VFs as soon as sriov_numvfs is written."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.patch = root, patch
        self.options = {"sysfs_root": str(root), "timeout": 1}
        self.device = pci_function(root, PF, "0000:01:00.0", total_vfs=4)
        self.links: dict[str, dict[str, Any]] = {PF: {}}
        self.ran: list[str] = []
        patch.setattr(sriov_vf, "CONFIG", root / "sriov.json")
        patch.setattr(sriov_vf, "boot_unit", self.unit)
        patch.setattr(sriov.Sysfs, "write_numvfs", self.write_numvfs)
        patch.setattr(system, "links", lambda: self.links)
        patch.setattr(system, "run", self.run)
        patch.setattr(netns, "holders", list)

    def unit(self, timeout: int, *_: object) -> host_unit.HostUnit:
        return host_unit.HostUnit(
            "gb10-sriov", "", "_fabric.virtual_functions", self.root / "sriov.json", "", timeout,
            units=self.root / "units", library=self.root / "library",
        )  # fmt: skip

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
        self.ran.append(" ".join(argv))
        if argv[:3] == ["ip", "link", "set"]:
            self.links[argv[4]]["address"] = argv[6]
        if argv[:2] == ["systemctl", "enable"]:
            (wanted := self.root / "units/multi-user.target.wants").mkdir(exist_ok=True)
            (wanted / argv[-1]).symlink_to(f"../{argv[-1]}")
        return subprocess.CompletedProcess(list(argv), 0, "", "")

    def shows(self) -> dict[str, Any]:
        record = self.root / "sriov.json"
        own = [path.name for path in (record, *sorted(self.root.glob("units/*"))) if path.exists()]
        text = record.read_text() if record.exists() else "none"
        origin = json.loads(text)["origin"] if "origin" in text else text
        shown = {"commands": self.ran, "links": self.links, "files": own, "origin": origin}
        self.ran = []
        return shown


def has(text: str) -> Step:
    return lambda machine: (machine.root / "sriov.json").write_text(text)


ABSENT = {"state": "absent"}
CASES: dict[str, list[Step]] = {
    "created, and removed": [{**WANTED, "check": True}, WANTED, WANTED, {**ABSENT, "check": True}, ABSENT, ABSENT],
    "more than the firmware offers": [{"pfs": [{"name": PF, "vf_count": 9}]}],
    "a VF without its keys": [{"pfs": WANTED["pfs"], "vfs": [{"pf": PF}]}],
    "no rights": [lose_rights, WANTED],
    "a read-only file system": [lambda machine: refuse_writes(machine.patch, errno.EROFS), WANTED],
    **{f"a damaged record {text}": [has(text), WANTED] for text in ("{", "[]")},
}


def test_each_step_of_the_vfs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    play("sriov_vf", sriov_vf, CASES, Machine, capsys, tmp_path)


def test_a_write_that_the_driver_refuses_has_its_reason(tmp_path: Path) -> None:
    pci_function(tmp_path, PF, "0000:01:00.0")
    (tmp_path / f"class/net/{PF}/device/sriov_numvfs").mkdir()
    with pytest.raises(system.HostError, match=rf"{PF}: sriov_numvfs = 2 was refused\. .*Is a directory"):
        sriov.Sysfs(tmp_path).write_numvfs(PF, 2)
