# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep a pending network change and undo it without Ansible.

While a change waits for its confirmation, ``gb10-netplan-undo.service`` exists on the host. A timer starts it when the
time is up, and a boot starts it before the network. The undo needs no disk space, as old files are kept as hard links.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .._common import plain
from .._host import system, unit
from . import others, renderer, transit

STATE_DIRECTORY = Path("/var/lib/gb10/netplan")
TIMER = "gb10-netplan-undo-timer"
PROC_SYS = Path("/proc/sys")
SETTLE_S = 15  # NetworkManager needs seconds to activate a port's old profile again


@dataclass(frozen=True)
class LinkState:
    """The run-time state of an interface before the change."""

    mtu: int
    up: bool
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    """One change: its files with their old content (None: the file did not exist), and the earlier run-time state.

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

    def text(self) -> str:
        """Return the manifest as JSON."""
        return json.dumps({"schema": 1, **asdict(self)}, indent=2) + "\n"


def load(path: Path) -> Manifest | None:
    """Read a manifest; None if the file does not exist."""
    text = system.read_text(path)
    return plain.load(Manifest, json.loads(text)) if text else None


class State:
    """The directory that records changes: ``pending.json``, ``last.json`` and the confirmed ones in ``backups/``."""

    def __init__(self, directory: Path = STATE_DIRECTORY) -> None:
        self.directory = directory
        self.pending = directory / "pending.json"
        self.last = directory / "last.json"
        self.backups = directory / "backups"
        self.unit = unit.HostUnit(
            name="gb10-netplan-undo",
            description="Undo an unconfirmed network change",
            module="_netplan.undo",
            config=self.pending,
            arguments=str(directory),
            timeout=300,
            remain=False,
        )

    def manifests(self) -> list[Manifest]:
        """Return the confirmed changes, oldest first."""
        found = [load(path) for path in sorted(self.backups.glob("*.json"))]
        return [manifest for manifest in found if manifest]

    def outcome(self) -> dict[str, Any]:
        """Return how the last change ended: ``id``, ``outcome`` (confirmed or undone) and ``why``."""
        text = system.read_text(self.last)
        return json.loads(text) if text else {}

    @contextmanager
    def lock(self, timeout: float) -> Iterator[None]:
        """Let only one of confirm and undo run at a time. A caller that waits too long proceeds without the lock."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self.directory / "lock").open("a", encoding="ascii") as handle:

            def locked() -> bool:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
                return True

            system.wait_for(locked, timeout)
            yield


def kept(path: Path) -> Path:
    """Return the name under which the old file is kept."""
    return path.with_name(f".{path.name}.gb10-old")


def arm(state: State, manifest: Manifest) -> None:
    """Save the old state and start the timer, before anything is changed. Raise HostError if either fails."""
    for name, old in manifest.files.items():
        path = Path(name)
        kept(path).unlink(missing_ok=True)
        if old is not None:
            os.link(path, kept(path))
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
    """Remove an undo that could not be armed, before anything was changed; needs no disk space."""
    state.pending.unlink(missing_ok=True)
    for path in [*map(Path, manifest.files), state.pending]:
        kept(path).unlink(missing_ok=True)
        path.with_name(f".{path.name}.gb10-new").unlink(missing_ok=True)
    state.unit.remove()


def disarm(state: State, manifest: Manifest, outcome: str, why: str) -> None:
    """Stop the timer and record the outcome. Removing pending.json makes the outcome final."""
    now = time.strftime("%FT%TZ", time.gmtime())
    ended = {"id": manifest.id, "what": manifest.what, "outcome": outcome, "why": why, "at": now}
    if outcome == "confirmed":
        state.backups.mkdir(exist_ok=True, mode=0o700)
        system.write_atomic(state.backups / f"{manifest.id}.json", manifest.text(), 0o600)
    state.pending.unlink(missing_ok=True)
    for name in manifest.files:
        kept(Path(name)).unlink(missing_ok=True)
    for drop_in in (renderer.NETWORKD_DROP_IN, transit.WANT):
        # Debian and Ubuntu do not ship these directories.
        if drop_in.parent.is_dir() and not any(drop_in.parent.iterdir()):
            drop_in.parent.rmdir()
    system.run(["systemctl", "stop", f"{TIMER}.timer"], check=False)
    state.unit.remove()
    if outcome == "confirmed" and manifest.forget:
        forget(state)
        return
    system.write_atomic(state.last, json.dumps(ended, indent=2) + "\n", 0o600)


def forget(state: State) -> None:
    """Delete all records of changes."""
    shutil.rmtree(state.directory)
    parent = state.directory.parent
    if not any(parent.iterdir()):
        parent.rmdir()


def confirm(state: State, identity: str) -> dict[str, Any]:
    """Make a change permanent. Raise HostError if it was already undone and the old state is active."""
    with state.lock(timeout=60):
        manifest = load(state.pending)
        if manifest is None or manifest.id != identity:
            ended = state.outcome()
            why = ended.get("why", "") if ended.get("id") == identity else "this host has no record of this change"
            raise system.HostError(f"The network change {identity} can't be confirmed, the old state holds: {why}")
        disarm(state, manifest, "confirmed", "confirmed over a new connection")
    return {"id": identity, "outcome": "confirmed"}


def undo(state: State, why: str) -> str:
    """Restore the state before the pending change; return what happened. Does nothing if no change is pending."""
    with state.lock(timeout=30):
        manifest = load(state.pending)
        if manifest is None:
            return "no network change is pending"
        for name, old in manifest.files.items():
            put_back(Path(name), old)
        booting = renderer.is_booting()
        trouble = renderer.activate(list(manifest.links), manifest.networkd)
        if booting:
            note = f"{why}; the old files are back before the network starts"
        else:
            trouble += settle(manifest)
            note = f"{why}; " + (
                f"the old files are back, but: {'; '.join(trouble)}" if trouble else "the old state is back"
            )
        disarm(state, manifest, "undone", note)
    return note


def put_back(path: Path, old: str | None) -> None:
    """Restore one file by a rename, which needs no disk space."""
    if old is None:
        path.unlink(missing_ok=True)
    elif kept(path).exists():
        kept(path).replace(path)
    else:
        system.write_atomic(path, old, 0o600)
    path.with_name(f".{path.name}.gb10-new").unlink(missing_ok=True)
    if path.parent.is_dir():
        system.sync_directory(path.parent)


def settle(manifest: Manifest) -> list[str]:
    """Wait for the old state, correct what does not return by itself, and return the remaining differences."""

    def differences() -> list[str]:
        return link_differences(manifest.links) + others.differences(manifest.others, others.observe(manifest.links))

    system.wait_for(lambda: not differences(), SETTLE_S)
    return restore_runtime(manifest.links, manifest.sysctls) + differences()


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
            path.write_text(value, encoding="ascii")
    return trouble


def link_state(link: Mapping[str, Any]) -> LinkState:
    """Return the state of an interface from its entry of ``ip -j address``."""
    return LinkState(int(link.get("mtu", 0)), "UP" in link.get("flags", []), system.addresses(link))


if __name__ == "__main__":
    sys.stdout.write(undo(State(Path(sys.argv[1])), "it was not confirmed in time, or the host was restarted") + "\n")
