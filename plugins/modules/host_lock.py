#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_lock
short_description: Let one run at a time change a host
version_added: 0.1.0
description:
  - Writes a record on the host that names this run (user, machine, process, playbook), or empties it.
  - Fails if another run holds it. A record that has expired is replaced, and so is that of a process that no longer
    exists on the machine that runs Ansible, for example after Ctrl-C. A reboot of the host removes it.
  - The action plugin of the same name fills in O(holder) and O(replaces).
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.lock]
options:
  path:
    description: The record on the host.
    type: path
    default: /run/gb10-run.json
  holder:
    description: The process of this run, as the action describes it.
    type: str
    default: ""
  replaces:
    description: The holder that no longer exists.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Let no other run change this host
  gb10.cluster.host_lock:
    run: playbook fabric
"""

RETURN = r"""
held:
  description: Whether this run holds the lock now.
  returned: always
  type: bool
found:
  description: Who else holds it.
  returned: always
  type: str
doing:
  description: What that run does.
  returned: always
  type: str
until:
  description: When the record of another run expires.
  returned: always
  type: str
"""

import fcntl
import json
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._host import system


def converge(module: Any, result: dict[str, Any]) -> None:
    """Take the lock or give it back; the file is never removed, so that all runs lock the same one."""
    options, now = module.params, time.time()
    if module.check_mode:
        return
    with Path(options["path"]).open("a+", encoding="utf-8", errors="replace") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        found = file.read()
        holder, doing, until = read(found)
        own = holder == options["holder"]
        if options["state"] == "released":
            if own:
                file.truncate(0)
            return
        if holder and until > now and not own and holder != options["replaces"]:
            result.update(found=holder, doing=doing, until=time.strftime("%FT%TZ", time.gmtime(until)))
            return
        file.truncate(0)
        record = {"holder": options["holder"], "run": options["run"], "until": now + options["duration"]}
        file.write(json.dumps(record))
    result["held"] = True


def read(text: str) -> tuple[str, str, float]:
    """Return who holds the lock, for what, and until when in seconds since 1970; nobody if the text is no record."""
    try:
        record = json.loads(text)
        return str(record["holder"]), str(record["run"]), float(record["until"])
    except (ValueError, TypeError, KeyError):
        return "", "", 0.0


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "default": "/run/gb10-run.json"},
            "run": {"type": "str", "default": "a run"},
            "duration": {"type": "int", "default": 7200},
            "state": {"type": "str", "choices": ["held", "released"], "default": "held"},
            "holder": {"type": "str", "default": ""},
            "replaces": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    system.run_module(module, converge, held=False, found="", doing="", until="")


if __name__ == "__main__":
    main()
