# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Put a fault into each step of a network change and of its undo: every write, rename, link, removal and command.

A step fails, or hangs, or the process is killed before it, or everything fails from this step on until it is mended.
Whatever happens, a host has the old or the new state completely, or its undo is pending and armed; and a change is
never confirmed with the old files.
"""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import netplan, netplan_files, netplan_undo
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.netplan_files import Attributes, holds
from ansible_collections.gb10.cluster.plugins.module_utils._host import system
from ansible_collections.gb10.cluster.plugins.module_utils._host import unit as host_unit

WRITES = {"os.rename", "os.remove", "os.link", "os.symlink", "os.chmod", "os.chown", "os.mkdir", "os.rmdir"}
KINDS = ("fails", "hangs", "killed", "fails from here on", "hangs from here on")

STATE = netplan_undo.State


class Killed(BaseException):
    """The process was killed: no handler of an error runs, and nothing else that it would do."""


class Faults:
    """Count the steps of a program and stop it at one of them."""

    current: Faults | None = None

    def __init__(self, root: Path, at: int = 0, kind: str = "") -> None:
        self.root, self.at, self.kind = root, at, kind
        self.steps: list[str] = []
        self.dead = False

    def __enter__(self) -> Faults:
        Faults.current = self
        return self

    def __exit__(self, *_error: object) -> None:
        Faults.current = None

    def step(self, what: str, is_command: bool = False) -> None:
        """Count a step; raise the fault that it has."""
        if self.dead:
            raise Killed
        self.steps.append(what)
        here = len(self.steps) == self.at or (self.kind.endswith("from here on") and 0 < self.at <= len(self.steps))
        if not here:
            return
        if self.kind == "killed":
            self.dead = True
            raise Killed
        if is_command:
            raise system.NoAnswer(f"{what}: no answer") if "hangs" in self.kind else system.HostError(f"{what}: failed")
        if "fails" in self.kind:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), what)

    def watch(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Count the steps that Python announces: what its file functions are about to do."""
        opened = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_CREAT)
        if not opened and event not in WRITES:
            return
        path = arguments[0]
        name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else "descriptor"
        if not name.startswith("/") or name.startswith(f"{self.root}/host"):
            self.step(f"{event} {Path(name).name}")


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if Faults.current:
        Faults.current.watch(event, arguments)


# Python has no way to remove a hook; this one does nothing outside of the tests below.
sys.addaudithook(_watch)


def attempt(step: Callable[[], object]) -> str:
    """Run a step; return how it ended. An error that the module would not explain fails the test."""
    try:
        step()
    except Killed:
        return "killed"
    except (system.HostError, OSError):
        return "refused"
    return "done"


