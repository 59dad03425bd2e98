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
      - V(installed) waits for the unit, and fails if packages are left that it did not install.
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
  wait:
    description: Seconds to wait for the unit with O(state=installed); RV(busy) tells whether it still runs after that.
    type: int
    default: 20
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
msg:
  description: What was done, or what is wrong and what to do next.
  type: str
  returned: always
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

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._host import system
from ansible_collections.gb10.cluster.plugins.module_utils._update import host, steps

TOP = Path("/")


def wait(params: dict[str, Any]) -> steps.Observed:
    """Return the host as it is with new lists of packages, or when its unit has ended, or after a slice of the wait."""
    if params["refresh"]:
        system.run(["apt-get", "-q", "update"], timeout=host.LONG)
    if params["state"] == "installed":
        system.wait_for(lambda: not system.is_active(host.UNIT), params["wait"], step=0.5)
    return host.observe(TOP, params["kernel_line"], params["retry"], params["back"])


def converge(module: AnsibleModule, result: dict[str, Any]) -> None:
    """Take the steps of one state and fill in the result."""
    state = module.params["state"]
    seen = wait({**module.params, "refresh": module.params["refresh"] and not module.check_mode})
    todo = steps.plan(state, seen)
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
    wrong = host.failure(seen) if state == "installed" else seen.failure if state == "running" else ""
    if wrong:
        raise system.HostError(wrong)
    if not module.check_mode:
        host.apply(todo, seen)


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
            "wait": {"type": "int", "default": 20},
        },
        supports_check_mode=True,
    )
    system.run_module(module, converge, busy=False, reboot=False, steps=[], found={})


if __name__ == "__main__":
    main()
