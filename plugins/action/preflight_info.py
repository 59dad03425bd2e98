# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a host; with ``keep_unread`` a host that can't be read stays in the play with its error as a fact."""

from __future__ import annotations

from typing import Any

from ansible import constants as C
from ansible.errors import AnsibleError
from ansible.executor.interpreter_discovery import discover_interpreter
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.action.host_files import python_of, without_library
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.host import error_of

UNSENT = "could not be sent to remote host"


class ActionModule(ActionBase):
    """Runs the module; preflight_report refuses a host that stays in the play without facts."""

    _printed = ""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the facts, or with ``keep_unread`` a result whose fact ``gb10_preflight_unread`` has the error."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        if not boolean(self._task.args.get("keep_unread", False)):
            return result | self._read(task_vars or {})
        try:
            read = self._read(task_vars or {})
        except AnsibleError as error:
            read = {"failed": True, "msg": str(error)}
        if not read.get("failed"):
            printed = {"printed": self._printed} if self._printed else {}
            if "gb10_preflight" in read["ansible_facts"]:
                read["ansible_facts"]["gb10_preflight_unread"] = printed
            return result | read
        told = self._with_cause(error_of(read))
        if boolean(self._task.args.get("loads_only", False)):
            return result | {"changed": False, "ansible_facts": {"gb10_loads": []}, "msg": told}
        known = task_vars or {}
        unread = {
            "error": told,
            "address": known.get("ansible_host") or known.get("inventory_hostname", ""),
            "user": known.get("ansible_user") or self._play_context.remote_user or "",
        }
        facts = {"gb10_preflight": None, "gb10_preflight_unread": unread}
        return result | {"changed": False, "ansible_facts": facts, "msg": f"the host could not be read: {told}"}

    def _read(self, known: dict[str, Any]) -> dict[str, Any]:
        """Return what the module returns, without Ansible's library if the host has a usual Python."""
        python = python_of(self, known)
        mode = C.config.get_config_value("INTERPRETER_PYTHON", variables=known)
        found = ""
        if not python and mode in ("auto", "auto_silent"):
            # This is the first task of a run of site, and Ansible would look for Python now.
            python = found = discover_interpreter(self, "python", mode, known)
        told = without_library(self, python)
        if told is None or not isinstance(told.get("ansible_facts"), dict):
            return dict(self._execute_module(task_vars=known))
        if found:
            told["ansible_facts"]["discovered_interpreter_python"] = found
        return told

    def _low_level_execute_command(self, *words: Any, **options: Any) -> Any:
        """Run a command, and keep the first line that the shell of the login printed before the module's JSON."""
        done = super()._low_level_execute_command(*words, **options)
        before, brace, _json = done["stdout"].partition("{")
        lines = [line.strip() for line in before.splitlines() if brace and not line.startswith("BECOME-SUCCESS-")]
        self._printed = next(filter(None, lines), self._printed)[:200]
        return done

    def _with_cause(self, told: str) -> str:
        """Return an error with what ssh says, where Ansible only noticed that it could not send the module.

        So it is if no interpreter has to be found first: the module is then the first thing that is sent to the host
        (_send_initial_data of Ansible's connection plugin ssh), and ssh has ended before it read all of it.
        """
        if UNSENT not in told:
            return told
        try:
            self._low_level_execute_command("true", sudoable=False)
        except AnsibleError as error:
            return f"{error}\n{told}"
        return told
