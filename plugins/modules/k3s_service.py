#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: k3s_service
short_description: Start K3s, and say why it did not start
version_added: 0.1.0
description:
  - Starts, restarts and enables the service of K3s. A server may end while etcd takes in another one, so a start that
    fails is tried a second time. If that fails too, the message quotes the last fatal line that K3s wrote to the
    journal.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.converging]
options:
  name:
    description: Name of the service.
    type: str
    choices: [k3s, k3s-agent]
    required: true
  state:
    description: Whether a running service is restarted.
    type: str
    choices: [started, restarted]
    default: started
  enabled:
    description: Whether the service is to start with the host; V(false) leaves that as it is.
    type: bool
    default: false
  daemon_reload:
    description: Whether systemd reads its units again first.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Start the agent
  gb10.cluster.k3s_service:
    name: k3s-agent
    enabled: true
"""

RETURN = r"""
reason:
  description: What K3s wrote last.
  returned: failure
  type: str
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._host import k3s, system

RELOAD = ["daemon-reload"]


def observe(module: AnsibleModule, unit: str) -> dict[str, str]:
    """Return the properties of the unit."""
    code, output, error = module.run_command(["systemctl", "show", "--property=ActiveState,UnitFileState", unit])
    if code != 0:
        module.fail_json(msg=f"systemctl show failed: {error.strip()}", changed=False)
    return k3s.parse_properties(output)


def steps(options: Mapping[str, Any], unit: str, found: Mapping[str, str]) -> list[list[str]]:
    """Return the arguments of systemctl for each step, from the options and the unit's properties."""
    restart = options["state"] == "restarted"
    todo = [RELOAD] if options["daemon_reload"] else []
    todo += [["enable", unit]] if options["enabled"] and found.get("UnitFileState") != "enabled" else []
    if restart or found.get("ActiveState") != "active":
        todo.append(["restart" if restart else "start", unit])
    return todo


def apply(module: AnsibleModule, unit: str, todo: Iterable[list[str]]) -> None:
    """Run systemctl for each step; a start that fails is tried a second time."""
    name, begun = unit.removesuffix(".service"), time.time()
    for verb, *rest in todo:
        code, _output, error = module.run_command(["systemctl", verb, *rest])
        if code != 0 and verb in ("start", "restart"):
            # A server ends itself if etcd is slow while it takes in another one, and leaves it to systemd to try again.
            first = system.last_words(unit, begun) or error.strip()
            code, _output, error = module.run_command(["systemctl", "start", unit])
            if code == 0:
                module.warn(f"{name} ended and was started a second time: {first}")
        if code != 0:
            reason = system.last_words(unit, begun) or error.strip() or f"systemctl {verb} ended with {code}"
            module.fail_json(msg=f"{name} did not {verb}: {reason}", reason=reason, changed=True)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "choices": ["k3s", "k3s-agent"], "required": True},
            "state": {"type": "str", "choices": ["started", "restarted"], "default": "started"},
            "enabled": {"type": "bool", "default": False},
            "daemon_reload": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    unit = f"{module.params['name']}.service"
    todo = steps(module.params, unit, observe(module, unit))
    if not module.check_mode:
        apply(module, unit, todo)
    module.exit_json(changed=any(step != RELOAD for step in todo))


if __name__ == "__main__":
    main()
