# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find what the plans would refuse, together with the mistakes in single variables. Private to the collection.

A finding that only follows from a mistake which is reported already would mislead, so it is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Set
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, has_errors

from .._fabric.checks import check_mtu, check_node_ids
from .._fabric.parse import VARIABLES, parse_fabric
from .._fabric.plan import plan_fabric
from .._variables.check import meant
from .._variables.values import Known
from .options import ROLE
from .serving import plan_serving, resolve_options

# Variables of the fabric on whose values no check of another one depends
INDEPENDENT = {"gb10_fabric_mtu", "gb10_fabric_vf_count", "gb10_management_interface"}
# Findings about the values of hosts that have one, also if the value of another host is wrong
OF_OTHER_HOSTS = {"fabric.node_id.duplicate", "fabric.node_id.range", "fabric.node_id.invalid"}
# Options by which a profile is resolved, before nodes, networks and ports matter.
RESOLVING = ("profile", "preset", "profile_dirs", "overrides", "sglang_version", "image", "images_from", "platform")


def wrong_variables(known: Known, findings: Iterable[Finding]) -> set[str]:
    """Return the variables that have no usable value: those with an error, and those that a misspelt name means."""
    keys = {variable_of(finding.key) for finding in findings if finding.severity == "error"}
    names = keys | {meant(known, key) for key in keys}
    return names | {known.command_line[name]["sets"] for name in names & set(known.command_line)}


def fabric_findings(
    variables: Mapping[str, Mapping[str, Any]], wrong: Set[str]
) -> tuple[dict[str, Any] | None, list[Finding]]:
    """Return the plan of the fabric and its findings.

    With ``wrong`` variables of the fabric there is no plan, and only the findings that do not depend on them.
    """
    if wrong & set(VARIABLES) <= INDEPENDENT:
        plan, findings = plan_fabric(variables)
        return None if has_errors(findings) else plan.as_dict(), unexplained(findings, wrong)
    fabric, findings = parse_fabric(variables)
    findings += [*check_node_ids(fabric), *check_mtu(fabric)]
    return None, unexplained(findings, wrong)


def unexplained(findings: Iterable[Finding], wrong: Set[str]) -> list[Finding]:
    """Return the findings that do not follow from a ``wrong`` variable, which has a finding of its own.

    Each host has its own node id: a host whose id has a misspelt name says nothing about the ids of others.
    """
    return [f for f in findings if variable_of(f.key) not in wrong or f.rule in OF_OTHER_HOSTS]


def serving_findings(
    options: Mapping[str, Any], fabric: Mapping[str, Any] | None, wrong: Set[str], defaults: Mapping[str, Any]
) -> list[Finding]:
    """Return the findings about profile and group; with ``wrong`` those that do not depend on these variables.

    ``defaults`` are those of role serving_plan, as templates; they name the shared variables behind each option.
    """
    if not wrong.isdisjoint(_behind(RESOLVING, defaults)):
        return []
    if not wrong.isdisjoint(_behind((name.removeprefix(f"{ROLE}_") for name in defaults), defaults)):
        return resolve_options(options)[1]
    return plan_serving({**options, "fabric": fabric})[1]


def _behind(options: Iterable[str], defaults: Mapping[str, Any]) -> set[str]:
    """Return the variables that decide about options: the role's own and the shared ones in their defaults."""
    names = {f"{ROLE}_{option}" for option in options}
    return names | {shared for name in names for shared in re.findall(r"\bgb10_\w+", str(defaults.get(name)))}


def variable_of(key: str) -> str:
    """Return the variable in the key of a finding, such as gb10_fabric_rails[0].network."""
    return re.split(r"[.\[]", key.removeprefix("-e "), maxsplit=1)[0]
