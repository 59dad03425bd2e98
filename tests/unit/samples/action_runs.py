# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the actions of tasks in this process: a play takes a second."""

import importlib
import json
from types import SimpleNamespace
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.parsing.dataloader import DataLoader
from ansible.playbook.play_context import PlayContext
from ansible.playbook.task import Task

# Only its temporary directory is looked at.
CONNECTION = SimpleNamespace(_shell=SimpleNamespace(tmpdir=None))


def acted(*tasks: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the results of tasks of an action on the controller, also of those that fail, as a play registers them.

    A task has the name and the options of its action, and ``check_mode``.
    """
    found = []
    for given in tasks:
        ((name, options),) = ((key, value) for key, value in given.items() if key.startswith("gb10.cluster."))
        task = Task()
        task.args, task.check_mode = options, given.get("check_mode", False)
        actions = "ansible_collections.gb10.cluster.plugins.action"
        kind = importlib.import_module(f"{actions}.{name.rpartition('.')[2]}").ActionModule
        try:
            result = kind(task, CONNECTION, PlayContext(), DataLoader(), None, None).run(task_vars={})
        except AnsibleActionFail as error:
            result = {"failed": True, "msg": str(error)}
        found.append(json.loads(json.dumps(result)))
    return found
