# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the update of one host: a good one, one that steps back, and one that is interrupted after each command."""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host import system
from ansible_collections.gb10.cluster.plugins.module_utils._node import update
from ansible_collections.gb10.cluster.plugins.modules import node_update
from module_runs import run_module

OLD, NEW = "6.17.0-1014-nvidia", "6.17.0-1015-nvidia"
HELD = "linux-nvidia-hwe-24.04"
ENTRY = "menuentry 'x' $menuentry_id_option 'gnulinux-{0}-advanced-1' {{\n"
# Package, its version now and its next one; a kernel has the version in its name.
NEWS = {"bash": ("5.1-1", "5.2-1"), f"linux-image-{NEW}": ("", "6.17.0-1015.15"), HELD: ("6.17.0.1", "7.0.0.1")}


class Lost(Exception):
    """The connection to the controller ended."""


class Machine:
    """A host with APT and GRUB behind the commands that the module runs."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.capsys = root, capsys
        self.installed: set[str] = set()
        self.kernels = [OLD]
        self.saved, self.once, self.held = "", "", set[str]()
        self.reads_saved = False
        self.broken, self.unbootable, self.failing = "", "", False
        self.commands: list[str] = []
        self.lost_at, self.lost_before = -1, False
        self.boots = 0
        self.boot(OLD)

    def write(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def boot(self, kernel: str) -> None:
        self.boots += 1
        self.write("proc/sys/kernel/osrelease", kernel)
        self.write("proc/sys/kernel/random/boot_id", f"boot{self.boots}")
        self.write("boot/grub/grub.cfg", "".join(map(ENTRY.format, self.kernels)))
        self.status()

    def status(self) -> None:
        names = [HELD, "bash"]
        lines = [
            f"Package: {name}\nStatus: {'hold' if name in self.held else 'install'} ok installed" for name in names
        ]
        self.write("var/lib/dpkg/status", "\n\n".join(lines) + "\n")

    def reboot(self) -> None:
        """Do as GRUB: what was chosen for once, or else the saved entry, or without it the newest kernel."""
        chosen, self.once = self.once or (self.saved if self.reads_saved else "") or max(self.kernels), ""
        self.boot(self.saved if chosen == self.unbootable else chosen)

    @property
    def running(self) -> str:
        return (self.root / "proc/sys/kernel/osrelease").read_text()

    def run(self, argv: Sequence[str], *, check: bool = True, **_options: object) -> subprocess.CompletedProcess[str]:
        words, said, status = list(argv), "", 0
        if words[0] in ("systemd-run", "grub-set-default", "grub-reboot", "apt-mark", "update-grub"):
            self.commands.append(words[0])
            if self.lost_before and len(self.commands) == self.lost_at:
                raise Lost
        match words:
            case ["apt-get", *rest] if "--simulate" in rest:
                copy = next(word for word in words if word.startswith("Dir::State::status=")).partition("=")[2]
                held = f"{HELD}\nStatus: hold" in Path(copy).read_text()
                news = [(n, v) for n, v in NEWS.items() if n not in self.installed and not (held and n == HELD)]
                said = "".join(f"Inst {n}{f' [{v[0]}]' if v[0] else ''} ({v[1]} x [arm64])\n" for n, v in news)
            case ["systemctl", "is-active", *_]:
                status = 3
            case ["systemd-run", *_]:
                if not self.failing:
                    self.installed |= set(NEWS) - self.held
                    self.kernels = [OLD, NEW]
                    self.write("boot/grub/grub.cfg", "".join(map(ENTRY.format, self.kernels)))
            case ["update-grub"]:
                self.reads_saved = node_update.DROP_IN.exists()
            case ["grub-set-default", entry]:
                self.saved = entry.removeprefix("gnulinux-").removesuffix("-advanced-1")
            case ["grub-reboot", entry]:
                self.once = entry.removeprefix("gnulinux-").removesuffix("-advanced-1")
            case ["apt-mark", "hold", name]:
                self.held.add(name)
                self.status()
            case ["journalctl", *_]:
                said = "E: No space left\n"
        if self.commands and len(self.commands) == self.lost_at:
            raise Lost
        return subprocess.CompletedProcess(words, status, said, "")

    def call(self, state: str, *, check: bool = False, **options: Any) -> dict[str, Any]:
        return run_module(node_update, self.capsys, check=check, state=state, **options)[1]

    def update(self, checks: bool = True, **options: Any) -> str:
        """Do what role update does; return why it failed."""
        self.call("installing", **options)
        installed = self.call("installed", **options)
        if installed.get("failed"):
            return str(installed["msg"])
        booted = self.call("booted", **options)
        assert not booted.get("failed"), booted
        if booted["reboot"]:
            self.reboot()
        came = self.call("running", **options)
        if came.get("failed") or not checks:
            if self.call("returned", **options)["reboot"]:
                self.reboot()
            self.call("closed", **options)
            return str(came["msg"]) if came.get("failed") else "a check failed"
        self.call("settled", **options)
        self.call("closed", **options)
        return ""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Machine:
    monkeypatch.setattr(node_update, "TOP", tmp_path)
    monkeypatch.setattr(node_update, "WAIT", 0)
    monkeypatch.setattr(node_update, "STATE", tmp_path / "var/lib/gb10/update.json")
    monkeypatch.setattr(node_update, "DROP_IN", tmp_path / "etc/default/grub.d/zz.cfg")
    made = Machine(tmp_path, capsys)
    monkeypatch.setattr(system, "run", made.run)
    return made


def state() -> dict[str, Any]:
    return dict(json.loads(node_update.STATE.read_text()))


def test_a_good_update_makes_the_new_kernel_the_default_after_its_checks(machine: Machine) -> None:
    read = machine.call("planned", check=True)
    assert read["found"]["hold"] == [HELD]
    assert [each["name"] for each in read["found"]["changes"]] == ["bash", f"linux-image-{NEW}"]
    assert (read["found"]["next_kernel"], read["found"]["due"], machine.commands) == (NEW, True, [])
    assert not node_update.STATE.exists()
    assert read["found"]["grub_writes"]
    assert machine.update() == ""
    assert (machine.running, machine.saved, machine.held) == (NEW, NEW, {HELD})
    assert state()["before"] == {"bash": "5.1-1"}
    assert (state()["kernel_before"], state()["phase"], state()["open"]) == (OLD, "settled", False)
    count = len(machine.commands)
    assert not machine.call("planned")["found"]["due"]
    assert machine.update() == ""
    assert len(machine.commands) == count, "a second run changes nothing"


def test_the_free_space_of_boot_is_told_in_mib(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_update.os, "statvfs", lambda _place: SimpleNamespace(f_bavail=768, f_frsize=4096))
    assert machine.call("planned")["found"]["boot_free_mib"] == 3


def test_check_mode_shows_the_steps_and_takes_none(machine: Machine) -> None:
    shown = machine.call("installing", check=True)
    assert shown["steps"] == [
        "update is installing",
        f"GRUB boots {OLD} by default",
        f"hold {HELD}",
        "install the packages",
    ]
    assert (machine.commands, node_update.STATE.exists()) == ([], False)


@pytest.mark.parametrize("power_cut", [False, True])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("at", range(1, 8))
def test_an_update_that_is_lost_at_any_command_goes_on(
    machine: Machine, at: int, before: bool, power_cut: bool
) -> None:
    machine.lost_at, machine.lost_before = at, before
    with pytest.raises(Lost):
        machine.update()
    if power_cut:
        chosen = machine.once or machine.saved or OLD
        machine.reboot()
        assert machine.running == chosen, "the newest kernel is not booted because it is the newest"
    machine.lost_at = -1
    said = machine.update()
    assert said == "" or (power_cut and "instead of" in said)
    assert (machine.running, machine.saved) == ((OLD, OLD) if said else (NEW, NEW))
    assert machine.reads_saved, "GRUB boots the saved kernel"
    assert (state()["kernel_before"], state()["open"]) == (OLD, False)


@pytest.mark.parametrize(
    ("unbootable", "reason"), [(NEW, f"it runs kernel {OLD} instead of {NEW}"), ("", "a check failed")]
)
def test_a_failed_check_boots_the_kernel_from_before(machine: Machine, unbootable: str, reason: str) -> None:
    machine.unbootable = unbootable
    assert machine.update(checks=bool(unbootable)) == reason
    assert (machine.running, machine.saved, state()["phase"]) == (OLD, OLD, "returned")
    assert not machine.call("planned")["found"]["due"], "the kernel is not tried again by itself"
    machine.unbootable = ""
    assert machine.call("planned", retry=True)["found"]["next_kernel"] == NEW
    assert machine.update(retry=True) == ""
    assert (machine.running, machine.saved) == (NEW, NEW)


def test_packages_that_cannot_be_installed_are_a_failure_with_apts_last_words(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.failing = True
    said = machine.update()
    assert said.startswith("2 packages are still not installed: E: No space left.")
    seen = node_update.observe(machine.root, "", retry=False, back=False)
    monkeypatch.setattr(system, "last_words", lambda *_words: "")
    assert "not installed: APT printed nothing. The" in node_update.failure(seen)
    assert node_update.failure(replace(seen, state=replace(seen.state, phase="settled"))) == "", "they are later ones"
    machine.reboot()
    assert machine.running == OLD
    machine.failing = False
    assert machine.update() == ""


@pytest.mark.parametrize("content", ['{"phase": 1, "kernel_before": "--help"}', '{"kernel_after": "$(id)"}', "[]"])
def test_a_state_of_another_form_is_refused(machine: Machine, content: str) -> None:
    machine.write("var/lib/gb10/update.json", content)
    done = machine.call("installing")
    assert (done["failed"], machine.commands) == (True, [])
    assert str(node_update.STATE) in done["msg"]


def test_a_kernel_that_grub_cannot_boot_is_not_chosen(machine: Machine) -> None:
    machine.call("installing")
    machine.kernels = [OLD]
    machine.write("boot/grub/grub.cfg", ENTRY.format(OLD))
    machine.call("installed")
    done = machine.call("booted")
    assert (done["failed"], machine.once) == (True, "")
    assert f"GRUB has no entry for kernel {NEW}" in done["msg"]
    machine.write("boot/grub/grub.cfg", f"  # GRUB lacks write support for lvm, so …\n{ENTRY.format(OLD)}")
    assert not machine.call("planned")["found"]["grub_writes"]
    assert update.entries((machine.root / "boot/grub/grub.cfg").read_text()) != {}
