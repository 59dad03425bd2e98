# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the update of one host: a good one, one that steps back, and one that is interrupted after each command."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host import system
from ansible_collections.gb10.cluster.plugins.modules import node_update
from module_runs import Step, run_module, steps_of

OLD, NEW = "6.17.0-1014-nvidia", "6.17.0-1015-nvidia"
HELD = "linux-nvidia-hwe-24.04"
ENTRY = "menuentry 'x' $menuentry_id_option 'gnulinux-{0}-advanced-1' {{\n"
# Package, its version now and its next one; a kernel has the version in its name.
NEWS = {"bash": ("5.1-1", "5.2-1"), f"linux-image-{NEW}": ("", "6.17.0-1015.15"), HELD: ("6.17.0.1", "7.0.0.1")}


class Lost(Exception):
    """The connection to the controller ended."""


class Machine:
    """A host with APT and GRUB behind the commands that the module runs."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(node_update, "TOP", root)
        patch.setattr(node_update, "WAIT", 0)
        patch.setattr(node_update, "STATE", root / "var/lib/gb10/update.json")
        patch.setattr(node_update, "DROP_IN", root / "etc/default/grub.d/zz.cfg")
        patch.setattr(node_update.os, "statvfs", lambda _place: SimpleNamespace(f_bavail=768, f_frsize=4096))
        patch.setattr(system, "run", self.run)
        self.root, self.options, self.last = root, dict[str, Any](), dict[str, Any]()
        self.hides = r"\d{4}-[\d-]+T[\d:]+Z"
        self.installed: set[str] = set()
        self.kernels = [OLD]
        self.saved, self.once, self.held = "", "", set[str]()
        self.reads_saved = False
        self.unbootable, self.failing, self.journal = "", False, "E: No space left\n"
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
            self.commands.append(" ".join(words))
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
                said = self.journal
        if self.commands and len(self.commands) == self.lost_at:
            raise Lost
        return subprocess.CompletedProcess(words, status, said, "")

    def shows(self) -> dict[str, Any]:
        kernels = {"runs": self.running, "default": self.saved, "once": self.once, "saved is read": self.reads_saved}
        shown = {"held": sorted(self.held), "kernels": kernels, "state": {}}
        if node_update.STATE.exists() and node_update.STATE.read_text()[:2] == "{\n":
            shown["state"] = state()
        return shown


def state() -> dict[str, Any]:
    return dict(json.loads(node_update.STATE.read_text()))


def reboot_if_asked(machine: Machine) -> None:
    if machine.last["reboot"]:
        machine.reboot()


def lose_entry(machine: Machine) -> None:
    machine.kernels = [OLD]
    machine.write("boot/grub/grub.cfg", ENTRY.format(OLD))


def has(content: str) -> Step:
    return lambda machine: machine.write("var/lib/gb10/update.json", content)


def do(*states: str, **more: Any) -> list[Step]:
    return [reboot_if_asked if name == "reboot" else {"state": name, **more} for name in states]


PLANNED, RETRIED = do("planned"), do("planned", retry=True)
STEPS = ("installing", "installed", "booted", "reboot", "running", "settled", "closed")
RETURN = ("installing", "installed", "booted", "reboot", "running", "returned", "reboot", "closed")
CASES: dict[str, list[Step]] = {
    "an update, twice": [*do("planned", "installing", check=True), *do(*STEPS), *PLANNED, *do(*STEPS)],
    "a check fails, and then an update is asked for": [*do(*RETURN), *PLANNED, *RETRIED, *do(*STEPS, retry=True)],
    "the kernel does not boot": [lambda machine: setattr(machine, "unbootable", NEW), *do(*RETURN), *PLANNED],
    "the packages can't be installed": [
        {"state": "installing", "failing": True},
        {"state": "installed"},
        {"state": "installed", "journal": ""},
        Machine.reboot,
        {"state": "installing", "failing": False},
        *do(*STEPS[1:]),
        # Packages that came after the update are not the ones that it could not install.
        lambda machine: machine.installed.clear(),
        {"state": "installed", "failing": True},
    ],
    "a state of another form": [
        step
        for content in ('{"phase": 1, "kernel_before": "--help"}', '{"kernel_after": "$(id)"}', "[]")
        for step in (has(content), *do("installing"))
    ],
    "GRUB has no entry, and can't write": [
        *do("installing"),
        lose_entry,
        *do("installed", "booted"),
        lambda machine: machine.write(
            "boot/grub/grub.cfg", f"  # GRUB lacks write support for lvm, so …\n{ENTRY.format(OLD)}"
        ),
        *PLANNED,
    ],
}
test_each_step_of_an_update = steps_of(node_update=(node_update, Machine, CASES))


def run(machine: Machine, capsys: pytest.CaptureFixture[str], *steps: str) -> str:
    """Do what role update does; return why it failed."""
    for step in do(*steps):
        if callable(step):
            step(machine)
        else:
            machine.last = run_module(node_update, capsys, **step)[1]
        if machine.last.get("failed"):
            return str(machine.last["msg"])
    return ""


@pytest.mark.parametrize("power_cut", [False, True])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("at", range(1, 8))
def test_an_update_that_is_lost_at_any_command_goes_on(
    at: int,
    before: bool,
    power_cut: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine = Machine(tmp_path, monkeypatch)
    machine.lost_at, machine.lost_before = at, before
    with pytest.raises(Lost):
        run(machine, capsys, *STEPS)
    if power_cut:
        chosen = machine.once or machine.saved or OLD
        machine.reboot()
        assert machine.running == chosen, "the newest kernel is not booted because it is the newest"
    machine.lost_at = -1
    if said := run(machine, capsys, *STEPS):
        run(machine, capsys, "returned", "reboot", "closed")
    assert said == "" or (power_cut and "instead of" in said)
    assert (machine.running, machine.saved) == ((OLD, OLD) if said else (NEW, NEW))
    assert machine.reads_saved, "GRUB boots the saved kernel"
    assert (state()["kernel_before"], state()["open"]) == (OLD, False)
