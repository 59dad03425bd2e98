# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that classes are set once, changed, and restored, also if a port no longer exists."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import qos
from ansible_collections.gb10.cluster.plugins.module_utils._host import system
from ansible_collections.gb10.cluster.plugins.module_utils._host import unit as host_unit
from ansible_collections.gb10.cluster.plugins.modules import nic_qos
from module_runs import Step, lose_rights, play

BEFORE = {"lo": (frozenset({5}), {26: 2}), "gone0": (frozenset(), {})}


class Machine:
    """Ports with classes behind ``dcb``, and everything else that the module runs."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.patch, self.options = root, patch, {"ports": ["lo", "gone0"]}
        patch.setattr(system, "run", self.run)
        patch.setattr(nic_qos, "CONFIG", root / "qos.json")
        patch.setattr(nic_qos, "boot_unit", self.unit)
        self.pfc = {port: lossless for port, (lossless, _classes) in BEFORE.items()}
        self.dscp = {port: dict(classes) for port, (_lossless, classes) in BEFORE.items()}

    def unit(self, timeout: int, count: int) -> host_unit.HostUnit:
        return host_unit.HostUnit(
            "gb10-qos", "", "_fabric.qos", self.root / "qos.json", "", timeout * count + 60,
            units=self.root / "units", library=self.root / "library",
        )  # fmt: skip

    def run(self, argv: Sequence[str], **_options: object) -> subprocess.CompletedProcess[str]:
        said = ""
        if argv[0] == "dcb":
            _dcb, thing, action, _dev, port, _kind, *entries = (word for word in argv if word != "-N")
            if port not in self.pfc:
                raise system.HostError("Attribute read: Operation not supported")
            pairs = qos.parse_dscp(" ".join(entries))
            match thing, action:
                case "pfc", "show":
                    said = " ".join(f"{n}:{'on' if n in self.pfc[port] else 'off'}" for n in range(8))
                case "pfc", "set":
                    self.pfc[port] = qos.parse_pfc(" ".join(entries))
                case "app", "show":
                    said = " ".join(f"{dscp}:{number}" for dscp, number in self.dscp[port].items())
                case "app", "replace":
                    self.dscp[port] |= pairs
                case "app", "del":
                    self.dscp[port] = {k: v for k, v in self.dscp[port].items() if (k, v) not in pairs.items()}
        if argv[:2] == ["systemctl", "enable"]:
            wanted = self.root / "units/multi-user.target.wants" / argv[-1]
            wanted.parent.mkdir(parents=True, exist_ok=True)
            wanted.unlink(missing_ok=True)
            wanted.symlink_to(f"../{argv[-1]}")
        return subprocess.CompletedProcess(list(argv), 0, said, "")

    def shows(self) -> dict[str, Any]:
        own = [path.name for path in sorted(self.root.glob("*")) if path.is_file() or any(path.rglob("*.py"))]
        pfc = {port: sorted(classes) for port, classes in self.pfc.items()}
        return {"pfc": pfc, "dscp": {port: str(pairs) for port, pairs in self.dscp.items()}, "own": own}


def lose_port(machine: Machine) -> None:
    del machine.pfc["gone0"]


ABSENT = {"state": "absent"}
CASES: dict[str, list[Step]] = {
    "set, changed and restored": [
        {"check": True},
        {},
        {},
        {"roce_dscp": 24},
        {**ABSENT, "check": True},
        ABSENT,
        ABSENT,
    ],
    "restored without a port": [ABSENT, {}, lose_port, ABSENT, ABSENT],
    "somebody deleted the code": [{}, lambda machine: shutil.rmtree(machine.root / "library"), ABSENT],
    "a port without classes": [{"ports": ["lo", "mgmt0"]}],
    "invalid numbers": [{"lossless_class": 8}, {"roce_dscp": 64}, {"roce_dscp": 48}],
    "no rights": [lose_rights, {}],
    "a damaged record": [lambda machine: (machine.root / "qos.json").write_text("{"), {}],
}


def test_each_step_of_the_classes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    play("nic_qos", nic_qos, CASES, Machine, capsys, tmp_path)
