# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record of a network change, its phases, and the lock that lets one process at a time change this host's network.

A change is ``armed`` (its undo is prepared), then ``applied`` (its checks passed), and then confirmed. Or its undo
begins: it is ``undoing``, and then undone. Only an applied change can be confirmed. Every step is one rename.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from .._common import plain
from .._host import system, unit
from . import files
from .files import Attributes

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
            module="_netplan.undo",
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
        files.stage(self.undoing, replace(manifest, phase=UNDOING).text(), Attributes(0o600))
        files.staged(self.undoing).replace(self.undoing)
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
