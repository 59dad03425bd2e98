# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print a text line by line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, has_errors
from ansible_collections.gb10.cluster.plugins.module_utils._common.plain import align, load
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import (
    ControllerAction,
    hold,
    shown,
    tell,
    width,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.screen import fold
from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.failure import failed_text


class ActionModule(ControllerAction):
    """Displays the text itself, since result formats other than YAML put all lines into one."""

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return the text after it was displayed, below the host's name if other hosts print theirs; or hold it."""
        text = options["text"].rstrip("\n")
        if rows := options["rows"]:
            cells = [list(rows[0]), *([str(cell) for cell in row.values()] for row in rows)]
            text = "\n".join([text, *align(cells)])
        if options["failed_as"]:
            found = {"msg": text}
            return {"changed": False} | failed_text(
                options["failed_as"], found, task_vars, self._templar.template, write=not self._task.check_mode
            )
        if options["findings"] is not None:
            findings = [load(Finding, finding) for finding in options["findings"]]
            if has_errors(findings):
                return {"changed": False, "failed": True, "findings": options["findings"], "msg": text}
            text = shown(findings)
        if not text:
            return {"changed": False, "msg": ""}
        if options["at_end"]:
            return {"changed": False, "msg": text, **hold(text)}
        if options["wrap"]:
            text = "\n".join(fold(text, width()))
        alone = self._task.run_once or len(task_vars["ansible_play_hosts"]) == 1
        tell(text if alone else f"{task_vars['inventory_hostname']}:\n{text}")
        # With -v, Ansible would print the text again as data.
        return {"changed": False, "msg": text, "_ansible_verbose_override": True}
