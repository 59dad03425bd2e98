# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan the fabric on the controller, from the variables and facts of every host at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.module_utils._fabric_parse import FACT_VARIABLES, VARIABLES
from ansible_collections.gb10.cluster.plugins.module_utils._fabric_plan import format_plan, plan_fabric
from ansible_collections.gb10.cluster.plugins.module_utils._findings import Finding, format_findings, has_errors


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
        findings: list[Finding] = []
        variables = {
            host: _variables(host, task_vars["hostvars"][host], findings)
            for host in arguments["hosts"]
            if host in task_vars["hostvars"]
        }
        for host in arguments["hosts"]:
            if host not in variables:
                remedy = "Correct fabric_plan_hosts."
                findings.append(Finding("error", "fabric.host.unknown", "hosts", host, "not in the inventory", remedy))
        _assume_for_absent(variables, task_vars.get("ansible_play_hosts_all", []))
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


def _variables(host: str, hostvars: Mapping[str, Any], findings: list[Finding]) -> dict[str, Any]:
    """Return the fabric's variables of a host as plain data; one whose template fails becomes a finding."""
    facts = hostvars.get("ansible_facts") or {}
    values: dict[str, Any] = {}
    for key in VARIABLES:
        try:
            # what the host says of itself beats what was declared for it
            value = facts.get(key) if key in FACT_VARIABLES else None
            values[key] = _plain(hostvars.get(key) if value is None else value)
        except AnsibleError as error:
            remedy = "Give it a value that can be read without this."
            findings.append(Finding("error", "fabric.value.template", key, None, str(error), remedy, host))
    return {key: value for key, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    """Return lazily templated containers as ordinary ones."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _assume_for_absent(variables: dict[str, dict[str, Any]], present: list[str]) -> None:
    """Let hosts that this run doesn't visit (C(--limit)) have as many VFs as the poorest PF of those it does.

    Their addresses don't depend on it; only how many of them are listed does.
    """
    reported = [n for values in variables.values() for n in (values.get("gb10_pf_totalvfs") or {}).values()]
    for host, values in variables.items():
        if reported and host not in present:
            values.setdefault("gb10_assumed_vf_count", min(reported))
