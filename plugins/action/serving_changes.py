# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show what a group runs and what it is going to run."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.module_utils._serving_diff import describe


class ActionModule(ActionBase):
    """Compares two lists of objects; asks nobody and changes nothing."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        objects = {"type": "list", "elements": "dict", "required": True}
        _validated, options = self.validate_argument_spec(argument_spec={"live": objects, "wanted": objects})
        before, after = describe(options["live"]), describe(options["wanted"])
        changed = before != after
        result.update(
            changed=changed,
            diff={"before": before, "after": after, "before_header": "running", "after_header": "wanted"},
            msg="The group is to be replaced as a whole." if changed and before else "",
        )
        if changed and not before:
            result["msg"] = "The group is new."
        elif not changed:
            result["msg"] = "The group runs what is wanted."
        return result
