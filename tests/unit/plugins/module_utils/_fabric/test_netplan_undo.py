# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
import dataclasses
import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
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
LINK = {"mtu": 9000, "flags": ["UP"], "addr_info": [{"local": "10.100.0.1", "prefixlen": 24, "scope": "global"}]}


class Machine:
    """A simulated host that records commands instead of running them."""

    def __init__(self, tmp_path: Path) -> None:
        self.ran: list[str] = []
        self.state = State(tmp_path / "state")
        unit = self.state.unit
        self.state.unit = host_unit.HostUnit(
            **{**unit.__dict__, "units": tmp_path / "units", "library": tmp_path / "library"}
        )
        self.state.lock_path = tmp_path / "lock"
        self.file = tmp_path / "etc/60-gb10-fabric.yaml"
        self.file.parent.mkdir()
        self.fails = ""
        self.booting = False
        self.others: tuple[str, ...] = ("address 10.99.0.11/24 of mgmt0",)

    def run(self, argv: Sequence[str], *, check: bool = True, timeout: float = 0) -> subprocess.CompletedProcess[str]:
        text = " ".join(argv)
        self.ran.append(text)
        failed = bool(self.fails) and self.fails in text
        if failed and check:
            raise system.HostError(f"{text}: exit status 1")
        return subprocess.CompletedProcess(argv, int(failed), "", "")

    def activate(self, names: Sequence[str], networkd: bool) -> list[str]:
        self.ran.append(f"activate {' '.join(names)} {networkd}")
        return ["netplan: exit status 1"] if self.fails == "activate" else []

    def arm(self, old: str | None) -> Manifest:
        if old is not None:
            self.file.write_text(old)
        manifest = Manifest(
            "id-1",
            "test",
            60,
            {str(self.file): old},
            {"enp1s0f0v0": BEFORE},
            {},
            False,
            self.others,
            False,
            {name: found for name, (_text, found) in [(str(self.file), netplan_files.read(self.file))] if found},
        )
        self.state.directory.mkdir(exist_ok=True)
        netplan_undo.arm(self.state, manifest)
        return manifest


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setattr(system, "run", made.run)
    monkeypatch.setattr(system, "links", lambda netns=None: {"enp1s0f0v0": LINK})
    monkeypatch.setattr(netplan_files, "activate", made.activate)
    monkeypatch.setattr(netplan_files, "is_booting", lambda: made.booting)
    monkeypatch.setattr(netplan_files, "observe", lambda fabric: made.others)
    monkeypatch.setattr(netplan_undo, "SETTLE_S", 0)
    return made


def change(machine: Machine) -> None:
    staged = system.stage(machine.file, "new", 0o600)
    staged.replace(machine.file)
    manifest = load(machine.state.pending)
    assert manifest
    machine.state.mark_applied(manifest)


def test_arming_starts_the_timer_and_prepares_for_a_reboot(machine: Machine) -> None:
    machine.arm("old")
    assert any("systemd-run" in command and "--on-active=60" in command for command in machine.ran)
    assert "systemctl enable --quiet gb10-netplan-undo.service" in machine.ran
    unit = machine.state.unit.unit_path.read_text()
    assert "Before=network-pre.target" in unit
    assert f"ConditionPathExists={machine.state.pending}" in unit
    paths = (machine.state.pending, machine.state.undoing, machine.state.backups)
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o600, 0o600, 0o700]
    assert "RemainAfterExit=no" in unit
    # A timer that an earlier change left is stopped before the new one starts; there may be none.
    commands = [command.split()[0:2] for command in machine.ran]
    assert commands.index(["systemctl", "stop"]) < commands.index(["systemd-run", "--quiet"])
    machine.fails = "systemctl stop"
    machine.arm("old")
    assert netplan_undo.clean_up(machine.state, Manifest("id-1", "", 1, {}, {}, {})) == []


