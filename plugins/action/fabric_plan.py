# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan the fabric on the controller, from the variables and facts of every host at once."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.module_utils._fabric_plan import format_plan, plan_fabric
from ansible_collections.gb10.cluster.plugins.module_utils._findings import format_findings, has_errors
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric_variables import fabric_variables


class ActionModule(ActionBase):
    """Reads C(gb10_*) of the given hosts; the plan becomes a fact of every host of the play."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        _validated, arguments = self.validate_argument_spec(
            argument_spec={"hosts": {"type": "list", "elements": "str", "required": True}}
        )
        variables, findings = fabric_variables(arguments["hosts"], task_vars)
        plan, found = plan_fabric(variables)
        findings += found
        fact = {**plan.as_dict(), "findings": [finding.as_dict() for finding in findings]}
        failed = has_errors(findings)
        report = format_findings(findings)
        result.update(
            changed=False,
            failed=failed,
            plan=fact,
            findings=fact["findings"],
            table=format_plan(plan),
            ansible_facts={} if failed else {"gb10_fabric_plan": fact},
            msg=f"The fabric can't be planned; nothing was changed.\n{report}" if failed else "The fabric is planned.",
        )
        if not failed:
            result["warnings"] = [str(finding) for finding in findings if finding.severity == "warning"]
        return result
