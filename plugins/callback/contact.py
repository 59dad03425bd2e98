# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Explain at the end of a run, once for all hosts with the same cause, why Ansible could not log in or use sudo."""

from __future__ import annotations

DOCUMENTATION = r"""
name: contact
type: notification
short_description: Explain why hosts could not be reached
version_added: 0.1.0
description:
  - Prints one line with the reason and the remedy for the hosts that ssh, sudo or a missing Python kept Ansible from.
    Ansible's own errors, one per host, name neither.
  - The playbooks of this collection load it themselves. Role preflight reports these hosts with all its other findings.
author: The gb10.cluster authors (@gb10)
"""

from typing import Any

from ansible.plugins.callback import CallbackBase
from ansible.template import Templar
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, format_findings
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import tell
from ansible_collections.gb10.cluster.plugins.plugin_utils._preflight.contact import UNKNOWN, error_of, explain
from ansible_collections.gb10.cluster.plugins.plugin_utils._preflight.rules import make_finding

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

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Keep the play, which knows the variables of its hosts."""
        self._play = play

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._note(result, "preflight.")

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Find the cause if the task did not run."""
        if not ignore_errors:
            self._note(result, *_OF_TASKS)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        if self._found:
            tell(format_findings(self._found))

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
