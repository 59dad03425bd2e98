# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the objects of a running group with those of its plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.summary import describe, outdated


class ActionModule(ControllerAction):
    """Compares two lists of objects; it does not access the cluster and changes nothing."""

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return the difference; changed if there is one."""
        before, after = describe(options["live"]), describe(options["wanted"])
        if before == after:
            message = "The group runs what the plan asks for."
        elif before:
            message = "The group differs from the plan and is going to be replaced as a whole."
        else:
            message = "The group is new."
        return {
            "changed": before != after,
            "different": before != after,
            "outdated": outdated(options["live"], options["wanted"]),
            "diff": {"before": before, "after": after, "before_header": "running", "after_header": "wanted"},
            "msg": message,
        }
