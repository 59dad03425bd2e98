# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that every part of a host's tuning is set once, restored alone, and restored after a failure."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host import system
from ansible_collections.gb10.cluster.plugins.modules import node_tuning
from module_runs import Step, lose_rights, steps_of


class Machine:
    """A host with a desktop and without earlyoom, behind the commands that the module runs."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.patch, self.options, self.last = root, patch, dict[str, Any](), dict[str, Any]()
        self.target, self.swaps, self.guard = "graphical.target", "60", "not-found"
        self.commands: list[str] = []
        self.running: set[str] = set()
        self.without_lists, self.offline, self.without_gpu, self.in_full = False, False, False, False
        self.swap_kib, self.record = 0, ""
        read = system.read_text
        patch.setattr(system, "run", self.run)
        known = {"swappiness": lambda: self.swaps, "meminfo": lambda: f"SwapTotal:      {self.swap_kib} kB\n"}
        patch.setattr(system, "read_text", lambda path: known.get(path.name, lambda: read(path))())
        for name in ("GUARD", "SWAPPINESS", "CLOCKS", "SERVICES", "SESSIONS", "CACHES", "LIBRARY"):
            patch.setattr(node_tuning, name, root / getattr(node_tuning, name).relative_to("/"))
        patch.setattr(node_tuning, "CONFIG", root / "etc/gb10/tuning.json")

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
                self.swaps = setting.rpartition("=")[2]
            case ["apt-get", *_]:
                status = self.apt(words)
            case ["systemctl", "enable", *_, "earlyoom"]:
                self.guard = "enabled"
            case ["systemctl", "disable", *_, "earlyoom"]:
                self.guard = "disabled"
        if words[1] not in ("is-enabled", "is-active", "get-default"):
            early = "install" in words and node_tuning.GUARD.exists()
            self.commands.append(" ".join(words) + " (its limits are there)" * early)
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

    def shows(self) -> dict[str, Any]:
        files = {str(path.relative_to(self.root)): path for path in sorted(self.root.rglob("*")) if path.is_file()}
        state = {"target": self.target, "swaps": self.swaps, "guard": self.guard, "running": sorted(self.running)}
        shown = {"state": state, "files": [*files]}
        sides = self.last.get("diff", {"before": "{}", "after": "{}"})
        shown |= {f"diff {side}": [Path(k).name for k, v in json.loads(sides[side]).items() if v] for side in sides}
        shown["diff"] = ""
        if self.in_full:
            shown |= {name: path.read_text().splitlines() for name, path in files.items() if path.suffix != ".py"}
        elif node_tuning.GUARD.exists():
            shown["guard"] = node_tuning.GUARD.read_text().splitlines()[-1:]
        return shown


def have_other_code(machine: Machine) -> None:
    (other := node_tuning.LIBRARY / "gb10/_common/versions.py").parent.mkdir(exist_ok=True)
    other.write_text("of another unit")


def keep_record(machine: Machine) -> None:
    machine.record = node_tuning.CONFIG.read_text()


def restore_record(machine: Machine) -> None:
    node_tuning.CONFIG.parent.mkdir(exist_ok=True)
    node_tuning.CONFIG.write_text(machine.record)


def damage(record: str) -> Step:
    return lambda _machine: node_tuning.CONFIG.write_text(record)


EVERYTHING = {"headless": True, "memory_guard": True, "drop_caches": True, "swappiness": 10, "gpu_clock_mhz": 2200}
GUARDED, CACHES, CLOCK, HEADLESS = (
    {key: EVERYTHING[key]} for key in ("memory_guard", "drop_caches", "gpu_clock_mhz", "headless")
)
UNITS = ("earlyoom", "gb10-memory.service", "gb10-gpu-clocks.service")
CASES: dict[str, list[Step]] = {
    "all parts, again, and none": [
        {"check": True},
        {},
        {**EVERYTHING, "check": True},
        {**EVERYTHING, "in_full": True},
        EVERYTHING,
        {**EVERYTHING, "gpu_clock_mhz": None},
        {"check": True},
        {},
        {},
    ],
    "swap of DGX OS, and more": [{**GUARDED, "swap_kib": 16 * 10**9 // 1024}, {**GUARDED, "swap_kib": 64 << 20}],
    **{
        f"somebody stopped {unit}": [
            EVERYTHING,
            lambda machine, unit=unit: machine.running.remove(unit),
            {**EVERYTHING, "check": True},
            EVERYTHING,
            EVERYTHING,
        ]
        for unit in UNITS
    },
    "a clock that can't be set": [{**CLOCK, "without_gpu": True}, CLOCK, {**CLOCK, "without_gpu": False}],
    "the code of another unit stays": [CACHES, have_other_code, {}],
    **{f"the owner's own guard, {before}": [{**GUARDED, "guard": before}, {}] for before in ("enabled", "disabled")},
    "no lists of packages": [{**GUARDED, "without_lists": True}],
    "no packages": [{**GUARDED, "offline": True}, {}],
    **{
        f"a damaged record {record}": [HEADLESS, damage(record), HEADLESS]
        for record in ("[]", '{"target": "x"}', '{"target": "x", "swappiness": "1", "guard": 3}')
    },
    "a record of an interrupted run": [{"swappiness": 10}, keep_record, {}, restore_record, {"check": True}, {}, {}],
    "no root": [lose_rights, HEADLESS],
}
test_each_step_of_a_tuning = steps_of(node_tuning=(node_tuning, Machine, CASES))
