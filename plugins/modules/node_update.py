#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_update
short_description: Update the packages of a host, and boot a new kernel once before it becomes the default
version_added: 0.1.0
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.converging]
description:
  - Takes the steps of an update of one host, one state after another. Role C(update) calls it in their order.
  - A unit of systemd (C(gb10-update.service)) installs the packages, so that they are installed to the end also if the
    connection to the host is lost.
  - Before a newer kernel is installed, the one that runs becomes GRUB's saved default. The new one is booted once
    (C(grub-reboot)), and becomes the default with O(state=settled). A host that does not start with it therefore starts
    with the kernel from before when it is switched on again.
  - C(/var/lib/gb10/update.json) on the host has what was done, the versions before and after, and the kernels. The next
    call goes on from there.
  - A metapackage whose next version brings a kernel of another line is held.
attributes:
  diff_mode:
    support: full
    description: Shows the steps.
  platform:
    support: full
    platforms: debian
    description: Needs root, APT, systemd and Python 3.11 or newer; a new kernel needs GRUB.
options:
  state:
    description:
      - V(planned) only reads the host.
      - V(installing) holds what must stay, makes the kernel that runs the default, and starts the unit that installs
        the packages.
      - V(installed) waits up to 20 seconds for the unit (RV(busy) tells whether it still runs then), and fails if
        packages are left that it did not install.
      - V(booted) lets GRUB boot the new kernel once; RV(reboot) tells whether the host has to be rebooted for it.
      - V(running) fails if the host does not run the new kernel.
      - V(settled) makes the kernel that runs the default.
      - V(returned) makes the kernel from before the update the default; RV(reboot) tells whether another one runs.
      - V(closed) ends the update.
    type: str
    choices: [planned, installing, installed, booted, running, settled, returned, closed]
    default: planned
  kernel_line:
    description: The line of the kernel (such as V(6.17)) that the update may bring; empty for the one that runs.
    type: str
    default: ""
  retry:
    description: Boot a kernel again from which an earlier update has gone back.
    type: bool
    default: false
  back:
    description: The update is to go back to the kernel from before; only changes C(due) and the kernel that would be
      booted.
    type: bool
    default: false
  refresh:
    description: Read the lists of packages from the repositories first; not in check mode.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Read what an update would do
  gb10.cluster.node_update:

- name: Install the packages
  gb10.cluster.node_update:
    state: installing

- name: Wait for the packages
  gb10.cluster.node_update:
    state: installed
  register: installed
  until: not installed.busy
  retries: 180
  delay: 1
"""

RETURN = r"""
steps:
  description: The steps that were taken, or would be taken outside of check mode.
  type: list
  elements: str
  returned: always
  sample: ["GRUB boots 6.17.0-1014-nvidia once", "reboot"]
busy:
  description: Whether the packages are being installed now.
  type: bool
  returned: always
reboot:
  description: Whether the host has to be rebooted now. The module does not do that.
  type: bool
  returned: always
found:
  description:
    - What was read before the steps. C(kernel) runs, C(next_kernel) would be booted, C(changes) are the packages with
      C(name), C(before) and C(after), C(hold) the packages that would be held, C(kernels) what GRUB can boot,
      C(state) the file of the update, and C(due) whether there is anything to do.
  type: dict
  returned: always
"""

import json
import os
import tempfile
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._common import plain
from ansible_collections.gb10.cluster.plugins.module_utils._host import system
from ansible_collections.gb10.cluster.plugins.module_utils._node import update
from ansible_collections.gb10.cluster.plugins.module_utils._node.update import Observed, State, Step

# Observe a host's packages and kernels, and carry out the steps of its update.
#
# A unit of systemd installs the packages, so that they are installed also if the connection to the controller is lost.

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
WAIT = 20.0  # seconds to wait for the unit in one task
LONG = 300.0  # seconds for commands that read or write much


def observe(top: Path, kernel_line: str, retry: bool, back: bool) -> Observed:
    """Read the host; a kernel may come from ``kernel_line`` too. Raise HostError if APT's answer cannot be used."""
    kernel = system.read_text(top / "proc/sys/kernel/osrelease") or ""
    lines = tuple(filter(None, (kernel_line, update.line_of(kernel))))
    status = (top / "var/lib/dpkg/status").read_text(encoding="utf-8", errors="replace")
    changes = _simulate(status, ())
    hold = update.to_hold(changes, lines)
    if hold:
        changes = _simulate(status, hold)
    grub = system.read_text(top / "boot/grub/grub.cfg") or ""
    return Observed(
        kernel=kernel,
        boot_id=system.read_text(top / "proc/sys/kernel/random/boot_id") or "",
        lines=lines,
        changes=tuple(changes),
        hold=tuple(hold),
        kernels=update.entries(grub),
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
    odd = [each for each in (state.kernel_before, state.kernel_after) if each and not update.KERNEL.fullmatch(each)]
    if odd:
        raise system.HostError(f"{STATE}: {ascii(odd[0])[:80]} is no kernel. Delete the file to begin anew.")
    return state


def _simulate(status: str, hold: Iterable[str]) -> list[update.Change]:
    """Ask APT what it would change. A copy of dpkg's status file has the holds, as ``apt-mark hold`` writes them."""
    with tempfile.TemporaryDirectory(prefix="gb10-update-") as directory:
        copy = Path(directory, "status")
        copy.write_text(update.held_status(status, hold), encoding="utf-8")
        answer = system.run([*SIMULATE, "-o", f"Dir::State::status={copy}", "dist-upgrade"], timeout=LONG).stdout
    try:
        return update.parse_simulation(answer)
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
            system.run(["systemctl", "reset-failed", UNIT], check=False)
            settings = [f"--setenv={each}" for each in ENVIRONMENT]
            system.run(["systemd-run", f"--unit={UNIT}", "--service-type=exec", *settings, "/bin/sh", "-c", INSTALL])
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


TOP = Path("/")


def wait(params: dict[str, Any]) -> update.Observed:
    """Return the host as it is with new lists of packages, or when its unit has ended, or after a slice of the wait."""
    if params["refresh"]:
        system.run(["apt-get", "-q", "update"], timeout=LONG)
    if params["state"] == "installed":
        system.wait_for(lambda: not system.is_active(UNIT), WAIT, step=0.5)
    return observe(TOP, params["kernel_line"], params["retry"], params["back"])


def converge(module: AnsibleModule, result: dict[str, Any]) -> None:
    """Take the steps of one state and fill in the result."""
    state = module.params["state"]
    seen = wait({**module.params, "refresh": module.params["refresh"] and not module.check_mode})
    todo = update.steps(state, seen)
    lines = [str(step) for step in todo]
    result.update(
        found={**asdict(seen), "next_kernel": seen.next_kernel, "due": seen.due},
        changed=bool(todo),
        busy=seen.busy,
        reboot=any(step.action == "reboot" for step in todo),
        steps=lines,
        diff={"prepared": "".join(f"{line}\n" for line in lines)},
        msg="; ".join(lines) or "nothing to do",
    )
    wrong = failure(seen) if state == "installed" else seen.failure if state == "running" else ""
    if wrong:
        raise system.HostError(wrong)
    if not module.check_mode:
        apply(todo, seen)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {
                "type": "str",
                "choices": ["planned", "installing", "installed", "booted", "running", "settled", "returned", "closed"],
                "default": "planned",
            },
            "kernel_line": {"type": "str", "default": ""},
            "retry": {"type": "bool", "default": False},
            "back": {"type": "bool", "default": False},
            "refresh": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    system.run_module(module, converge, busy=False, reboot=False, steps=[], found={})


if __name__ == "__main__":
    main()
