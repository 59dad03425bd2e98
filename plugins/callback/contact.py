# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say at the end of a run what made it fail, and once for all hosts why Ansible could not log in or use sudo."""

from __future__ import annotations

DOCUMENTATION = r"""
name: contact
type: notification
short_description: Say at the end of a run why it failed, and why hosts could not be reached
version_added: 0.1.0
description:
  - Prints one line with the reason and the remedy for the hosts that ssh, sudo or a missing Python kept Ansible from.
    Ansible's own errors, one per host, name neither.
  - Prints the screen on which an action of this collection says why it failed, and what to do, below the recap.
  - The playbooks of this collection load it themselves. Role preflight reports these hosts with all its other findings.
author: The gb10.cluster authors (@gb10)
"""

import re
from importlib import import_module
from typing import Any

from ansible import context
from ansible.plugins.callback import CallbackBase
from ansible.plugins.loader import filter_loader, lookup_loader, test_loader
from ansible.template import Templar
from ansible.utils.color import stringc
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import Waiting, held, shown, tell
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.command import has_password
from ansible_collections.gb10.cluster.plugins.plugin_utils._inventory.files import read_for_all
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.host import UNKNOWN, error_of, explain
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.report import make_finding

# Imported only for playbooks that plan a group
PROFILES = "ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile"
_COLORS = {"error": "red", "warning": "bright purple"}
_SEVERITY = re.compile(r"^(?:error|warning)(?=: )", re.M)
# Causes by which a task fails. The words of the others also occur in errors of a task that ran on the host.
_OF_TASKS = ("preflight.login.sudo", "preflight.login.no_sudo", "preflight.host.no_")


class CallbackModule(CallbackBase):
    """Collects the causes of one run."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "gb10.cluster.contact"

    def __init__(self) -> None:
        super().__init__()
        self._play: Any = None
        self._found: list[Finding] = []
        self._last: dict[str, None] = {}
        Waiting.loaded = True

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Keep the play, which knows the variables of its hosts; name the files that keep Ansible from starting it."""
        if self._play is None:
            sources, load = context.CLIARGS.get("inventory") or (), play.get_loader().load_from_file
            _tell(shown(read_for_all(sources, has_password(), load)))
            # Otherwise each process that Ansible forks for a task loads them for its first condition, in 0.03 s of CPU.
            for loader in (filter_loader, test_loader):
                list(loader.all())
            for name in ("env", "file"):
                lookup_loader.get(f"ansible.builtin.{name}")
            # Four processes of a run of site plan or compare with it.
            if "serving" in play.vars.get("needed_plans", ()):
                import_module(PROFILES).Library.load()
        self._play = play

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._note(result, "preflight.")

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Find the cause if the task did not run."""
        if not ignore_errors:
            self._note(result, *_OF_TASKS)
            if not rescued(result.task):
                self._last[held(result.result)] = None

    def v2_runner_on_ok(self, result: Any) -> None:
        """Keep the verdict of a task that did not fail."""
        self._last[held(result.result)] = None

    def v2_playbook_on_stats(self, stats: Any) -> None:
        texts = [shown(self._found), *self._last]
        _tell("\n\n".join(filter(None, texts)))

    def _note(self, result: Any, *rules: str) -> None:
        delegated = result.result.get("_ansible_delegated_vars") or {}
        name = delegated.get("ansible_delegated_host") or result.host.name
        values = self._values(result.host) | delegated
        unread = {
            "error": error_of(result.result),
            "address": values.get("ansible_host") or name,
            "user": values.get("ansible_user") or result.task.remote_user or "",
        }
        rule, fault = explain(unread)
        if rule != UNKNOWN and rule.startswith(rules):
            self._found.append(make_finding(rule, name, fault))

    def _values(self, host: Any) -> dict[str, str]:
        manager = self._play.get_variable_manager()
        known = manager.get_vars(play=self._play, host=host)
        templar = Templar(manager._loader, known)
        return {name: templar.template(known.get(name, "")) for name in ("ansible_host", "ansible_user")}


def _tell(text: str) -> None:
    if text:
        tell(text, lambda plain: _SEVERITY.sub(lambda match: stringc(match[0], _COLORS[match[0]]), plain))


def rescued(task: Any) -> bool:
    """Tell whether a block that contains the task goes on after its failure."""
    while parent := getattr(task, "_parent", None):
        if getattr(parent, "rescue", None) and task in parent.block:
            return True
        task = parent
    return False
