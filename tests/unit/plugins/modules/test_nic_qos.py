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
from module_runs import become_nobody, refuse_writes, run_module

BEFORE = {"lo": (frozenset({5}), {26: 2}), "gone0": (frozenset(), {})}


class Machine:
    """Ports with classes behind ``dcb``, and everything else that the module runs."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.capsys = root, capsys
        self.pfc = {port: lossless for port, (lossless, _classes) in BEFORE.items()}
        self.dscp = {port: dict(classes) for port, (_lossless, classes) in BEFORE.items()}

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


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Machine:
    made = Machine(tmp_path, capsys)

    def unit(timeout: int, count: int) -> host_unit.HostUnit:
        return host_unit.HostUnit(
            "gb10-qos", "", "_fabric.qos", tmp_path / "qos.json", "", timeout * count + 60,
            units=tmp_path / "units", library=tmp_path / "library",
        )  # fmt: skip

    monkeypatch.setattr(system, "run", made.run)
    monkeypatch.setattr(nic_qos, "CONFIG", tmp_path / "qos.json")
    monkeypatch.setattr(nic_qos, "boot_unit", unit)
    return made


def call(machine: Machine, status: int = 0, check: bool = False, **changes: Any) -> dict[str, Any]:
    options = {"ports": ["lo", "gone0"], **changes}
    found, result = run_module(nic_qos, machine.capsys, check=check, **options)
    assert found == status, result["msg"]
    return result


def test_classes_are_set_once_and_check_mode_only_reports(machine: Machine, tmp_path: Path) -> None:
    told = call(machine, check=True)
    assert told["changed"]
    assert len(told["commands"]) == 6
    assert machine.pfc["lo"] == {5}
    assert not (tmp_path / "qos.json").exists()
    assert call(machine)["commands"] == told["commands"]
    assert machine.pfc == {"lo": {3}, "gone0": {3}}
    assert machine.dscp == {"lo": {26: 3, 48: 6}, "gone0": {26: 3, 48: 6}}
    assert call(machine)["changed"] is False


def test_absent_restores_the_host_s_own_dscp_also_after_a_change(machine: Machine) -> None:
    call(machine)
    call(machine, roce_dscp=24)
    assert machine.dscp["lo"] == {26: 2, 24: 3, 48: 6}
    call(machine, state="absent")
    assert machine.dscp["lo"] == {26: 2}


def test_absent_restores_the_earlier_classes_and_deletes_the_saved_ones(machine: Machine, tmp_path: Path) -> None:
    assert call(machine, state="absent")["changed"] is False
    call(machine)
    del machine.pfc["gone0"]
    assert call(machine, state="absent")["changed"]
    assert (machine.pfc["lo"], machine.dscp["lo"]) == BEFORE["lo"]
    assert not (tmp_path / "qos.json").exists()
    assert not (tmp_path / "library/gb10").exists()
    assert call(machine, state="absent")["changed"] is False
    machine.pfc["gone0"] = BEFORE["gone0"][0]
    call(machine)
    shutil.rmtree(tmp_path / "library")
    assert call(machine, state="absent")["changed"], "somebody deleted the code before"


def test_a_port_without_classes_stops_everything(machine: Machine) -> None:
    result = call(machine, 1, ports=["lo", "mgmt0"])
    assert "mgmt0: its classes can't be read" in result["msg"]
    assert result["changed"] is False
    assert machine.pfc["lo"] == {5}


@pytest.mark.parametrize("wrong", [{"lossless_class": 8}, {"roce_dscp": 64}, {"roce_dscp": 48}])
def test_invalid_numbers_are_refused(machine: Machine, wrong: dict[str, int]) -> None:
    assert "Nothing was changed" in call(machine, 1, **wrong)["msg"]
    assert machine.pfc["lo"] == {5}


def test_a_user_without_become_is_told_so(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    become_nobody(monkeypatch)
    refuse_writes(monkeypatch)
    result = call(machine, 1)
    assert "ran as user ansible" in result["msg"]
    assert machine.pfc["lo"] == {5}


def test_an_unreadable_file_with_the_first_state_stops_the_run(machine: Machine) -> None:
    (machine.root / "qos.json").write_text("{")
    assert "qos.json: not a JSON object" in call(machine, 1)["msg"]
    assert machine.pfc["lo"] == {5}
