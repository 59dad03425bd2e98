# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep a pending network change and undo it without Ansible.

While a change waits for its confirmation, ``gb10-netplan-undo.service`` exists on the host. A timer starts it when the
time is up, and a boot starts it before the network. The undo needs no disk space, as old files are kept as hard links.
An undo that fails, hangs or is killed stays pending, and systemd starts it again until it is done.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from .._common import plain
from .._host import system, unit
from . import netplan_files
from .netplan_files import Attributes

# The record of a network change, its phases, and the lock that lets one process at a time change this host's network.
#
# A change is ``armed`` (its undo is prepared), then ``applied`` (its checks passed), and then confirmed. Or its undo
# begins: it is ``undoing``, and then undone. Only an applied change can be confirmed. Every step is one rename.

STATE_DIRECTORY = Path("/var/lib/gb10/netplan")
LOCK = Path("/run/gb10-netplan.lock")  # not in the state directory, which a reset removes
ARMED, APPLIED, UNDOING = "armed", "applied", "undoing"
RETRY_S = 30  # pause before the host's unit tries an undo again


@dataclass(frozen=True)
class LinkState:
    """The run-time state of an interface before the change."""

    mtu: int
    up: bool
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    """One change: its files with their old content (None: the file did not exist), and the earlier run-time state.

    ``attributes`` has mode, owner and link of the files that existed; a record of an older release has none.
    ``others`` is what others.observe() returned about other interfaces, ``networkd`` whether systemd-networkd ran.
    """

    id: str
    what: str
    timeout: int
    files: dict[str, str | None]
    links: dict[str, LinkState]
    sysctls: dict[str, str]
    forget: bool = False
    others: tuple[str, ...] = ()
    networkd: bool = True
    attributes: dict[str, Attributes] = field(default_factory=dict)
    phase: str = ARMED

    def text(self) -> str:
        """Return the manifest as JSON."""
        return json.dumps({"schema": 1, **asdict(self)}, indent=2) + "\n"


