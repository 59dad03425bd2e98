# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Arm, confirm and undo a network change on a simulated host. A scenario is a list of steps and faults in words."""

import dataclasses
import fcntl
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import stored
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import netplan_files, netplan_undo
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.netplan_undo import (
    UNDOING,
    LinkState,
    Manifest,
    State,
    load,
)
from ansible_collections.gb10.cluster.plugins.module_utils._host import system
from ansible_collections.gb10.cluster.plugins.module_utils._host import unit as host_unit

BEFORE = LinkState(1500, False, ())


def interface(mtu: int, up: bool, *addresses: str) -> dict[str, Any]:
    split = [address.split("/") for address in addresses]
    found = [{"local": local, "prefixlen": int(prefix), "scope": "global"} for local, prefix in split]
    return {"mtu": mtu, "flags": ["UP"] if up else [], "addr_info": found}


class Machine:
    """A simulated host that tells what it runs and which of its files differ after a step."""

    def __init__(self, root: Path) -> None:
        self.root, self.lines = root, list[str]()
        self.state = State(root / "gb10/netplan")
        places = {"units": root / "units", "library": root / "library"}
        self.state.unit = host_unit.HostUnit(**{**self.state.unit.__dict__, **places})
        self.state.lock_path = root / "lock"
        self.file = root / "etc/60.yaml"
        self.file.parent.mkdir(parents=True)
        self.file.write_text("old")
        self.fails, self.booting = "", False
        self.links = {"enp1s0f0v0": interface(9000, True, "10.100.0.1/24")}
        self.others: tuple[str, ...] = ("address 10.99.0.11/24 of mgmt0",)

    def run(self, argv: Sequence[str], *, check: bool = True, timeout: float = 0) -> subprocess.CompletedProcess[str]:
        text = " ".join(argv)
        self.lines.append(f"$ {text}")
        failed = bool(self.fails) and self.fails in text
        if failed and check:
            raise system.HostError(f"{text}: exit status 1")
        return subprocess.CompletedProcess(argv, int(failed), "", f"refused {argv[-1]}\n" if failed else "")

    def activate(self, names: Sequence[str], networkd: bool) -> list[str]:
        self.lines.append(f"$ activate {' '.join(names)}, networkd {networkd}")
        return ["netplan: exit status 1"] if self.fails == "activate" else []

    def sync(self, path: Path) -> None:
        self.lines.append(f"sync {path.name}")
        if self.fails == "sync":
            raise OSError(5, "broken", str(path))

    def read_links(self, netns: object = None) -> dict[str, Any]:
        if self.fails == "links":
            raise system.HostError("ip does not answer")
        return self.links

    def manifest(self, identity: str = "id-1") -> Manifest:
        content, found = netplan_files.read(self.file)
        name, links = str(self.file), {"enp1s0f0v0": BEFORE}
        attributes = {name: found} if found else {}
        return Manifest(identity, "test", 60, {name: content}, links, {}, False, self.others, False, attributes)

    def change(self) -> None:
        system.stage(self.file, "new", 0o600).replace(self.file)
        manifest = load(self.state.pending)
        assert manifest
        self.state.mark_applied(manifest)

    def older(self) -> None:
        """Rewrite the record as an older release, which wrote no modes and no phase, or a newer one, which has more."""
        found = json.loads(self.state.pending.read_text())
        del found["attributes"], found["phase"]
        self.state.pending.write_text(json.dumps({**found, "more": {}}) + "\n")
        self.state.undoing.unlink()

    def step(self, words: str) -> object:
        """Do a step of a scenario, or change the host; the words say which."""
        word, _space, value = words.partition(" ")
        state, path = self.state, self.root / value
        prepared = dataclasses.replace(self.manifest(value), phase=UNDOING) if word == "prepared" else None
        steps: dict[str, Callable[[], object]] = {
            "arm": lambda: netplan_undo.arm(state, self.manifest()),
            "change": self.change,
            "confirm": lambda: netplan_undo.confirm(state, value or "id-1"),
            "undo": lambda: netplan_undo.undo(state, "too late"),
            "begin": lambda: state.begin_undo(self.manifest()),
            "abandon": lambda: netplan_undo.abandon(state, self.manifest(value)),
            "clean": lambda: netplan_undo.clean_up(state, self.manifest()),
            "forget": lambda: netplan_undo.forget(state),
            "main": lambda: netplan_undo.main(Path("state")),
            "fails": lambda: setattr(self, "fails", value),
            "booting": lambda: setattr(self, "booting", True),
            "unit": lambda: setattr(state, "is_unit", True),
            "old-link": lambda: self.links.update(enp1s0f0v0=interface(1500, False)),
            "lost": lambda: setattr(self, "others", ()),
            "older": self.older,
            "prepared": lambda: state.undoing.write_text(prepared.text() if prepared else "") and None,
            "readable": lambda: self.file.chmod(0o644),
            "remove": path.unlink,
            "mkdir": lambda: path.mkdir(parents=True),
            "write": lambda: path.write_text("x") and None,
        }
        return steps[word]()

    def files(self) -> dict[str, str]:
        paths = [path for path in sorted(self.root.rglob("*")) if path.is_file() or not any(path.iterdir())]
        return {self.short(str(path)): f"{path.stat().st_mode & 0o777:o} {self.content(path)}" for path in paths}

    def content(self, path: Path) -> str:
        text = "directory" if path.is_dir() else path.read_text()
        if text.startswith("{"):
            assert text.endswith("}\n")
            found = json.loads(text)
            return ", ".join(found[key] for key in ("id", "phase", "outcome", "why") if key in found)
        return text.split(" (")[0] if path == self.state.lock_path else text.partition("\n")[0]

    def short(self, line: str) -> str:
        line = line.replace(f"{self.root}/", "").replace("gb10/netplan/", "").replace(str(os.getpid()), "PID")
        return re.sub(r"[0-9a-f]{8}(?=\.gb10-new)", "RANDOM", line)

    def play(self, scenario: str, known: set[tuple[str, ...]]) -> list[str]:
        """Return each step with what happened in it, but nothing of what happened in a step before it already."""
        told, before = [], self.files()
        for words in scenario.split("; "):
            self.lines = []
            try:
                said = self.step(words)
            except (system.HostError, OSError) as error:
                said = f"refused: {error}"
            now = self.files()
            self.lines += [f"+ {path}: {now[path]}" for path in now if now[path] != before.get(path)]
            self.lines += [f"- {path}" for path in before if path not in now]
            self.lines += [] if said is None else [f"= {said}"]
            before = now
            kinds = itertools.groupby(map(self.short, self.lines), lambda line: line.partition(" ")[0])
            lines = (words, *("; ".join(many).replace(f"; {kind} ", "; ") for kind, many in kinds))
            told += (
                [f"{words}: as before"]
                if len(lines) > 3 and lines in known
                else [words, *(f"  {x}" for x in lines[1:])]
            )
            known.add(lines)
        return told


