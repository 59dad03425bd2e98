# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write files on a host without a word about their content in its journal."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """Runs the module with Ansible's setting that a module does not log its arguments on the host.

    Ansible writes all arguments as one text, in which it does not find a secret content with a line feed. The module
    cannot switch that off: Ansible overwrites what it gives to AnsibleModule.
    """

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        known = {**(task_vars or {}), "ansible_no_target_syslog": True}
        return result | self._execute_module(task_vars=known)
