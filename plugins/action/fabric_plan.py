# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan the fabric on the controller from the variables and facts of all hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import has_errors
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction, plan_result
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.parse import fabric_variables
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import format_plan, plan_fabric


class ActionModule(ControllerAction):
    """Reads C(gb10_*) of the given hosts; the plan becomes a fact of every host of the play."""

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return plan, table and findings; if a finding is an error, fail and return only the message."""
        variables, findings = fabric_variables(options["hosts"], task_vars)
        if options["assume_vf_count"]:
            for values in variables.values():
                values.setdefault("gb10_assumed_vf_count", options["assume_vf_count"])
        plan, found = plan_fabric(variables)
        findings += found
        fact = {**plan.as_dict(), "findings": [finding.as_dict() for finding in findings]}
        failed = has_errors(findings)
        result = plan_result("The fabric", failed, findings, {"gb10_fabric_plan": fact}, "The fabric is planned.")
        return result if failed else result | {"plan": fact, "table": format_plan(plan)}
