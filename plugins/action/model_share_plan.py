# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan on the controller which node downloads which files of models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import has_errors
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction, plan_result
from ansible_collections.gb10.cluster.plugins.plugin_utils._weights.plan import Stock, plan_share


class ActionModule(ControllerAction):
    """Joins what model_stock_info read on every node."""

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return the plan; if a finding is an error, fail and return only the message."""
        stocks = [Stock.of(name, value) for name, value in options["nodes"].items()]
        plan, findings = plan_share(stocks, options["share"])
        failed = has_errors(findings)
        result = plan_result(
            "The transfer of the models", failed, findings, {}, "The transfer of the models is planned."
        )
        if failed:
            return {**result, "needed": False}
        nodes = {name: asdict(node) for name, node in plan.nodes.items()}
        return {**result, "needed": plan.needed, "nodes": nodes, "table": plan.table}
