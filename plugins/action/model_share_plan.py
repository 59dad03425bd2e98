# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan on the controller which node downloads which files of models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import has_errors
from ansible_collections.gb10.cluster.plugins.module_utils._models.fetch import STORAGE_SPEC, FetchError, Hub
from ansible_collections.gb10.cluster.plugins.module_utils._models.store import parse_listing
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction, plan_result
from ansible_collections.gb10.cluster.plugins.plugin_utils._models.plan import Listing, Stock, plan_share

# As long as a node waits for the hub; without an answer, the nodes that read a list must agree.
TIMEOUT = 15
SKIP = STORAGE_SPEC["skip"]["default"]


def read_listings(options: Mapping[str, Any]) -> dict[str, Listing]:
    """Return the lists of files that the controller reads from the hub, without those that it can't read."""
    found: dict[str, Listing] = {}
    for model in options.get("models") or []:
        try:
            text = Hub(options["url"], options["token"], TIMEOUT).listing(model["repo"], model["revision"])
            commit, files = parse_listing(text, SKIP)
        except (OSError, ValueError, FetchError):
            continue
        found[model["repo"]] = Listing(commit, tuple(files))
    return found


def stock_of(name: str, value: Any) -> Stock:
    """Return what a node says that it has. Raise AnsibleActionFail, with its name, if that can't be."""
    try:
        stock = Stock.of(name, value)
        stock.check()
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise AnsibleActionFail(
            f"{name} reports an impossible stock of models: {ascii(str(error))[:300]}; nothing was fetched. Find out "
            "who changed this node, or leave it out."
        ) from None
    return stock


class ActionModule(ControllerAction):
    """Joins what model_stock_info read on every node."""

    ROLE = "models"

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return the plan; if a finding is an error, fail and return only the message."""
        stocks = [stock_of(name, value) for name, value in options["nodes"].items()]
        if len({frozenset(stock.models) for stock in stocks}) > 1:
            raise AnsibleActionFail("The nodes report different models; nothing was fetched. Run it again.")
        plan, findings = plan_share(stocks, options["share"], read_listings(options))
        failed = has_errors(findings)
        result = plan_result(
            "The transfer of the models", failed, findings, {}, "The transfer of the models is planned."
        )
        if failed:
            return {**result, "needed": False}
        nodes = {name: asdict(node) for name, node in plan.nodes.items()}
        return {**result, "needed": plan.needed, "rounds": plan.rounds, "nodes": nodes, "table": plan.table}
