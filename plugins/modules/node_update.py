#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

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
