# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the inventory on the controller, before any host is touched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError, AnsibleParserError
from ansible.utils.vars import load_extra_vars
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import format_findings, has_errors
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction
from ansible_collections.gb10.cluster.plugins.plugin_utils._variables.check import (
    check_groups,
    check_provider,
    check_variables,
    needed_groups,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._variables.known import Known, load_known

GROUPS = ("gb10_cluster", "gb10_servers", "gb10_nodes")


class ActionModule(ControllerAction):
    """Reads the variables of all hosts in the cluster's groups; the roles check values that need facts."""

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return all findings; failed if one is an error."""
        known = load_known()
        groups = task_vars["groups"]
        hosts = {host: None for group in GROUPS for host in groups.get(group, [])}
        extra = load_extra_vars(self._loader)
        variables = _variables(known, hosts, task_vars["hostvars"])
        findings = check_groups(groups, needed_groups(variables, options["groups"]))
        findings += check_variables(known, variables, extra)
        findings += check_provider(variables, options["provider"])
        failed = has_errors(findings)
        return {
            "changed": False,
            "failed": failed,
            "findings": [finding.as_dict() for finding in findings],
            "warnings": [] if failed else [str(finding) for finding in findings],
            "msg": f"Nothing was changed.\n{format_findings(findings)}" if failed else "The inventory can be used.",
        }


def _variables(known: Known, hosts: Iterable[str], hostvars: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return ``{host: {name: value}}`` of the collection's variables; values that cannot be evaluated yet are None."""
    found: dict[str, dict[str, Any]] = {}
    for host in hosts:
        values = _read(hostvars, host)
        names = [name for name in values if name in known.command_line or known.owner(name)]
        found[host] = {name: _value(values, name) for name in names}
    return found


def _read(hostvars: Mapping[str, Any], host: str) -> Mapping[str, Any]:
    """Return the variables of a host. Raise AnsibleActionFail with the file and line that can't be read."""
    try:
        values: Mapping[str, Any] = hostvars[host]
    except AnsibleParserError as error:
        # Ansible's own message has no place; the error from which it was made has one.
        place = getattr(error.__context__, "obj", None) or f"variables of {host}"
        raise AnsibleActionFail(f"{place}: {error.message} Nothing was changed. Correct this file.") from None
    return values


def _value(variables: Mapping[str, Any], name: str) -> Any:
    try:
        return variables[name]
    except AnsibleError:
        return None
