# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a module in time slices, and show its message after each of them.

A module can show nothing before it ends, and a retried task shows only the retries left. All modules that wait in
slices use this action; meta/runtime.yml names the others.
"""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """Runs the module of the task again until it is done."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's last result; changed if any slice changed something."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        host, changed = (task_vars or {}).get("inventory_hostname", ""), False
        options = dict(self._task.args)
        while True:
            part = self._execute_module(module_args=options, task_vars=task_vars)
            changed = changed or bool(part.get("changed"))
            if part.get("failed") or part.get("done", True) or self._task.check_mode:
                return result | part | {"changed": changed}
            self._display.display(f"{host}: {part['msg']}")
            if "progress" in part:
                options["progress"] = part["progress"]
