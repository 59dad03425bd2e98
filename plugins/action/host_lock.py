# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let one run at a time change a host. Only the machine that runs Ansible knows whether a run still exists."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.action.host_files import python_of, without_library
from ansible_collections.gb10.cluster.plugins.module_utils._common import plain
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import visible
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.command import Holder, this_run

LONGEST = 200  # characters of what a host says


class ActionModule(ActionBase):
    """Runs the module of the same name, and once more if the run that holds the lock has ended."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result; failed if another run holds the lock."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        # What a run does is no part of it: a run of site takes the lock for one stage after another.
        mine = this_run("")
        told = self._take(mine, "", task_vars or {})
        other = holder(told.get("found"))
        if other and other.has_ended(mine):
            told = self._take(mine, told["found"], task_vars or {})
        if told.get("found"):
            told |= {"failed": True, "msg": refusal(told, str(self._task.args.get("path", "/run/gb10-run.json")))}
        return result | told

    def _take(self, mine: Holder, replaces: str, known: dict[str, Any]) -> dict[str, Any]:
        added = {"holder": json.dumps(asdict(mine)), "replaces": replaces}
        told = without_library(self, python_of(self, known), **added)
        return told or dict(self._execute_module(module_args={**self._task.args, **added}, task_vars=known))


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
