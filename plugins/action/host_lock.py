# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let one run at a time change a host. Only the machine that runs Ansible knows whether a run still exists."""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.module_utils._common import plain
from ansible_collections.gb10.cluster.plugins.modules import host_lock
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import visible
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.command import Holder, this_run

LONGEST = 200  # characters of what a host says
# The functions of the module without AnsibleModule, whose start takes 0.45 s of the host's CPU, 20 times as long as
# these. A run of site takes and gives back two locks on each host.
PROGRAM = f"""
import fcntl, json, sys, time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

{inspect.getsource(host_lock.converge)}
{inspect.getsource(host_lock.read)}
told = {host_lock.NOBODY}
converge(SimpleNamespace(params=json.loads(sys.argv[1]), check_mode=False), told)
print(json.dumps(dict(told, changed=False)))
"""


class ActionModule(ActionBase):
    """Runs the module of the same name, and once more if the run that holds the lock has ended."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result; failed if another run holds the lock."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        # What a run does is no part of it: a run of site takes the lock for one stage after another.
        mine = this_run("")
        told = self._take(mine, "", task_vars)
        other = holder(told.get("found"))
        if other and other.has_ended(mine):
            told = self._take(mine, told["found"], task_vars)
        if told.get("found"):
            told |= {"failed": True, "msg": refusal(told, str(self._task.args.get("path", "/run/gb10-run.json")))}
        return result | told

    def _take(self, mine: Holder, replaces: str, task_vars: Any) -> dict[str, Any]:
        added = {"holder": json.dumps(asdict(mine)), "replaces": replaces}
        told = None if self._task.check_mode else self._run_program(added, task_vars)
        words = {**self._task.args, **added}
        return told or dict(self._execute_module("gb10.cluster.host_lock", words, task_vars=task_vars))

    def _run_program(self, added: Mapping[str, str], task_vars: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what the module would return; None if the host's Python is not known yet, or if this fails."""
        facts = task_vars.get("ansible_facts") or {}
        known = task_vars.get("ansible_python_interpreter") or facts.get("discovered_interpreter_python")
        python = str(self._templar.template(known)) if known else ""
        if self._task.delegate_to or not python.startswith("/"):
            return None
        given: dict[str, Any] = self.validate_argument_spec(host_lock.OPTIONS)[1]  # type: ignore[no-untyped-call]
        options = {**given, **added}
        if not str(options["path"]).startswith("/"):
            return None
        done = self._low_level_execute_command(shlex.join([python, "-I", "-c", PROGRAM, json.dumps(options)]))
        try:
            told = json.loads(done["stdout"].splitlines()[-1])
        except (ValueError, IndexError, RecursionError):
            return None
        return told if done["rc"] == 0 and isinstance(told, dict) and told.keys() == host_lock.NOBODY.keys() else None


def holder(text: Any) -> Holder | None:
    """Return who holds the lock of a host; None if the text, which the host sends, names nobody."""
    try:
        return plain.load(Holder, json.loads(text))
    except (TypeError, ValueError, AttributeError, RecursionError):
        return None


def refusal(told: Mapping[str, Any], path: str) -> str:
    """Return who keeps this run from changing the host, and what to do."""
    other = holder(told["found"])
    who = visible(f"{other}{told.get('doing')}" if other else "a run that is not named")[:LONGEST]
    until = visible(str(told.get("until")))[:LONGEST]
    return (
        f"Another run changes this host: {who}, at most until {until}. Two at once would undo each other's work; "
        "nothing was changed here. Run this again when it has ended. If it does not run any more: sudo rm "
        f"{path} on this host [hosts.run.other]"
    )