def load(path: Path) -> Manifest | None:
    """Read a manifest; None if the file does not exist. Raise HostError if this release cannot read it."""
    try:
        return plain.load(Manifest, json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise system.HostError(
            f"The record of a network change is unreadable: {system.explain(error, path)}"
        ) from error
    except (ValueError, TypeError, AttributeError) as error:
        raise system.HostError(
            f"{path}: this release cannot read the record of a network change ({error!r}). The old files are "
            "beside the present ones, as .NAME.gb10-old. Rename those, delete the record, and restart the host."
        ) from error


class State:
    """The directory that records changes: ``pending.json``, ``last.json`` and the confirmed ones in ``backups/``.

    ``is_unit`` says that this process is the host's own unit.
    """

    def __init__(self, directory: Path = STATE_DIRECTORY, is_unit: bool = False) -> None:
        self.directory = directory
        self.is_unit = is_unit
        self.pending = directory / "pending.json"
        self.last = directory / "last.json"
        self.backups = directory / "backups"
        self.lock_path = LOCK
        self.unit = unit.HostUnit(
            name="gb10-netplan-undo",
            description="Undo an unconfirmed network change",
            module="_fabric.netplan_undo",
            config=self.pending,
            arguments=str(directory),
            timeout=300,
            remain=False,
            retry_s=RETRY_S,
        )
        self._locked = False

    def manifests(self) -> list[Manifest]:
        """Return the confirmed changes, oldest first."""
        found = [load(path) for path in sorted(self.backups.glob("*.json"))]
        return [manifest for manifest in found if manifest]

    def outcome(self) -> dict[str, Any]:
        """Return ``id``, ``what``, ``outcome`` (confirmed or undone), ``why`` and ``at`` of the last change."""
        with contextlib.suppress(ValueError):
            found = json.loads(system.read_text(self.last) or "{}")
            if isinstance(found, dict) and {"id", "what", "outcome", "why", "at"} <= found.keys():
                return found
        return {}

    def prepare(self, manifest: Manifest) -> None:
        """Write the record that the undo begins with now: a full disk must not stop an undo."""
        self.backups.mkdir(parents=True, exist_ok=True, mode=0o700)
        netplan_files.stage(self.undoing, replace(manifest, phase=UNDOING).text(), Attributes(0o600))
        netplan_files.staged(self.undoing).replace(self.undoing)
        system.sync_directory(self.directory)

    @property
    def undoing(self) -> Path:
        """Return the prepared record of the undo, which replaces the pending one when the undo begins."""
        return self.directory / ".pending.json.undoing"

    def begin_undo(self, manifest: Manifest) -> None:
        """Record that the undo begins: from now on the change cannot be confirmed."""
        if manifest.phase == UNDOING:
            return
        prepared = load(self.undoing)
        if prepared is not None and prepared.id == manifest.id:
            self.undoing.replace(self.pending)
            system.sync_directory(self.directory)
        else:
            system.write_atomic(self.pending, replace(manifest, phase=UNDOING).text(), 0o600)

    def mark_applied(self, manifest: Manifest) -> None:
        """Record that the change's checks passed: from now on it can be confirmed. Raise HostError or OSError."""
        system.write_atomic(self.pending, replace(manifest, phase=APPLIED).text(), 0o600)

    @contextmanager
    def lock(self, purpose: str, wait: float = 0, kill: bool = False) -> Iterator[None]:
        """Be the only process that changes this host's network; may be nested. Raise HostError if another one does.

        With ``kill``, a process that still has the lock after ``wait`` seconds is killed: the host must be able to
        undo a change whose process hangs.
        """
        if self._locked:
            yield
            return
        descriptor = os.open(self.lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+", encoding="utf-8", errors="replace") as handle:
            if not system.wait_for(lambda: _flock(handle), wait) and not (kill and self._take_over(handle)):
                raise system.HostError(
                    f"Another process changes this host's network now: {_holder(handle)}. Wait until it ends, and run "
                    "this again. If it hangs, kill it: the host then undoes its change by itself."
                )
            with contextlib.suppress(OSError):  # a full /run only costs the name
                handle.seek(0)
                handle.write(f"process {os.getpid()} ({purpose}, user {_user()}, since {time.strftime('%FT%T%z')})\n")
                # Not before: a process that hangs between the two would have no name, by which the unit kills it.
                handle.truncate()
                handle.flush()
            self._locked = True
            try:
                yield
            finally:
                self._locked = False

    def _take_over(self, handle: IO[str]) -> bool:
        named = re.match(r"process (\d+) ", _holder(handle))
        if named and named[1] != str(os.getpid()) and self._has_open(named[1]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(named[1]), signal.SIGKILL)
        return bool(system.wait_for(lambda: _flock(handle), 10))

    def _has_open(self, pid: str) -> bool:
        """Tell whether a process has the lock's file open; its number may belong to another process by now."""
        lock = self.lock_path.stat()
        for descriptor in Path("/proc", pid, "fd").glob("*"):
            with contextlib.suppress(OSError):
                if os.path.samestat(descriptor.stat(), lock):
                    return True
        return False


def _flock(handle: IO[str]) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(handle: IO[str]) -> str:
    handle.seek(0)
    return handle.read().strip() or "an unnamed one"


def _user() -> str:
    with contextlib.suppress(KeyError):
        return os.environ.get("SUDO_USER") or pwd.getpwuid(os.geteuid()).pw_name
    return str(os.geteuid())


TIMER = "gb10-netplan-undo-timer"
PROC_SYS = Path("/proc/sys")
SETTLE_S = 15  # NetworkManager needs seconds to activate a port's old profile again
LOCK_WAIT_S = 60  # longer than a command may take, so that a change that ends by itself is not killed
# Programs that fail for so long fail for another reason than a host that is slow or out of space, and each try
# reconfigures the fabric's interfaces again.
PERSIST_S = 600


def arm(state: State, manifest: Manifest) -> None:
    """Save the old state and start the timer, before anything is changed. Raise HostError or OSError if that fails."""
    for name in manifest.files:
        netplan_files.keep(Path(name))
    state.prepare(manifest)
    # No change is pending, so a timer that is still there belongs to none.
    system.run(["systemctl", "stop", f"{TIMER}.timer"], check=False)
    state.unit.install(manifest.text())
    # An exact second is not needed, but the default accuracy of a minute would double a short timeout.
    system.run(
        [
            "systemd-run",
            "--quiet",
            "--collect",
            f"--unit={TIMER}",
            f"--on-active={manifest.timeout}",
            "--timer-property=AccuracySec=1s",
            "systemctl",
            "start",
            "--no-block",
            state.unit.unit_path.name,
        ]
    )


def abandon(state: State, manifest: Manifest) -> None:
    """Remove an undo that could not be armed, before anything was changed; needs no disk space.

    What belongs to another change stays.
    """
    pending = load(state.pending)
    if pending is None or pending.id == manifest.id:
        state.pending.unlink(missing_ok=True)
        clean_up(state, manifest)


def clean_up(state: State, manifest: Manifest) -> list[str]:
    """Remove what only a pending change needs; return what could not be removed. Leftovers have no effect."""

    def remove_files() -> None:
        paths = [*map(Path, manifest.files), state.pending, state.undoing]
        for leftover in [*map(netplan_files.kept, paths), *map(netplan_files.staged, paths), state.undoing]:
            leftover.unlink(missing_ok=True)

    def remove_directories() -> None:
        for drop_in in (netplan_files.NETWORKD_DROP_IN, netplan_files.WANT):
            # Debian and Ubuntu do not ship these directories.
            if drop_in.parent.is_dir() and not any(drop_in.parent.iterdir()):
                drop_in.parent.rmdir()

    def stop() -> None:
        # The unit may wait for this process, or for its next try. It must not stop itself.
        units = [f"{TIMER}.timer", *([] if state.is_unit else [state.unit.unit_path.name])]
        system.run(["systemctl", "stop", *units], check=False)

    return [line for step in (remove_files, remove_directories, stop, state.unit.remove) for line in tried(step)]


def tried(step: Callable[[], object]) -> list[str]:
    """Run a step that must not stop the others; return the error that stopped it, if any."""
    try:
        step()
    except (system.HostError, OSError) as error:
        return [system.explain(error)]
    return []


def report(state: State, manifest: Manifest, outcome: str, why: str) -> list[str]:
    """Write how a change ended; return what prevented it."""
    now = time.strftime("%FT%TZ", time.gmtime())
    ended = {"id": manifest.id, "what": manifest.what, "outcome": outcome, "why": why, "at": now}
    return tried(lambda: system.write_atomic(state.last, json.dumps(ended, indent=2) + "\n", 0o600))


def forget(state: State) -> None:
    """Delete all records of changes at once."""
    gone = state.directory.with_name(f".{state.directory.name}.gb10-old")
    if gone.is_dir():
        shutil.rmtree(gone)
    state.directory.replace(gone)
    parent = state.directory.parent
    # What cannot be deleted has no effect, and the next reset deletes it.
    with contextlib.suppress(OSError):
        system.sync_directory(parent)
        shutil.rmtree(gone)
        if not any(parent.iterdir()):
            parent.rmdir()


def confirm(state: State, identity: str) -> list[str]:
    """Make a change permanent; return what could not be cleaned up. Raise HostError if its undo has begun."""
    with state.lock("confirm", LOCK_WAIT_S):
        manifest = load(state.pending)
        if manifest is None or manifest.id != identity:
            if identity in {path.stem for path in state.backups.glob("*.json")}:
                return []  # the answer to an earlier call was lost
            ended = state.outcome()
            why = "this host has no record of it. Run this again to see what differs"
            if ended.get("id") == identity:
                why = f"the old state holds: {ended.get('why', '')}"
            raise system.HostError(f"The network change {identity} can't be confirmed, {why}")
        if manifest.phase != APPLIED:
            begun = "its undo has begun" if manifest.phase == UNDOING else "its checks did not pass"
            raise system.HostError(
                f"The network change {identity} can't be confirmed: {begun}. The host undoes it, and tries again every "
                f"{RETRY_S} s until that is done. See `journalctl -u {state.unit.name}`, and run this again afterwards."
            )
        # One rename makes the change permanent: the record of the pending change becomes that of a confirmed one.
        if manifest.forget:
            forget(state)
            return clean_up(state, manifest)
        state.backups.mkdir(exist_ok=True, mode=0o700)
        state.pending.replace(state.backups / f"{manifest.id}.json")
        trouble = [
            line for each in (state.backups, state.directory) for line in tried(partial(system.sync_directory, each))
        ]
        return (
            trouble
            + report(state, manifest, "confirmed", "confirmed over a new connection")
            + clean_up(state, manifest)
        )


def undo(state: State, why: str) -> str:
    """Restore the state before the pending change; return what happened. Does nothing if no change is pending.

    Raise HostError if the undo is not complete. It is still pending then and may be repeated: the host's unit does so.
    """
    with state.lock("undo", LOCK_WAIT_S, kill=state.is_unit):
        manifest = load(state.pending)
        if manifest is None:
            return "no network change is pending"
        state.begin_undo(manifest)
        missing = [line for name in manifest.files for line in tried(partial(restore, manifest, name))]
        booting = netplan_files.is_booting()
        trouble = netplan_files.activate(list(manifest.links), manifest.networkd)
        found: list[str] = []
        if not booting:
            try:
                system.wait_for(lambda: not lasting(manifest), SETTLE_S)
                trouble += restore_runtime(manifest.links, manifest.sysctls)
                found = lasting(manifest)
            except system.HostError as error:
                trouble.append(str(error))
        tries_s = time.time() - state.pending.stat().st_ctime
        if missing or (trouble and tries_s < PERSIST_S):
            raise system.HostError(
                f"{why}; the undo is not complete: {'; '.join([*missing, *trouble, *found])}. "
                f"The host tries again every {RETRY_S} s: `journalctl -u {state.unit.name}`"
            )
        trouble += found
        if booting:
            note = f"{why}; the old files are back before the network starts"
        else:
            note = f"{why}; " + (
                f"the old files are back, but: {'; '.join(trouble)}" if trouble else "the old state is back"
            )
        report(state, manifest, "undone", note)
        state.pending.unlink()
        tried(partial(system.sync_directory, state.directory))
        clean_up(state, manifest)
    return note


def restore(manifest: Manifest, name: str) -> None:
    """Restore one file of a change."""
    netplan_files.put_back(Path(name), manifest.files[name], manifest.attributes.get(name))


def lasting(manifest: Manifest) -> list[str]:
    """Return how interfaces, addresses and routes differ from those before the change."""
    return link_differences(manifest.links) + netplan_files.differences(
        manifest.others, netplan_files.observe(manifest.links)
    )


def link_differences(links: Mapping[str, LinkState]) -> list[str]:
    """Return how the fabric's interfaces in this namespace differ from an earlier state."""
    present = system.links()
    found = []
    for name, old in links.items():
        link = present.get(name)
        if link is not None:
            now = link_state(link)
            found += (
                [f"{name} has {now}, before {old}"]
                if (now.mtu, set(now.addresses)) != (old.mtu, set(old.addresses))
                else []
            )
    return found


def restore_runtime(links: Mapping[str, LinkState], sysctls: Mapping[str, str]) -> list[str]:
    """Restore what netplan does not restore on the interfaces in this namespace: MTU, addresses, down, sysctls."""
    trouble = []
    present = system.links()
    for name, old in links.items():
        link = present.get(name)
        if link is None:
            continue
        now = system.addresses(link)
        commands = [["address", "del", address, "dev", name] for address in now if address not in old.addresses]
        if commands:
            # systemd-networkd leaves its routes behind when it stops.
            commands.append(["route", "flush", "dev", name, "proto", "static"])
        commands += [["address", "replace", address, "dev", name] for address in old.addresses if address not in now]
        if link.get("mtu") != old.mtu:
            commands.append(["link", "set", "dev", name, "mtu", str(old.mtu)])
        if ("UP" in link.get("flags", [])) != old.up:
            commands.append(["link", "set", "dev", name, "up" if old.up else "down"])
        for command in commands:
            done = system.run(["ip", *command], check=False)
            if done.returncode:
                trouble.append(f"ip {' '.join(command)}: {done.stderr.strip()}")
    for key, value in sysctls.items():
        path = PROC_SYS / key
        if path.exists():
            trouble += tried(partial(path.write_text, value, encoding="ascii"))
    return trouble


def link_state(link: Mapping[str, Any]) -> LinkState:
    """Return the state of an interface from its entry of ``ip -j address``."""
    return LinkState(int(link.get("mtu", 0)), "UP" in link.get("flags", []), system.addresses(link))


def main(directory: Path) -> int:
    """Undo as the host's unit; return 1 if systemd must try again."""
    try:
        note = undo(State(directory, is_unit=True), "it was not confirmed in time, or the host was restarted")
    except (system.HostError, OSError) as error:
        sys.stderr.write(system.explain(error) + "\n")
        return 1
    sys.stdout.write(note + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