class Host:
    """A simulated host: real files, one interface whose MTU follows them when they are activated."""

    def __init__(self, root: Path) -> None:
        self.root = root / "host"
        etc = self.root / "etc"
        etc.mkdir(parents=True)
        (etc / "target").write_text("of the link")
        self.link = etc / "linked.conf"
        self.link.symlink_to("target")
        self.dangling = etc / "dangling.conf"
        self.dangling.symlink_to("nothing")
        self.sysctl = self.root / "proc/net/ipv4/arp"
        self.sysctl.parent.mkdir(parents=True)
        self.sysctl.write_text("0")
        self.netplan, self.network, self.fresh = etc / "60.yaml", etc / "networkd.network", etc / "dir/new.conf"
        self.netplan.write_text("mtu 1500")
        self.netplan.chmod(0o600)
        self.network.write_bytes(b"\xe4 1500")  # not UTF-8
        self.network.chmod(0o640)
        self.mtu, self.confirmed = 1500, False
        self.state = self.new_state()
        wanted = {self.netplan: "mtu 9000", self.network: "9000", self.fresh: "9000", self.link: "9000"}
        self.change = netplan.Change(
            "plan", {**wanted, self.dangling: None}, {"net/ipv4/arp": 1}, ["port"], {}, {}, 60, True
        )

    def new_state(self, is_unit: bool = False) -> netplan_undo.State:
        found = STATE(self.root / "var/netplan", is_unit)
        places = {"units": self.root / "units", "library": self.root / "lib"}
        found.unit = host_unit.HostUnit(**{**found.unit.__dict__, **places})
        found.lock_path = self.root.parent / "lock"
        return found

    def run(self, argv: Sequence[str], *, check: bool = True, **_options: object) -> subprocess.CompletedProcess[str]:
        text = " ".join(argv)
        try:
            self.count(f"run {text}")
        except system.NoAnswer:
            raise
        except system.HostError:
            if check:
                raise
            return subprocess.CompletedProcess(list(argv), 1, "", "failed")
        if argv[:3] == ["ip", "link", "set"] and "mtu" in argv:
            self.mtu = int(argv[-1])
        return subprocess.CompletedProcess(list(argv), 0, "", "")

    @staticmethod
    def count(what: str) -> None:
        if Faults.current:
            Faults.current.step(what, is_command=True)

    def activate(self, _names: Sequence[str], _networkd: bool) -> list[str]:
        """Do what renderer.activate() does: return an error instead of raising it."""
        try:
            self.count("run netplan generate")
            self.count("run networkctl reload")
        except system.HostError as error:
            return [str(error)]
        self.mtu = int(self.netplan.read_text().split()[-1])
        return []

    def apply(self) -> str:
        with self.state.lock("apply"):
            return netplan.execute(self.state, self.change, self.differences, 0)

    def differences(self) -> list[str]:
        return [] if self.mtu == 9000 else [f"mtu {self.mtu}"]

    def unit_runs(self) -> int:
        """Start the undo as systemd does."""
        return netplan_undo.main(self.root / "var/netplan")

    def pending(self) -> netplan_undo.Manifest | None:
        return netplan_undo.load(self.state.pending)

    def is_old(self) -> bool:
        """Tell whether files, modes, links and run-time values are those from before the change."""
        return (
            holds(self.netplan, "mtu 1500", Attributes(0o600))
            and holds(self.network, "\udce4 1500", Attributes(0o640))
            and holds(self.link, "of the link", Attributes(0o777, target="target"))
            and holds(self.dangling, None, Attributes(0o777, target="nothing"))
            and holds(self.fresh, None, None)
            and (self.mtu, self.sysctl.read_text()) == (1500, "0")
        )

    def is_new(self) -> bool:
        """Tell whether everything is as the change wants it."""
        wanted = all(holds(*one) for one in self.change.wanted())
        return wanted and (self.mtu, self.sysctl.read_text()) == (9000, "1")

    def check(self) -> None:
        """Assert what must hold at any time."""
        assert not (self.confirmed and not self.is_new()), "confirmed with the wrong state"
        if not self.is_old() and not self.confirmed:
            assert self.pending(), "neither state, and no undo is pending"
            assert self.state.unit.unit_path.exists(), "neither state, and no unit undoes it at boot"

    def begin(self) -> None:
        """Apply the change and confirm it, as the role does."""
        names: list[str] = []
        if attempt(lambda: names.append(self.apply())) == "done":
            self.confirm(names[0])

    def confirm(self, identity: str) -> None:
        self.confirmed |= attempt(lambda: netplan_undo.confirm(self.state, identity)) == "done"
        # The answer of a confirmation may be lost with its process.
        self.confirmed |= identity in [one.id for one in self.state.manifests()]

    def go_on(self, faults: Faults, again: bool) -> None:
        """Let the process end, the controller confirm again, and the unit run twice before the fault is mended."""
        faults.dead = False
        self.state = self.new_state()
        pending = self.pending()
        self.check()
        if again and pending:
            self.confirm(pending.id)
            self.check()
        if faults.kind.endswith("from here on"):
            for _number in range(2):
                assert attempt(self.unit_runs) == "done"
                self.check()
                if pending and not self.confirmed and again:
                    self.confirm(pending.id)
                    assert not self.confirmed, "confirmed after its undo began"

    def end(self, pending: netplan_undo.Manifest | None, then_another: bool) -> None:
        """Mend the fault; the undo must finish, it is too late for a confirmation, and another change is possible."""
        assert self.unit_runs() == 0
        assert self.pending() is None
        assert self.is_new() if self.confirmed else self.is_old()
        if pending and not self.confirmed:
            self.confirm(pending.id)
            assert not self.confirmed
        if then_another:
            self.state = self.new_state()
            self.confirm(self.apply())
            assert self.is_new()


