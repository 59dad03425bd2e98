# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Collect the fabric's variables and facts of all hosts on the controller. Private to the collection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from ansible.errors import AnsibleError
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding

from .._rules import Rules
from .parse import FACT_VARIABLES, K3S_VARIABLES, VARIABLES

_RULES = Rules("_fabric")


def fabric_variables(
    hosts: Iterable[str], task_vars: Mapping[str, Any]
) -> tuple[dict[str, dict[str, Any]], list[Finding]]:
    """Return ``{host: {variable: value}}`` in the planner's form, and findings about values that could not be read."""
    findings: list[Finding] = []
    variables: dict[str, dict[str, Any]] = {}
    for host in hosts:
        if host in task_vars["hostvars"]:
            variables[host] = _variables(host, task_vars["hostvars"][host], findings)
        else:
            findings.append(_RULES.finding("fabric.host.unknown", host))
    _assume_for_absent(variables, task_vars.get("ansible_play_hosts_all", []))
    return variables, findings


def _variables(host: str, hostvars: Mapping[str, Any], findings: list[Finding]) -> dict[str, Any]:
    """Return a host's fabric variables as plain data; a variable whose template fails becomes a finding."""
    facts = hostvars.get("ansible_facts") or {}
    values: dict[str, Any] = {}
    for key in VARIABLES:
        try:
            # A fact that the host reported overrides a declared value.
            value = facts.get(key) if key in FACT_VARIABLES else None
            values[key] = plain(hostvars.get(key) if value is None else value)
        except AnsibleError as error:
            findings.append(_RULES.finding("fabric.value.template/unreadable", None, host, key=key, error=error))
    for key in K3S_VARIABLES:
        # Their values may need facts, and role k3s checks them.
        with suppress(AnsibleError):
            values[key] = plain(hostvars.get(key))
    return {key: value for key, value in values.items() if value is not None}


def plain(value: Any) -> Any:
    """Convert lazily templated containers and Ansible's strings to ordinary ones, which PyYAML can write."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, str) else value


def _assume_for_absent(variables: dict[str, dict[str, Any]], present: list[str]) -> None:
    """For hosts that this run does not visit (--limit), assume the smallest number of VFs that a visited PF offers.

    Only the number of listed VFs depends on this assumption, not their addresses.
    """
    reported = [n for values in variables.values() for n in (values.get("gb10_pf_totalvfs") or {}).values() if n]
    for host, values in variables.items():
        if reported and host not in present:
            values.setdefault("gb10_assumed_vf_count", min(reported))
