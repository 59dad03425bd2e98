# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Combine all rules of preflight, and apply them to one host.

The rules for every node are in module_utils/_preflight/checklist.py, because role k3s applies them on the host too.
An unknown fact never counts as good.
"""

from __future__ import annotations

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.checklist import (
    NODE_RULES,
    PRIVILEGES,
    check_node,
)
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.rule import Host, Rule, apply_rules

from .node_rules import GPU_NODE_RULES
from .port_rules import PORT_RULES

UNREAD = Rule(
    "preflight.host.unread",
    "error",
    "host",
    "the host could not be read in this run, so nothing is known of it",
    "See its error above.",
)
UNKNOWN_RULE = Rule(
    "preflight.settings.unknown_rule", "error", "preflight_severities", "there is no such {what}", "Use one of {known}."
)
# Ranks on different kernels, drivers or firmware hang in ways that are hard to diagnose.
BETWEEN_HOSTS = tuple(
    Rule(name, "warning", key, f"the hosts have different versions of their {key}", "Bring all hosts to one version.")
    for name, key in (
        ("preflight.os.kernel_differs", "kernel"),
        ("preflight.gpu.driver_differs", "NVIDIA driver"),
        ("preflight.firmware.differs", "NIC firmware"),
    )
)
RULES = {
    rule.name: rule.severity
    for rule in (PRIVILEGES, *NODE_RULES, *GPU_NODE_RULES, *PORT_RULES, UNREAD, UNKNOWN_RULE, *BETWEEN_HOSTS)
}


def check_host(host: Host) -> list[Finding]:
    """Return all findings about one host."""
    if host.facts is None:
        return [UNREAD.finding(host.name, {"value": None, "key": host.name})]
    found = check_node(host)
    unprivileged = any(one.rule == PRIVILEGES.name for one in found)
    return found if unprivileged or not host.pfs else [*found, *apply_rules((*GPU_NODE_RULES, *PORT_RULES), host)]
