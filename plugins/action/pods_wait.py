# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a module in time slices, and show its message after each of them; on the controller without a Python of its own.

A module can show nothing before it ends, and a retried task shows only the retries left. All modules that wait in
slices use this action, and some that run on the controller; meta/runtime.yml names them.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.action.host_files import AnsibleModule, outcome, validated
from ansible_collections.gb10.cluster.plugins.modules import (
    api_apply,
    api_info,
    image_pull,
    k3s_airgap_info,
    kubeconfig,
    node_room_info,
    node_wait,
    pods_wait,
    serving_group_info,
    serving_verdict,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import tell
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.command import again
from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.failure import failed, failed_text, group_screen


def call(main: Callable[[], None], given: Mapping[str, Any], check_mode: bool, diff: bool = False) -> Any:
    """Return what a module returns on the controller, without a Python of its own; None if its options are invalid."""
    options = validated(main, given, here=True)
    if options is None:
        return None
    # Ansible shows what a task writes to its error output, and ignores that of a module.
    with warnings.catch_warnings(action="ignore"):
        return json.loads(json.dumps(outcome(main, partial(AnsibleModule, options.values, check_mode, diff))))


# The Kubernetes client takes 0.3 s to import. Ansible imports action api_info in its main process; later tasks have it.
LOCAL = {
    f"gb10.cluster.{module.__name__.rpartition('.')[2]}": module.main
    for module in (
        api_apply,
        api_info,
        image_pull,
        k3s_airgap_info,
        kubeconfig,
        node_room_info,
        node_wait,
        pods_wait,
        serving_group_info,
        serving_verdict,
    )
}


class ActionModule(ActionBase):
    """Runs the module of the task again until it is done."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's last result; changed if any slice changed something."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        host, changed = (task_vars or {}).get("inventory_hostname", ""), False
        options = dict(self._task.args)
        main = LOCAL.get(self._task.action) if self._is_here(task_vars or {}) else None
        while True:
            part = call(main, options, bool(self._task.check_mode), bool(self._task.diff)) if main else None
            if part is None:
                part = self._execute_module(module_args=options, task_vars=task_vars)
            changed = changed or bool(part.get("changed"))
            ended = result | part | {"changed": changed}
            if part.get("failed"):
                return self._failed(ended, options, task_vars or {})
            if part.get("done", True) or self._task.check_mode:
                return ended
            tell(f"{host}: {part['msg']}")
            if "progress" in part:
                options["progress"] = part["progress"]

    def _failed(
        self, ended: dict[str, Any], options: Mapping[str, Any], task_vars: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return a failed result. A message of several lines is for the end of the run, all structures for a file."""
        template, kept = self._templar.template, not self._task.check_mode
        if ended.get("ranks") or ended.get("missing"):
            name = str(options["instance"])
            screen = replace(group_screen(ended, name), command=again("serve"))
            shown = failed(screen, name, ended, task_vars, template, kept)
        elif "\n" in str(ended.get("msg", "")):
            host = "" if self._task.run_once else f"-{task_vars['inventory_hostname']}"
            shown = failed_text(f"{self._task.action.rpartition('.')[2]}{host}", ended, task_vars, template, kept)
        else:
            return ended
        return {"changed": ended["changed"]} | shown

    def _is_here(self, task_vars: Mapping[str, Any]) -> bool:
        """Return whether the task runs on the controller, with Ansible's Python, user and environment."""
        host = self._task.delegate_to
        variables = task_vars["ansible_delegated_vars"][host] if host else task_vars
        interpreter = self._templar.template(variables.get("ansible_python_interpreter", ""))
        foreign = self._task.become or any(self._task.environment or [])
        return bool(self._connection.transport == "local" and interpreter == sys.executable and not foreign)