@pytest.fixture
def synced(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the directories that were synced, by their last names."""
    found: list[str] = []
    monkeypatch.setattr(system, "sync_directory", lambda path: found.append(path.name))
    return found


def test_a_power_cut_leaves_what_was_renamed(machine: Machine, synced: list[str]) -> None:
    machine.arm("old")
    assert synced[:2] == ["etc", "state"]
    change(machine)
    synced.clear()
    netplan_undo.undo(machine.state, "too late")
    # Begun, restored, reported, ended.
    assert synced == ["state", "etc", "state", "state"]
    machine.arm("old")
    change(machine)
    synced.clear()
    netplan_undo.confirm(machine.state, "id-1")
    assert synced[:2] == ["backups", "state"]


def test_the_records_of_a_change_are_private(machine: Machine) -> None:
    machine.arm("old")
    change(machine)
    assert machine.state.pending.stat().st_mode & 0o777 == 0o600
    netplan_undo.confirm(machine.state, "id-1")
    assert [path.stat().st_mode & 0o777 for path in (machine.state.last, machine.state.lock_path)] == [0o600, 0o600]
    assert machine.state.last.read_text().endswith("}\n")


def test_a_prepared_undo_of_another_change_is_not_used(machine: Machine) -> None:
    own = machine.arm("old")
    machine.state.undoing.write_text(dataclasses.replace(own, id="id-0", phase=UNDOING).text())
    machine.state.begin_undo(own)
    assert load(machine.state.pending) == dataclasses.replace(own, phase=UNDOING)


def test_a_record_that_is_no_file_is_named(machine: Machine) -> None:
    machine.state.pending.mkdir(parents=True)
    with pytest.raises(system.HostError, match="record of a network change is unreadable"):
        load(machine.state.pending)


@pytest.mark.parametrize("error", [system.HostError("refused"), OSError(28, "full")])
def test_a_step_of_the_end_that_fails_is_told(error: Exception) -> None:
    def fail() -> None:
        raise error

    assert len(netplan_undo.tried(fail)) == 1
    assert netplan_undo.tried(lambda: None) == []


def test_only_empty_directories_are_removed(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [tmp_path / "networkd.conf.d/x", tmp_path / "networkd.service.d/x"]
    monkeypatch.setattr(netplan_files, "NETWORKD_DROP_IN", places[0])
    monkeypatch.setattr(netplan_files, "WANT", places[1])
    for place in places:
        place.parent.mkdir()
    (places[0].parent / "other.conf").write_text("")
    machine.state.is_unit = True
    assert netplan_undo.clean_up(machine.state, Manifest("id-1", "", 1, {}, {}, {})) == []
    assert [place.parent.exists() for place in places] == [True, False]
    # The unit does not stop itself.
    assert machine.ran[0] == "systemctl stop gb10-netplan-undo-timer.timer"


@pytest.mark.parametrize("other", [False, True])
def test_all_records_are_forgotten_and_the_directory_of_others_stays(tmp_path: Path, other: bool) -> None:
    state = State(tmp_path / "gb10/netplan")
    (state.directory / "backups").mkdir(parents=True)
    stale = state.directory.with_name(".netplan.gb10-old")
    (stale / "x").mkdir(parents=True)
    if other:
        (tmp_path / "gb10/other").write_text("")
    netplan_undo.forget(state)
    assert [path.name for path in tmp_path.rglob("*")] == (["gb10", "other"] if other else [])


def test_an_undo_on_a_host_that_does_not_answer_is_not_complete(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(netns: object = None) -> dict[str, Any]:
        raise system.HostError("ip does not answer")

    machine.arm("old")
    monkeypatch.setattr(system, "links", refuse)
    with pytest.raises(system.HostError, match="not complete: ip does not answer"):
        netplan_undo.undo(machine.state, "too late")


@pytest.mark.parametrize("old", ["old", None])
def test_undo_restores_the_old_file_and_link_state(machine: Machine, old: str | None) -> None:
    machine.arm(old)
    change(machine)
    note = netplan_undo.undo(machine.state, "too late")
    assert "the old files are back, but: enp1s0f0v0 has" in note  # commands have no effect here
    assert (machine.file.read_text() if machine.file.exists() else None) == old
    assert "activate enp1s0f0v0 False" in machine.ran
    assert "ip address del 10.100.0.1/24 dev enp1s0f0v0" in machine.ran
    assert "ip link set dev enp1s0f0v0 mtu 1500" in machine.ran
    assert "ip link set dev enp1s0f0v0 down" in machine.ran
    assert machine.state.outcome()["outcome"] == "undone"
    assert [path.name for path in machine.file.parent.iterdir()] == ([machine.file.name] if old else [])


def test_the_old_state_is_back_only_when_everything_was_compared(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = {"mtu": 1500, "flags": [], "addr_info": []}
    monkeypatch.setattr(system, "links", lambda netns=None: {"enp1s0f0v0": old})
    machine.arm("old")
    assert netplan_undo.undo(machine.state, "too late") == "too late; the old state is back"
    machine.arm("old")
    machine.others = ()
    assert netplan_undo.undo(machine.state, "too late") == (
        "too late; the old files are back, but: other interfaces: the address 10.99.0.11/24 of mgmt0 is gone"
    )


def test_at_boot_the_note_claims_nothing_of_a_network_that_has_not_started(machine: Machine) -> None:
    machine.arm("old")
    machine.booting = True
    assert (
        netplan_undo.undo(machine.state, "restarted") == "restarted; the old files are back before the network starts"
    )
    assert not [command for command in machine.ran if command.startswith("ip ")]


def test_undo_without_a_pending_change_does_nothing(machine: Machine) -> None:
    assert netplan_undo.undo(machine.state, "too late") == "no network change is pending"
    assert machine.ran == []


def test_a_confirmed_change_stays_and_is_remembered(machine: Machine) -> None:
    machine.arm("old")
    change(machine)
    netplan_undo.confirm(machine.state, "id-1")
    assert machine.file.read_text() == "new"
    assert [manifest.files for manifest in machine.state.manifests()] == [{str(machine.file): "old"}]
    assert "systemctl stop gb10-netplan-undo-timer.timer gb10-netplan-undo.service" in machine.ran
    assert not machine.state.unit.unit_path.exists()
    assert netplan_undo.undo(machine.state, "too late") == "no network change is pending"


def test_confirming_too_late_says_that_the_old_state_holds(machine: Machine) -> None:
    machine.arm("old")
    netplan_undo.undo(machine.state, "it was not confirmed in time")
    with pytest.raises(system.HostError, match=r"the old state holds: it was not confirmed in time"):
        netplan_undo.confirm(machine.state, "id-1")


def test_an_undo_whose_commands_fail_is_tried_again_and_ends_at_last(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.arm("old")
    change(machine)
    machine.fails = "activate"
    with pytest.raises(system.HostError, match=r"not complete: netplan: exit status 1.* tries again every 30 s"):
        netplan_undo.undo(machine.state, "too late")
    assert machine.file.read_text() == "old"
    with pytest.raises(system.HostError, match="id-1 can't be confirmed: its undo has begun"):
        netplan_undo.confirm(machine.state, "id-1")
    monkeypatch.setattr(netplan_undo, "PERSIST_S", 0)
    assert "but: netplan: exit status 1" in netplan_undo.undo(machine.state, "too late")
    assert not machine.state.pending.exists()


def test_a_change_whose_checks_did_not_pass_cannot_be_confirmed(machine: Machine) -> None:
    machine.arm("old")
    with pytest.raises(system.HostError, match="id-1 can't be confirmed: its checks did not pass"):
        netplan_undo.confirm(machine.state, "id-1")
    assert machine.state.pending.exists()


def test_a_change_is_confirmed_twice_if_the_first_answer_was_lost(machine: Machine) -> None:
    machine.arm("old")
    change(machine)
    assert netplan_undo.confirm(machine.state, "id-1") == []
    assert netplan_undo.confirm(machine.state, "id-1") == []
    with pytest.raises(system.HostError, match="this host has no record of it"):
        netplan_undo.confirm(machine.state, "id-2")


def test_an_interrupted_undo_restores_mode_and_link_later(machine: Machine) -> None:
    """The second try found no kept file, and gave mode 0600 to a file that systemd-networkd must read."""
    machine.file.write_text("old")
    machine.file.chmod(0o644)
    machine.arm("old")
    change(machine)
    netplan_files.kept(machine.file).unlink()
    netplan_undo.undo(machine.state, "too late")
    assert (machine.file.read_text(), machine.file.stat().st_mode & 0o777) == ("old", 0o644)


def test_abandon_leaves_what_belongs_to_another_change(machine: Machine) -> None:
    own = machine.arm("old")
    netplan_undo.abandon(machine.state, dataclasses.replace(own, id="id-0"))
    assert load(machine.state.pending) == own
    assert netplan_files.kept(machine.file).read_text() == "old"
    assert machine.state.unit.unit_path.exists()


LISTS = '{"id": "x", "what": "", "timeout": 1, "files": {}, "links": [], "sysctls": {}}'


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"id": "x"}', "\x00", LISTS])
def test_a_record_that_cannot_be_read_is_named_and_not_taken_for_none(machine: Machine, text: str) -> None:
    machine.arm("old")
    machine.state.pending.write_text(text)
    with pytest.raises(system.HostError, match=r"pending\.json: this release cannot read"):
        netplan_undo.undo(machine.state, "too late")
    machine.state.last.write_text(text)
    assert machine.state.outcome() == {}


def test_a_record_of_another_release_is_undone(machine: Machine) -> None:
    """An older release wrote no modes and no phase; a newer one may write more."""
    machine.arm("old")
    change(machine)
    found = json.loads(machine.state.pending.read_text())
    del found["attributes"], found["phase"]
    machine.state.pending.write_text(json.dumps({**found, "more": [1]}))
    machine.state.undoing.unlink()
    machine.fails = "activate"
    with pytest.raises(system.HostError, match="not complete"):
        netplan_undo.undo(machine.state, "too late")
    pending = load(machine.state.pending)
    assert pending
    assert pending.phase == UNDOING
    assert machine.state.pending.stat().st_mode & 0o777 == 0o600
    machine.fails = ""
    netplan_undo.undo(machine.state, "too late")
    assert machine.file.read_text() == "old"


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


def test_a_second_process_is_told_who_changes_the_network(machine: Machine, holder: subprocess.Popen[str]) -> None:
    with (
        pytest.raises(system.HostError, match=rf"now: process {holder.pid} \(state applied, user alice\)\. Wait"),
        machine.state.lock("test"),
    ):
        pass
    assert holder.poll() is None


def test_the_unit_kills_a_process_that_keeps_the_lock(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, holder: subprocess.Popen[str]
) -> None:
    machine.arm("old")
    change(machine)
    monkeypatch.setattr(netplan_undo, "LOCK_WAIT_S", 0)
    with pytest.raises(system.HostError, match="Another process"):
        netplan_undo.undo(machine.state, "a check failed")
    machine.state.is_unit = True
    netplan_undo.undo(machine.state, "too late")
    assert holder.wait(10) == -9
    assert machine.file.read_text() == "old"
    assert machine.state.lock_path.read_text().startswith(f"process {os.getpid()} (undo, ")


def test_only_a_process_that_has_the_lock_open_is_found(machine: Machine, holder: subprocess.Popen[str]) -> None:
    found = [machine.state._has_open(str(pid)) for pid in (holder.pid, os.getpid(), 2**30)]
    assert found == [True, False, False]


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


def test_the_lock_is_free_after_its_holder_and_nests(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "alice")
    with machine.state.lock("one"), machine.state.lock("two"):
        pass
    machine.state.lock_path.write_text("process 1 " + 500 * "x\n")
    with machine.state.lock("three"):
        assert f"process {os.getpid()} (three, user alice, since " in machine.state.lock_path.read_text()
        assert machine.state.lock_path.read_text().count("\n") == 1
    monkeypatch.delenv("SUDO_USER")
    monkeypatch.setattr(netplan_undo.pwd, "getpwuid", lambda _uid: SimpleNamespace(pw_name="bob"))
    with machine.state.lock("four"):
        assert "(four, user bob, since " in machine.state.lock_path.read_text()

    def nobody(_uid: int) -> None:
        raise KeyError

    monkeypatch.setattr(netplan_undo.pwd, "getpwuid", nobody)
    with machine.state.lock("five"):
        assert f"(five, user {os.geteuid()}, since " in machine.state.lock_path.read_text()


def test_the_unit_is_started_again_until_it_succeeds(machine: Machine) -> None:
    machine.arm("old")
    lines = machine.state.unit.unit_path.read_text().splitlines()
    assert {"Restart=on-failure", "RestartSec=30", "StartLimitIntervalSec=0", "TimeoutStartSec=300"} <= set(lines)


def test_an_undo_that_cannot_be_armed_leaves_nothing(machine: Machine) -> None:
    machine.fails = "systemd-run"
    with pytest.raises(system.HostError):
        machine.arm("old")
    manifest = load(machine.state.pending)
    assert manifest is not None
    netplan_undo.abandon(machine.state, manifest)
    assert machine.file.read_text() == "old"
    assert [path.name for path in machine.file.parent.iterdir()] == [machine.file.name]
    assert not machine.state.pending.exists()
    assert not machine.state.unit.unit_path.exists()


def test_manifest_survives_its_file(tmp_path: Path) -> None:
    manifest = Manifest(
        "a", "b", 1, {"/x": None}, {"e": LinkState(9000, True, ("10.0.0.1/24",))}, {"k": "1"}, True, ("x",), False
    )
    (tmp_path / "m.json").write_text(manifest.text())
    found: Any = load(tmp_path / "m.json")
    assert found == manifest


def interface(mtu: int, up: bool, *addresses: str) -> dict[str, Any]:
    split = [address.split("/") for address in addresses]
    found = [{"local": local, "prefixlen": int(prefix), "scope": "global"} for local, prefix in split]
    return {"mtu": mtu, "flags": ["UP"] if up else [], "addr_info": found}


FLUSH = "ip route flush dev p proto static"


@pytest.mark.parametrize(
    ("old", "now", "commands"),
    [
        (LinkState(9000, True, ("10.0.0.1/24",)), interface(9000, True, "10.0.0.1/24"), []),
        (LinkState(9000, True, ("10.0.0.1/24",)), interface(9000, True), ["ip address replace 10.0.0.1/24 dev p"]),
        (LinkState(9000, True, ()), interface(9000, True, "10.0.0.1/24"), ["ip address del 10.0.0.1/24 dev p", FLUSH]),
        (
            LinkState(9000, True, ("10.0.0.1/24",)),
            interface(9000, True, "10.0.0.2/24"),
            ["ip address del 10.0.0.2/24 dev p", FLUSH, "ip address replace 10.0.0.1/24 dev p"],
        ),
        (LinkState(1500, True, ()), interface(9000, True), ["ip link set dev p mtu 1500"]),
        (LinkState(1500, True, ()), interface(1500, False), ["ip link set dev p up"]),
        (LinkState(1500, False, ()), interface(1500, True), ["ip link set dev p down"]),
    ],
    ids=["equal", "address lost", "address added", "address replaced", "mtu", "up", "down"],
)
def test_what_an_undo_corrects_on_an_interface(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, old: LinkState, now: dict[str, Any], commands: list[str]
) -> None:
    monkeypatch.setattr(system, "links", lambda netns=None: {"p": now})
    assert netplan_undo.restore_runtime({"gone": BEFORE, "p": old}, {}) == []
    assert machine.ran == commands
    differs = (now["mtu"], system.addresses(now)) != (old.mtu, old.addresses)
    assert len(netplan_undo.link_differences({"gone": BEFORE, "p": old})) == differs


def test_what_cannot_be_corrected_is_named_and_stops_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(argv: Sequence[str], **_options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(list(argv), 2, "", f"RTNETLINK answers: {argv[-1]}\n")

    monkeypatch.setattr(system, "run", run)
    monkeypatch.setattr(netplan_undo, "PROC_SYS", machine.file.parent)
    (machine.file.parent / "a").mkdir()
    (machine.file.parent / "b").write_text("0")
    assert netplan_undo.restore_runtime(
        {"enp1s0f0v0": LinkState(1500, True, ("10.100.0.1/24",))}, {"x": "1", "a": "1", "b": "2"}
    ) == [
        "ip link set dev enp1s0f0v0 mtu 1500: RTNETLINK answers: 1500",
        f"{machine.file.parent}/a: Is a directory.",
    ]
    assert (machine.file.parent / "b").read_text() == "2"


def test_a_confirmed_change_names_what_could_not_be_synced(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.arm("old")
    change(machine)

    def fail(path: Path) -> None:
        raise OSError(5, "broken", str(path))

    monkeypatch.setattr(system, "sync_directory", fail)
    machine.fails = "daemon-reload"
    machine.state.last.mkdir()
    said = netplan_undo.confirm(machine.state, "id-1")
    assert len(said) == 4
    assert str(machine.state.backups) in said[0]
    assert str(machine.state.directory) in said[1]


def test_a_confirmed_change_names_what_could_not_be_cleaned_up(machine: Machine) -> None:
    machine.arm("old")
    change(machine)
    machine.fails = "daemon-reload"
    machine.state.last.mkdir()
    said = netplan_undo.confirm(machine.state, "id-1")
    assert len(said) == 2
    assert "Is a directory" in said[0]
    assert "systemctl daemon-reload" in said[1]
    assert [manifest.id for manifest in machine.state.manifests()] == ["id-1"]


def test_the_undo_says_at_the_end_whether_systemd_must_try_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(netplan_undo, "State", lambda directory, is_unit: machine.state if is_unit else None)
    machine.arm("old")
    machine.fails = "activate"
    assert netplan_undo.main(Path("state")) == 1
    assert "the undo is not complete: netplan: exit status 1" in capsys.readouterr().err
    machine.fails = ""
    assert netplan_undo.main(Path("state")) == 0
    assert "it was not confirmed in time, or the host was restarted" in capsys.readouterr().out