@pytest.fixture
def make_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Host]:
    number = 0

    def make() -> Host:
        nonlocal number
        number += 1
        host = Host(tmp_path / str(number))
        monkeypatch.setattr(system, "run", host.run)
        monkeypatch.setattr(system, "links", lambda netns=None: {"port": {"mtu": host.mtu, "flags": ["UP"]}})
        monkeypatch.setattr(netplan_files, "activate", host.activate)
        monkeypatch.setattr(netplan_files, "NETWORKD_DROP_IN", host.root / "etc/dir/new.conf")
        monkeypatch.setattr(netplan_files, "WANT", host.root / "nowhere/x")
        monkeypatch.setattr(netplan_undo, "State", lambda _directory, is_unit: host.new_state(is_unit))
        monkeypatch.setattr(netplan_undo, "PROC_SYS", host.root / "proc")
        monkeypatch.setattr(netplan, "PROC_SYS", host.root / "proc")
        return host

    def sync(_descriptor: int) -> None:
        if Faults.current:
            Faults.current.step("fsync")

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(system, "package_files", lambda _module, library: {library / "gb10/x.py": "code"})
    monkeypatch.setattr(netplan_files, "is_booting", lambda: False)
    monkeypatch.setattr(netplan_files, "observe", lambda fabric: ())
    monkeypatch.setattr(netplan_files, "default_routes", list)
    for module in (netplan_undo, netplan):
        monkeypatch.setattr(module, "SETTLE_S", 0)
    return make


def steps_of(make_host: Callable[[], Host], run: Callable[[Host], object]) -> list[str]:
    """Return the steps of a program that nothing disturbs; it leaves nothing behind."""
    host = make_host()
    with Faults(host.root.parent) as faults:
        run(host)
    assert not [*host.root.rglob("*.gb10-*"), *host.root.rglob("*pending*")]
    return faults.steps


def reached(steps: Sequence[str], kind: str) -> list[int]:
    """Return the numbers of the steps that a fault of this kind can stop."""
    return [number for number, step in enumerate(steps, 1) if step.startswith("run") or not kind.startswith("hangs")]


@pytest.mark.parametrize("kind", KINDS)
def test_each_step_of_a_change(make_host: Callable[[], Host], kind: str) -> None:
    steps = steps_of(make_host, Host.begin)
    assert len(steps) > 60
    # After a power cut, a rename that is not synced may be undone, and others not.
    renames = {f"os.rename .{path.name}.gb10-new" for path in make_host().change.files}
    assert [then for step, then in itertools.pairwise(steps) if step in renames] == ["fsync"] * 4
    for number in reached(steps, kind):
        for again in (False, True) if kind.endswith("from here on") else (number % 2 == 0,):
            print(f"step {number}: {steps[number - 1]}, confirmed again: {again}")
            host = make_host()
            with Faults(host.root.parent, number, kind) as faults:
                host.begin()
                pending = netplan_undo.load(host.new_state().pending)
                host.go_on(faults, again)
            # Most of the time of these tests is that of other changes.
            host.end(pending, then_another=number % 3 == 0)


@pytest.mark.parametrize("kind", KINDS)
def test_each_step_of_an_undo(make_host: Callable[[], Host], kind: str) -> None:
    def undone(host: Host) -> None:
        applied = host.apply()
        faults = Faults.current
        assert faults
        faults.steps.clear()
        assert host.unit_runs() == 0
        host.confirm(applied)
        assert not host.confirmed

    steps = steps_of(make_host, undone)
    assert len(steps) > 20
    for number in reached(steps, kind):
        print(f"step {number}: {steps[number - 1]}")
        host = make_host()
        host.apply()
        pending = host.pending()
        with Faults(host.root.parent, number, kind) as faults:
            assert attempt(host.unit_runs) in ("done", "killed")
            host.go_on(faults, again=number > 1)
        host.end(pending, then_another=number % 3 == 0)


@pytest.mark.parametrize("kind", KINDS)
def test_each_step_of_a_reset(make_host: Callable[[], Host], kind: str) -> None:
    """A reset removes the records of all changes, or none of them."""

    def reset(host: Host) -> str:
        host.change = netplan.Change("reset", {host.netplan: "mtu 9000"}, {}, ["port"], {}, {}, 60, True, True)
        return host.apply()

    def prepared() -> tuple[Host, str]:
        host = make_host()
        host.confirm(host.apply())
        assert host.confirmed
        host.mtu = 1500
        return host, reset(host)

    host, identity = prepared()
    with Faults(host.root.parent) as plain:
        host.confirm(identity)
    assert not host.state.directory.exists()
    for number, step in enumerate(plain.steps, 1):
        print(f"step {number}: {step}")
        host, identity = prepared()
        with Faults(host.root.parent, number, kind):
            host.confirm(identity)
        host.state = host.new_state()
        if host.state.directory.exists():
            assert len(host.state.manifests()) == 1
            assert host.pending()
        assert host.unit_runs() == 0
        assert host.pending() is None
