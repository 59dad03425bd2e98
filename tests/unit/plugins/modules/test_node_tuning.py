# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that every part of a host's tuning is set once, restored alone, and restored after a failure."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host import system
from ansible_collections.gb10.cluster.plugins.modules import node_tuning
from module_runs import become_nobody, refuse_writes, run_module


class Machine:
    """A host with a desktop and without earlyoom, behind the commands that the module runs."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.capsys = root, capsys
        self.target, self.swappiness, self.guard = "graphical.target", "60", "not-found"
        self.commands: list[str] = []
        self.running: set[str] = set()
        self.without_lists, self.offline, self.without_gpu = False, False, False

    def run(self, argv: Sequence[str], *, check: bool = True, **_options: object) -> subprocess.CompletedProcess[str]:
        words = [word for word in argv if word not in ("env", "DEBIAN_FRONTEND=noninteractive")]
        said, status = "", 0
        match words:
            case ["systemctl", "is-enabled", "earlyoom"]:
                said, status = self.guard, int(self.guard != "enabled")
            case ["systemctl", "is-enabled" | "is-active", unit]:
                status = int(unit not in self.running)
            case ["systemctl", "restart", unit]:
                status = int(self.without_gpu and "clocks" in unit)
                self.running |= set() if status else {unit}
            case ["systemctl", "get-default"]:
                said = self.target
            case ["systemctl", "set-default", target]:
                self.target = target
            case ["sysctl", *_, setting]:
                self.swappiness = setting.rpartition("=")[2]
            case ["apt-get", *_]:
                status = self.apt(words)
            case ["systemctl", "enable", *_, "earlyoom"]:
                self.guard = "enabled"
            case ["systemctl", "disable", *_, "earlyoom"]:
                self.guard = "disabled"
        if words[1] not in ("is-enabled", "is-active", "get-default"):
            self.commands.append(" ".join(words))
        if status and check:
            raise system.HostError(f"{' '.join(words)}: exit status {status}")
        return subprocess.CompletedProcess(words, status, said + "\n", "")

    def apt(self, words: list[str]) -> int:
        """Install or remove earlyoom; return the exit status."""
        if "purge" in words:
            self.guard = "not-found"
            return 0
        if self.offline or (self.without_lists and "install" in words):
            return 100
        if "update" in words:
            self.without_lists = False
        else:
            self.guard = "enabled"
        return 0

    def call(self, status: int = 0, check: bool = False, **options: Any) -> dict[str, Any]:
        self.commands.clear()
        found, result = run_module(node_tuning, self.capsys, check=check, **options)
        assert found == status, result["msg"]
        return result

    def files(self) -> set[str]:
        return {path.name for path in self.root.rglob("*") if path.is_file()}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Machine:
    made = Machine(tmp_path, capsys)
    read = system.read_text
    monkeypatch.setattr(system, "run", made.run)
    monkeypatch.setattr(system, "read_text", lambda path: made.swappiness if path.name == "swappiness" else read(path))
    for name in ("GUARD", "SWAPPINESS", "CLOCKS", "SERVICES", "SESSIONS", "CACHES", "LIBRARY"):
        monkeypatch.setattr(node_tuning, name, tmp_path / getattr(node_tuning, name).relative_to("/"))
    monkeypatch.setattr(node_tuning, "CONFIG", tmp_path / "etc/gb10/tuning.json")
    return made


EVERYTHING = {"headless": True, "memory_guard": True, "drop_caches": True, "swappiness": 10, "gpu_clock_mhz": 2200}
SETTINGS = {"gb10.conf", "90-gb10.conf", "gb10-gpu-clocks.service", "tuning.json", "gb10-memory.service"}
PROGRAM = {"memory_guard.py"}


def test_nothing_is_touched_unless_asked_for(machine: Machine) -> None:
    assert not machine.call()["changed"]
    assert (machine.commands, machine.files()) == ([], set())


@pytest.mark.parametrize(("swap", "limits"), [(0, "100,100"), (16 * 10**9 // 1024, "100,100"), (64 << 20, "10,5")])
def test_a_load_may_use_more_swap_than_dgx_os_has(
    swap: int, limits: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = system.read_text
    known = {"meminfo": f"SwapTotal:      {swap} kB\n"}
    monkeypatch.setattr(system, "read_text", lambda path: known.get(path.name) or read(path))
    machine.call(memory_guard=True)
    assert f" -s {limits} -p " in node_tuning.GUARD.read_text()


def test_check_mode_tells_and_changes_nothing(machine: Machine) -> None:
    told = machine.call(check=True, **EVERYTHING)
    assert (machine.commands, machine.files(), machine.target) == ([], set(), "graphical.target")
    assert told["changed"] and told["changes"] == machine.call(**EVERYTHING)["changes"]


def test_all_parts_are_set_once_and_restored(machine: Machine) -> None:
    result = machine.call(**EVERYTHING)
    assert len(result["changes"]) == 5
    assert (machine.target, machine.swappiness, machine.guard) == ("multi-user.target", "10", "enabled")
    assert machine.files() == SETTINGS | PROGRAM
    assert "--free 10" in node_tuning.CACHES.read_text() and "MemoryMin=256M" in node_tuning.SESSIONS.read_text()
    assert "-m 3,2 -s 100,100 -p --prefer '^sglang::' --avoid" in node_tuning.GUARD.read_text()
    assert "--lock-gpu-clocks=0,2200" in node_tuning.CLOCKS.read_text()
    assert not machine.call(**EVERYTHING)["changed"]
    assert machine.commands == []
    machine.call()
    assert (machine.target, machine.swappiness, machine.guard) == ("graphical.target", "60", "not-found")
    assert machine.files() == set()
    assert not machine.call()["changed"]


def test_the_limits_are_written_before_the_package_starts(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    run = machine.run

    def watch(argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if "install" in argv:
            seen.append(node_tuning.GUARD.exists())
        return run(argv, **options)

    monkeypatch.setattr(system, "run", watch)
    machine.call(memory_guard=True)
    assert seen == [True]
    assert machine.commands[-1] == "systemctl restart earlyoom"


def test_one_part_is_restored_alone(machine: Machine) -> None:
    machine.call(**EVERYTHING)
    result = machine.call(**EVERYTHING | {"gpu_clock_mhz": None})
    assert result["changes"] == ["clock of the GPUs no longer limited"]
    assert machine.commands == [
        "systemctl disable --quiet --now gb10-gpu-clocks.service",
        "systemctl daemon-reload",
    ]
    assert machine.guard == "enabled" and "tuning.json" in machine.files()


@pytest.mark.parametrize("unit", ["earlyoom", "gb10-memory.service", "gb10-gpu-clocks.service"])
def test_a_unit_that_somebody_stopped_is_started_again(machine: Machine, unit: str) -> None:
    machine.call(**EVERYTHING)
    machine.running.remove(unit)
    assert machine.call(check=True, **EVERYTHING)["changed"]
    assert len(machine.call(**EVERYTHING)["changes"]) == 1
    assert machine.running == {"earlyoom", "gb10-memory.service", "gb10-gpu-clocks.service"}
    assert not machine.call(**EVERYTHING)["changed"]


def test_a_clock_that_can_not_be_set_fails_every_run(machine: Machine) -> None:
    machine.without_gpu = True
    for _run in range(2):
        machine.call(1, gpu_clock_mhz=2200)
    machine.without_gpu = False
    assert machine.call(gpu_clock_mhz=2200)["changed"]


def test_the_program_that_drops_caches_goes_with_its_unit(machine: Machine) -> None:
    machine.call(drop_caches=True)
    assert machine.commands[-1] == "systemctl restart gb10-memory.service"
    library = node_tuning.LIBRARY / "gb10"
    other = library / "_common/versions.py"
    other.parent.mkdir(exist_ok=True)
    other.write_text("of another unit")
    assert machine.call()["changes"] == ["page cache no longer dropped"]
    assert list(library.rglob("*.py")) == [other] and not (library / "_host").exists()


@pytest.mark.parametrize("before", ["enabled", "disabled"])
def test_an_owners_own_earlyoom_stays_and_is_as_before(machine: Machine, before: str) -> None:
    machine.guard = before
    machine.call(memory_guard=True)
    assert machine.guard == "enabled" and not any("apt-get" in command for command in machine.commands)
    machine.call()
    assert machine.guard == before and not any("apt-get" in command for command in machine.commands)


def test_package_lists_are_fetched_when_they_are_missing(machine: Machine) -> None:
    machine.without_lists = True
    machine.call(memory_guard=True)
    assert [command for command in machine.commands if command.startswith("apt-get")] == [
        "apt-get -y -q install earlyoom",
        "apt-get -y -q update",
        "apt-get -y -q install earlyoom",
    ]


def test_a_host_without_packages_is_told_what_to_do_and_can_be_reset(machine: Machine) -> None:
    machine.offline = True
    refused = machine.call(1, memory_guard=True)
    assert "Install the package earlyoom yourself" in refused["msg"]
    assert "node_tuning_memory_guard: false" in refused["msg"]
    machine.call()
    assert machine.files() == set()


@pytest.mark.parametrize("record", ["[]", '{"target": "x"}', '{"target": "x", "swappiness": "1", "guard": 3}'])
def test_a_damaged_record_is_not_taken_for_the_former_state(machine: Machine, record: str) -> None:
    machine.call(headless=True)
    node_tuning.CONFIG.write_text(record)
    machine.call(1, headless=True)


def test_a_record_that_an_interrupted_run_left_is_a_change(machine: Machine) -> None:
    machine.call(swappiness=10)
    record = node_tuning.CONFIG.read_text()
    machine.call()
    node_tuning.CONFIG.parent.mkdir(exist_ok=True)
    node_tuning.CONFIG.write_text(record)
    for check in (True, False):
        assert machine.call(check=check)["changed"]
    assert not node_tuning.CONFIG.exists()
    assert not machine.call()["changed"]


def test_a_user_without_root_is_told_how(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    become_nobody(monkeypatch)
    refuse_writes(monkeypatch)
    assert "become: true" in machine.call(1, headless=True)["msg"]
    assert machine.target == "graphical.target"
