# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge what an update would do to the hosts of the play, and say it before anything changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import has_errors
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction, shown
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.parse import plain
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.host import shape_facts
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.update import (
    Node,
    begins,
    check_nodes,
    describe,
    find_groups,
    read_observed,
)


class ActionModule(ControllerAction):
    """Plans the updates of the play's hosts, one after another."""

    ROLE = "update"

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return the plan and the findings; failed if one of them is an error."""
        nodes = [_node(name, task_vars["hostvars"][name]) for name in task_vars["ansible_play_hosts"]]
        groups = find_groups(plain(options["pods"]), nodes)
        findings = check_nodes(nodes, groups, options["severities"])
        order = [f"{number}. {line}" for number, line in enumerate(describe(nodes, groups, options["proof"]), start=1)]
        failed = has_errors(findings)
        text = "\n".join([*(order or ["Nothing to update."]), *filter(None, [shown(findings)])])
        return {
            "changed": False,
            "failed": failed,
            "findings": [finding.as_dict() for finding in findings],
            "hosts": [node.host for node in nodes if node.seen and node.seen.due],
            "groups": list(groups),
            "begins": begins(nodes),
            "msg": "The update was refused; nothing was changed." if failed else text,
        }


def _node(name: str, variables: Mapping[str, Any]) -> Node:
    raw = (variables.get("ansible_facts") or {}).get("gb10_preflight")
    facts = None if raw is None else shape_facts(plain(raw))[0]
    readable = facts and {**facts, "arguments": (facts["command_line"] or "").split()}
    found = (variables.get("update_read") or {}).get("found")
    return Node(name, str(variables.get("k3s_node_name") or name), readable, read_observed(plain(found)))