Make = Callable[[], Machine]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a function that makes a machine, on which everything happens until the next one."""

    def make_one() -> Machine:
        made = Machine(tmp_path / str(len(list(tmp_path.iterdir()))))
        monkeypatch.setattr(system, "run", made.run)
        monkeypatch.setattr(system, "links", made.read_links)
        monkeypatch.setattr(system, "sync_directory", made.sync)
        monkeypatch.setattr(netplan_files, "activate", made.activate)
        monkeypatch.setattr(netplan_files, "is_booting", lambda: made.booting)
        monkeypatch.setattr(netplan_files, "observe", lambda fabric: made.others)
        monkeypatch.setattr(netplan_files, "NETWORKD_DROP_IN", made.root / "conf.d/x")
        monkeypatch.setattr(netplan_files, "WANT", made.root / "service.d/x")
        monkeypatch.setattr(netplan_undo, "State", lambda _directory, is_unit: made.state if is_unit else None)
        return made

    monkeypatch.setattr(system, "package_files", lambda _module, library: {library / "gb10/x.py": "code"})
    monkeypatch.setattr(netplan_undo, "SETTLE_S", 0)
    return make_one


@pytest.fixture
def machine(make: Make) -> Machine:
    return make()


SCENARIOS = {
    "confirmed, and again because the first answer was lost": "arm; change; confirm; confirm; confirm id-2; undo",
    "undone, and confirmed too late": "arm; change; undo; confirm; undo",
    "undone where no file was": "remove etc/60.yaml; arm; change; undo",
    "everything is compared": "old-link; arm; undo; arm; lost; undo",
    "undone at boot": "arm; booting; undo",
    "undone at last": "arm; change; fails activate; undo; confirm",
    "ip does not answer": "arm; fails links; undo",
    "checks that did not pass": "arm; confirm",
    "an interrupted undo": "readable; arm; change; remove etc/.60.yaml.gb10-old; undo",
    "abandoned": "arm; abandon id-0; fails systemctl stop; abandon id-1",
    "not armed": "fails systemd-run; arm; abandon id-1",
    "armed again": "arm; fails systemctl stop; arm",
    "a record of another release": "arm; change; older; fails activate; undo; fails; undo",
    "a prepared undo of another change": "arm; prepared id-0; begin",
    "by the unit": "unit; arm; fails activate; main; fails; main",
    "confirmed without sync": "arm; change; mkdir gb10/netplan/last.json; fails sync; confirm",
    "confirmed without cleaning up": "arm; change; mkdir gb10/netplan/last.json; fails daemon-reload; confirm",
    "empty directories": "mkdir conf.d; mkdir service.d; write conf.d/other; clean; unit; clean",
    "forgotten": "arm; mkdir gb10/.netplan.gb10-old/x; forget",
    "forgotten beside others": "arm; write gb10/other; forget",
}


AT = ("10.0.0.1/24",)
LINKS = {
    "equal": (LinkState(9000, True, AT), interface(9000, True, *AT)),
    "address lost": (LinkState(9000, True, AT), interface(9000, True)),
    "address added": (LinkState(9000, True, ()), interface(9000, True, *AT)),
    "address replaced": (LinkState(9000, True, AT), interface(9000, True, "10.0.0.2/24")),
    "mtu": (LinkState(1500, True, ()), interface(9000, True)),
    "up": (LinkState(1500, True, ()), interface(1500, False)),
    "down": (LinkState(1500, False, ()), interface(1500, True)),
}


def test_each_scenario_is_as_stored(
    make: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mask = os.umask(0o022)
    known: set[tuple[str, ...]] = set()
    try:
        found = {name: make().play(steps, known) for name, steps in SCENARIOS.items()}
        monkeypatch.setattr(netplan_undo, "PERSIST_S", 0)
        for fails in ("activate", "ip link"):
            found[f"given up: {fails}"] = make().play(f"arm; fails {fails}; undo", known)
    finally:
        os.umask(mask)
    for name, (old, now) in LINKS.items():
        machine = make()
        machine.links = {"p": now}
        states = {"gone": BEFORE, "p": old}
        told = netplan_undo.restore_runtime(states, {}) + netplan_undo.link_differences(states)
        found[f"interface: {name}"] = [*machine.lines, *told]
    machine = make()
    machine.fails = "ip"
    monkeypatch.setattr(netplan_undo, "PROC_SYS", machine.file.parent)
    (machine.file.parent / "a").mkdir()
    told = netplan_undo.restore_runtime({"enp1s0f0v0": BEFORE}, {"x": "1", "a": "1", "60.yaml": "2"})
    found["what can't be corrected"] = [*told[:-1], machine.short(told[-1]), f"60.yaml: {machine.file.read_text()}"]
    found["the unit"] = [
        machine.short(line)
        for line in machine.state.unit.files("")[machine.state.unit.unit_path][0].splitlines()
        if line
    ]
    found["said by the unit"] = [line for text in capsys.readouterr() for line in text.splitlines()]
    stored.compare("netplan_undo", found)


LISTS = '{"id": "x", "what": "", "timeout": 1, "files": {}, "links": [], "sysctls": {}}'


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"id": "x"}', "\x00", LISTS])
def test_a_record_that_cannot_be_read_is_named_and_not_taken_for_none(machine: Machine, text: str) -> None:
    machine.step("arm")
    machine.state.pending.write_text(text)
    with pytest.raises(system.HostError, match=r"pending\.json: this release cannot read"):
        netplan_undo.undo(machine.state, "too late")
    machine.state.last.write_text(text)
    assert machine.state.outcome() == {}
    machine.state.pending.unlink()
    machine.state.pending.mkdir()
    with pytest.raises(system.HostError, match="record of a network change is unreadable"):
        load(machine.state.pending)


def test_manifest_survives_its_file(tmp_path: Path) -> None:
    links = {"e": LinkState(9000, True, ("10.0.0.1/24",))}
    manifest = Manifest("a", "b", 1, {"/x": None}, links, {"k": "1"}, True, ("x",), False)
    (tmp_path / "m.json").write_text(manifest.text())
    assert load(tmp_path / "m.json") == manifest


HOLD = """\
import fcntl, os, sys, time
handle = open(sys.argv[1], "w")
fcntl.flock(handle, fcntl.LOCK_EX)
print(f"process {os.getpid()} (state applied, user alice)", file=handle, flush=True)
print("locked", flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(machine: Machine) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the lock and does not end."""
    argv = [sys.executable, "-c", HOLD, str(machine.state.lock_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_a_process_that_keeps_the_lock_is_named_to_a_second_one_and_killed_by_the_unit(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, holder: subprocess.Popen[str]
) -> None:
    machine.step("arm")
    machine.change()
    monkeypatch.setattr(netplan_undo, "LOCK_WAIT_S", 0)
    found = [machine.state._has_open(str(pid)) for pid in (holder.pid, os.getpid(), 2**30)]
    assert found == [True, False, False]
    with pytest.raises(system.HostError, match=rf"now: process {holder.pid} \(state applied, user alice\)\. Wait"):
        machine.step("undo")
    assert holder.poll() is None
    machine.state.is_unit = True
    machine.step("undo")
    assert holder.wait(10) == -9
    assert machine.file.read_text() == "old"
    assert machine.state.lock_path.read_text().startswith(f"process {os.getpid()} (undo, ")


@pytest.mark.parametrize(
    ("text", "is_open", "kills"),
    [
        ("process 2000000000 (x)", True, [2_000_000_000]),
        ("process 2000000000 (x)", False, []),
        ("process {own} (x)", True, []),
        ("", True, []),
    ],
    ids=["another", "another that ended", "its own", "none"],
)
def test_only_another_process_that_has_the_lock_is_killed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, text: str, is_open: bool, kills: list[int]
) -> None:
    killed: list[int] = []

    def kill(pid: int, _signal: int) -> None:
        killed.append(pid)
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", kill)
    monkeypatch.setattr(State, "_has_open", lambda _state, _pid: is_open)
    monkeypatch.setattr(system, "wait_for", lambda probe, _timeout: probe())
    text = text.format(own=os.getpid())
    machine.state.lock_path.write_text(text)
    # Two open files of one process exclude each other, too.
    with machine.state.lock_path.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with (
            pytest.raises(system.HostError, match=re.escape(text or "an unnamed one")),
            machine.state.lock("x", kill=True),
        ):
            pass
    assert killed == kills


@pytest.mark.parametrize(
    ("sudo", "known", "user"), [("alice", "bob", "alice"), ("", "bob", "bob"), ("", "", str(os.geteuid()))]
)
def test_the_lock_is_free_after_its_holder_and_nests_and_names_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, sudo: str, known: str, user: str
) -> None:
    users = {os.geteuid(): SimpleNamespace(pw_name=known)} if known else {}
    monkeypatch.setenv("SUDO_USER", sudo)
    monkeypatch.setattr(netplan_undo.pwd, "getpwuid", users.__getitem__)
    machine.state.lock_path.write_text("process 1 " + 500 * "x\n")
    with machine.state.lock("one"), machine.state.lock("two"):
        pass
    with machine.state.lock("three"):
        text = machine.state.lock_path.read_text()
    assert re.fullmatch(rf"process {os.getpid()} \(three, user {user}, since \S+\)\n", text)
