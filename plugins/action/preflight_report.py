# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge what all hosts said of themselves, on the controller, in one report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import has_errors
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.model import Plan
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import plan_fabric
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.variables import fabric_variables, plain
from ansible_collections.gb10.cluster.plugins.plugin_utils._preflight.report import format_report, judge
from ansible_collections.gb10.cluster.plugins.plugin_utils._preflight.rules import Settings, Subject


class ActionModule(ControllerAction):
    """Plans the fabric, judges the facts of the play's hosts against it, and reports both."""

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return the findings and the report; failed when a finding is an error."""
        variables, planning = fabric_variables(options["nodes"], task_vars)
        plan, found = plan_fabric(variables)
        subjects = [_subject(host, task_vars, plan, options) for host in task_vars["ansible_play_hosts_all"]]
        settings = Settings(
            min_free_gib=options["min_free_gib"],
            min_rate_gbps=options["min_rate_gbps"],
            min_pcie_gbps=options["min_pcie_gbps"],
            rdma_mode=options["rdma_mode"],
            severities=options["severities"],
        )
        findings = judge(subjects, settings, [*planning, *found])
        report = format_report(subjects, findings)
        failed = has_errors(findings)
        return {
            "changed": False,
            "failed": failed,
            "findings": [{**one.as_dict(), "layer": one.rule.split(".")[1]} for one in findings],
            "msg": f"Not ready; nothing was changed.\n{report}" if failed else report,
        }


def _subject(host: str, task_vars: Mapping[str, Any], plan: Plan, options: Mapping[str, Any]) -> Subject:
    hostvars = task_vars["hostvars"][host]
    facts = (hostvars.get("ansible_facts") or {}).get("gb10_preflight")
    planned = plan.hosts.get(host)
    return Subject(
        name=host,
        facts=None if facts is None else plain(facts),
        pfs=tuple(pf.name for pf in planned.pfs) if planned else (),
        vfs={vf.netdev: vf.mac for vf in planned.vfs} if planned else {},
        mtu=plan.mtu,
        server=host in options["servers"],
        management_interface=hostvars.get("gb10_management_interface"),
    )
