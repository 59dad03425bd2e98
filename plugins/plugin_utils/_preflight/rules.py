# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply the rules of preflight to one host. Their sentences are data: rules.yml.

An unknown fact never counts as good.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import cast

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, Severity

from .._combinations.known import find_known
from .._rules import Rules
from .contact import explain
from .gpu_rules import GPU_NODE_RULES
from .host import Fault, Find, Host
from .node_rules import NODE_RULES, PRIVILEGES, SHAPE
from .port_rules import PORT_RULES

SEVERITIES = ("error", "warning", "info", "off")
RULES = Rules("_preflight", "preflight")


def severities_for(provider: str, severities: Mapping[str, str]) -> dict[str, str]:
    """Return the user's severities, and ``off`` for all rules that are only about other providers of Kubernetes."""
    others = {name: "off" for name, rule in RULES.all.items() if rule.provider not in ("", provider)}
    return {**others, **severities}


def make_finding(name: str, where: str, fault: Fault) -> Finding:
    return RULES.finding(name, fault["value"], where, **fault)


def _apply(rules: Mapping[str, Find], host: Host) -> list[Finding]:
    return [make_finding(name, host.name, fault) for name, find in rules.items() for fault in find(host)]


def check_node(host: Host) -> list[Finding]:
    """Return the findings of the rules for every node about a host that was read.

    If an unprivileged user read the host, the facts are incomplete. The only finding is then the missing privilege.
    """
    return [*_apply(SHAPE, host), *(_apply(PRIVILEGES, host) or _apply(NODE_RULES, host))]


def check_host(host: Host) -> list[Finding]:
    if host.facts is None:
        rule, fault = explain(host.unread)
        return [make_finding(rule, host.name, fault)]
    found = check_node(host)
    unprivileged = any(one.rule in PRIVILEGES for one in found)
    if unprivileged or not host.pfs:
        return found
    known = find_known("preflight", host.readable, host.name)
    return [*found, *_apply({**GPU_NODE_RULES, **PORT_RULES}, host), *known]


def weigh_findings(findings: Iterable[Finding], severities: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the findings with the severities that the user set for their rules, and omit those that are ``off``."""
    for one in findings:
        severity = severities.get(one.rule, one.severity)
        if severity in ("error", "warning", "info"):
            yield replace(one, severity=cast(Severity, severity))
        elif severity != "off":
            yield one
