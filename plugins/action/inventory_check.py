# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the inventory on the controller, before any host is touched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError, AnsibleParserError
from ansible.utils.vars import load_extra_vars
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import format_findings, has_errors
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction
from ansible_collections.gb10.cluster.plugins.plugin_utils._variables.check import (
    check_files,
    check_groups,
    check_provider,
    check_variables,
    needed_groups,
    unreadable,
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
        directories = {str(task_vars["hostvars"][host].get("inventory_dir") or "") for host in hosts} - {""}
        findings += check_files(_files(directories), groups, task_vars["hostvars"])
        failed = has_errors(findings)
        return {
            "changed": False,
            "failed": failed,
            "findings": [finding.as_dict() for finding in findings],
            "warnings": [] if failed else [str(finding) for finding in findings],
            "msg": f"Nothing was changed.\n{format_findings(findings)}" if failed else "The inventory can be used.",
        }


def _variables(known: Known, hosts: Iterable[str], hostvars: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return ``{host: {name: value}}`` of the collection's variables; values that need facts are None."""
    found: dict[str, dict[str, Any]] = {}
    for host in hosts:
        values = _read(hostvars, host)
        names = [name for name in values if name in known.command_line or known.owner(name)]
        found[host] = {name: _value(known, values, name) for name in names}
    return found


def _files(directories: Iterable[str]) -> Iterator[str]:
    """Yield the files and directories of group_vars and host_vars as ``group_vars/NAME``."""
    for directory in sorted(directories):
        for kind in ("group_vars", "host_vars"):
            for path in sorted((Path(directory) / kind).glob("[!.]*")):
                if path.is_dir() or path.suffix in ("", ".yml", ".yaml", ".json"):
                    yield f"{kind}/{path.stem if path.is_file() else path.name}"


def _read(hostvars: Mapping[str, Any], host: str) -> Mapping[str, Any]:
    """Return the variables of a host. Raise AnsibleActionFail with the file and line that can't be read."""
    try:
        values: Mapping[str, Any] = hostvars[host]
    except AnsibleParserError as error:
        # Ansible's own message has no place; the error from which it was made has one.
        place = getattr(error.__context__, "obj", None)
        # The content of a file that is encrypted comes as bytes.
        shown = f"variables of {host}" if place is None or isinstance(place, bytes) else place
        remedy = "Add --ask-vault-pass (-J)." if "vault" in error.message else "Correct this file."
        raise AnsibleActionFail(f"{shown}: {error.message} Nothing was changed. {remedy}") from None
    return values


def _value(known: Known, variables: Mapping[str, Any], name: str) -> Any:
    try:
        return variables[name]
    except AnsibleError as error:
        return unreadable(known, str(error))
