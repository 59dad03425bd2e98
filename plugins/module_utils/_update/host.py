# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Observe a host's packages and kernels, and carry out the steps of its update.

A unit of systemd installs the packages, so that they are installed also if the connection to the controller is lost.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from .._common import plain
from .._host import system
from . import packages
from .steps import Observed, State, Step

UNIT = "gb10-update.service"
STATE = Path("/var/lib/gb10/update.json")
# The last file that grub-mkconfig reads decides. GRUB_SAVEDEFAULT would make a kernel that was booted once the default.
DROP_IN = Path("/etc/default/grub.d/zz-gb10-update.cfg")
DROP_IN_TEXT = (
    "# Written by gb10.cluster, role update: GRUB boots the last kernel that passed the checks.\n"
    "GRUB_DEFAULT=saved\nGRUB_SAVEDEFAULT=false\n"
)
# 00_header of Debian's and Ubuntu's grub-mkconfig, for LVM, RAID, btrfs and ZFS. What is chosen for one boot lasts.
READ_ONLY = "GRUB lacks write support for"
SIMULATE = ("apt-get", "-qq", "--simulate", "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=")
# Nothing of a host or a repository is a part of this text. Configuration files that the owner has changed stay.
INSTALL = (
    "dpkg --configure -a && exec apt-get -q -y -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0"
    " -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold dist-upgrade"
)
# needrestart would restart K3s and with it nothing that the reboot does not.
ENVIRONMENT = ("DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_SUSPEND=1", "APT_LISTCHANGES_FRONTEND=none")
LONG = 300.0  # seconds for commands that read or write much


def observe(top: Path, kernel_line: str, retry: bool, back: bool) -> Observed:
    """Read the host; a kernel may come from ``kernel_line`` too. Raise HostError if APT's answer cannot be used."""
    kernel = system.read_text(top / "proc/sys/kernel/osrelease") or ""
    lines = tuple(filter(None, (kernel_line, packages.line_of(kernel))))
    status = (top / "var/lib/dpkg/status").read_text(encoding="utf-8", errors="replace")
    changes = _simulate(status, ())
    hold = packages.to_hold(changes, lines)
    if hold:
        changes = _simulate(status, hold)
    grub = system.read_text(top / "boot/grub/grub.cfg") or ""
    return Observed(
        kernel=kernel,
        boot_id=system.read_text(top / "proc/sys/kernel/random/boot_id") or "",
        lines=lines,
        changes=tuple(changes),
        hold=tuple(hold),
        kernels=packages.entries(grub),
        grub_writes=READ_ONLY not in grub,
        busy=system.is_active(UNIT),
        unfinished=bool(system.run(["dpkg", "--audit"], check=False).stdout.strip()),
        reboot_required=(top / "run/reboot-required").exists(),
        retry=retry,
        back=back,
        now=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        boot_free_mib=_free_mib(top / "boot"),
        state=read_state(),
    )


def read_state() -> State:
    """Return what an earlier run of the update has done. Raise HostError if the file has another form."""
    content = system.read_state(STATE)
    try:
        state = plain.load(State, content)
    except (KeyError, TypeError, ValueError) as error:
        raise system.HostError(f"{STATE}: not the state of an update ({error}). Delete it to begin anew.") from error
    odd = [each for each in (state.kernel_before, state.kernel_after) if each and not packages.KERNEL.fullmatch(each)]
    if odd:
        raise system.HostError(f"{STATE}: {ascii(odd[0])[:80]} is no kernel. Delete the file to begin anew.")
    return state


def _simulate(status: str, hold: Iterable[str]) -> list[packages.Change]:
    """Ask APT what it would change. A copy of dpkg's status file has the holds, as ``apt-mark hold`` writes them."""
    with tempfile.TemporaryDirectory(prefix="gb10-update-") as directory:
        copy = Path(directory, "status")
        copy.write_text(packages.held_status(status, hold), encoding="utf-8")
        answer = system.run([*SIMULATE, "-o", f"Dir::State::status={copy}", "dist-upgrade"], timeout=LONG).stdout
    try:
        return packages.parse_simulation(answer)
    except ValueError as error:
        raise system.HostError(f"APT's simulation has a line of another form: {error}") from error


def _free_mib(place: Path) -> int | None:
    try:
        found = os.statvfs(place)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize >> 20


def apply(todo: Iterable[Step], seen: Observed) -> None:
    """Carry out the steps. Only the controller reboots the host, because it waits for its return."""
    kernels = dict(seen.kernels)
    for step in todo:
        if step.action == "record":
            system.write_atomic(STATE, json.dumps({"schema": 1, **asdict(step.state)}, indent=2) + "\n")
        elif step.action == "hold":
            system.run(["apt-mark", "hold", step.value], timeout=LONG)
        elif step.action == "install":
            _start_unit()
        elif step.action == "default":
            if system.differs(DROP_IN, DROP_IN_TEXT, 0o644):
                system.write_atomic(DROP_IN, DROP_IN_TEXT)
            # Always: an earlier run may have ended between these two.
            system.run(["update-grub"], timeout=LONG)
            _choose("grub-set-default", step.value, kernels)
        elif step.action == "once":
            _choose("grub-reboot", step.value, kernels)


def _choose(command: str, kernel: str, kernels: dict[str, str]) -> None:
    if kernel not in kernels:
        raise system.HostError(
            f"GRUB has no entry for kernel {kernel}, so it was not chosen and the host was not rebooted. Look at"
            " /boot/grub/grub.cfg, and run `sudo update-grub`. [update.kernel.no_entry]"
        )
    system.run([command, kernels[kernel]])


def _start_unit() -> None:
    system.run(["systemctl", "reset-failed", UNIT], check=False)
    settings = [f"--setenv={each}" for each in ENVIRONMENT]
    system.run(["systemd-run", f"--unit={UNIT}", "--service-type=exec", *settings, "/bin/sh", "-c", INSTALL])


def failure(seen: Observed) -> str:
    """Return why the packages are not installed although the unit has ended; an empty string if they are."""
    if seen.busy or seen.state.phase != "installing" or not (seen.changes or seen.unfinished):
        return ""
    begun = datetime.fromisoformat(seen.state.begun.replace("Z", "+00:00")).timestamp() if seen.state.begun else 0
    said = system.last_words(UNIT, begun) or "APT printed nothing"
    return (
        f"{len(seen.changes)} packages are still not installed: {said}. The kernel that runs stays the default. Look at"
        f" `journalctl -u {UNIT}`, correct it, and run playbook update again, which goes on. [update.packages.failed]"
    )
