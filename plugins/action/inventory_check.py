# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the inventory on the controller, before any host is touched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ansible import context
from ansible.constants import config
from ansible.errors import AnsibleActionFail, AnsibleError, AnsibleParserError
from ansible.template import Templar
from ansible.utils.vars import load_extra_vars
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, has_errors
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction, shown_warnings
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.command import (
    has_password,
    place_of,
    tags_of_run,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.data import ROLES, Rules
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.checks import USUAL_VFS
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.parse import fabric_variables
from ansible_collections.gb10.cluster.plugins.plugin_utils._inventory.files import (
    check_files,
    check_passwords,
    check_places,
    check_sources,
    check_text,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._inventory.variables import (
    CLUSTER,
    FOREIGN,
    GROUPS,
    NODES,
    SPECIAL_TAGS,
    Empty,
    HostVariables,
    Known,
    check_groups,
    check_guards,
    check_node_names,
    check_ports,
    check_provider,
    check_servers,
    check_strategy,
    check_tags,
    check_variables,
    load_known,
    needed_groups,
    unreadable,
    usable,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.options import (
    ROLE,
    fabric_findings,
    serving_defaults,
    serving_findings,
    serving_options,
    unexplained,
    variable_of,
    wrong_variables,
)

# A variable that every host sets itself has many places.
PLACES = 3
TAG_OPTIONS = {"--tags": "ansible_run_tags", "--skip-tags": "ansible_skip_tags"}


class ActionModule(ControllerAction):
    """Reads the variables of all hosts in the cluster's groups. The stages of site leave the check of values to it."""

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return all findings; failed if one is an error, or if a host failed in an earlier playbook of the run."""
        # Ansible goes on with the others, so Multus could fail on one host and the model be served on the other ones.
        lost = [host for host in task_vars["ansible_play_hosts_all"] if host not in task_vars["ansible_play_hosts"]]
        if lost:
            found = Rules("_inventory").finding("run.lost", None, key=", ".join(lost))
            return {"changed": False, "failed": True, "msg": str(found)}
        later = options["earlier"].get("later")
        if later == {}:
            # An earlier stage has checked every value.
            return _result([], {})
        known = load_known()
        if later:
            return self._later(known, later, task_vars["hostvars"])
        groups = task_vars["groups"]
        hosts = {host: None for group in GROUPS for host in groups.get(group, [])}
        extra = load_extra_vars(self._loader)
        sources = context.CLIARGS.get("inventory") or ()
        unread = check_sources(sources) or check_text(sources, password=has_password())
        if unread:
            return _result(unread, {})
        try:
            variables = self._variables(known, hosts, task_vars["hostvars"])
        except AnsibleActionFail:
            # A file of another group may have another password, and is not read.
            if has_password() and (unread := check_passwords(sources, self._loader.load_from_file)):
                return _result(unread, {})
            raise
        findings = check_groups(groups, needed_groups(variables, options["groups"]))
        # A host without a group may be one of a group with a misspelt name.
        findings = findings or check_servers(variables, groups)
        findings += check_variables(known, variables, extra)
        findings += check_ports(known, variables)
        findings += check_guards(known, variables)
        findings += check_provider(variables, options["provider"])
        findings += check_node_names(variables, groups.get(NODES, []) if "serving" in options["plans"] else [])
        directories = {str(task_vars["hostvars"][host].get("inventory_dir") or "") for host in hosts} - {""}
        unread = check_files(map(Path, sorted(directories)), {*groups, *GROUPS}, task_vars["hostvars"])
        unread += check_places(map(Path, sorted(directories)), groups, Path.cwd())
        findings += unread
        findings += _tags(task_vars)
        findings += check_strategy(*config.get_config_value_and_origin("DEFAULT_STRATEGY"))
        # Without the variables of an unread file or group, the plans would only report what follows from it.
        if options["plans"] and groups.get(NODES) and groups.get(CLUSTER) and not has_errors(unread):
            told = {(f.key, f.where) for f in findings}
            planned = self._plans(options["plans"], wrong_variables(known, findings), variables, task_vars)
            findings += [f for f in planned if (f.key, f.where) not in told]
        return _result(_placed(findings, task_vars["hostvars"], variables), _open(known, variables))

    def _later(self, known: Known, later: Mapping[str, list[str]], hostvars: Mapping[str, Any]) -> dict[str, Any]:
        """Check the values that needed facts in an earlier playbook of the run."""
        values = {
            host: {name: self._value(known, hostvars, host, name, hostvars[host]) for name in names}
            for host, names in later.items()
        }
        return _result(_placed(check_variables(known, values, {}), hostvars, values), _open(known, values))

    def _variables(self, known: Known, hosts: Iterable[str], hostvars: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Return ``{host: {name: value}}`` of the collection's variables; values that need facts are None."""
        found: dict[str, dict[str, Any]] = {}
        for host in hosts:
            variables = _read(hostvars, host)
            names = [
                n
                for n in variables
                if n in known.command_line or n in FOREIGN or known.owner(n) or n.startswith("ansible_")
            ]
            found[host] = {name: self._value(known, hostvars, host, name, variables) for name in names}
        return found

    def _value(
        self, known: Known, hostvars: Mapping[str, Any], host: str, name: str, variables: Mapping[str, Any]
    ) -> Any:
        """Return one of the variables of a host: ``hostvars[host]``, which Ansible merges anew for each reader."""
        try:
            value = variables[name]
            return Empty() if value is None else value
        except AnsibleError as error:
            if wrong := unreadable(known, str(error)):
                return wrong
        # A template may also use defaults of roles, which hostvars lacks.
        own = hostvars.raw_get(host)  # type: ignore[attr-defined]
        every = {"hostvars": hostvars, **self._defaults, **own}
        try:
            return Templar(self._loader, every).template(own[name])
        except AnsibleError:
            return None

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        defaults: dict[str, Any] = {}
        for path in sorted(ROLES.glob("*/defaults/main.yml")):
            defaults |= self._loader.load_from_file(str(path), trusted_as_template=True) or {}
        return defaults

    def _plans(
        self,
        plans: Iterable[str],
        wrong: Set[str],
        variables: HostVariables,
        task_vars: Mapping[str, Any],
    ) -> list[Finding]:
        """Return the errors of the plans, without those of ``wrong`` variables. Warnings come with the plans."""
        nodes = task_vars["groups"][NODES]
        options: dict[str, Any] = {"vf_index": 0}
        if "serving" in plans:
            own = {name: value for name, value in variables[nodes[0]].items() if usable(value)}
            options = serving_options(self._loader, own, wrong)
        found: list[Finding] = []
        fabric = None
        # With networks that somebody else made, no VF of this collection is used.
        if not options.get("networks"):
            given, found = fabric_variables(nodes, task_vars)
            for values in given.values():
                values.setdefault("gb10_assumed_vf_count", max(USUAL_VFS, options["vf_index"] + 1))
            fabric, more = fabric_findings(given, wrong)
            found += more
        if "serving" in plans:
            found += serving_findings(
                {**options, "candidates": nodes, "taken": []}, fabric, wrong, serving_defaults(self._loader)
            )
        return [f for f in unexplained(found, wrong) if f.severity == "error"]


def _open(known: Known, variables: HostVariables) -> dict[str, list[str]]:
    """Return the names of the roles' variables whose values are not known yet, by host."""
    names = {
        host: [n for n, value in values.items() if value is None and known.owner(n)]
        for host, values in variables.items()
    }
    return {host: found for host, found in names.items() if found}


def _result(findings: list[Finding], later: Mapping[str, list[str]]) -> dict[str, Any]:
    failed = has_errors(findings)
    return {
        "changed": False,
        "failed": failed,
        **({} if failed else {"later": later}),
        "findings": [finding.as_dict() for finding in findings],
        "warnings": [] if failed else shown_warnings(findings),
        "msg": "Nothing was changed." if failed else "The inventory can be used.",
    }


def _placed(findings: Iterable[Finding], hostvars: Any, every: Iterable[str]) -> list[Finding]:
    """Return the findings with the file and line in which the variable was set that each is about.

    A finding without a host is about ``every`` host of the cluster. The variables of others may be unreadable.
    """
    found = []
    short = {spec["sets"]: name for name, spec in load_known().command_line.items()}
    for finding in findings:
        name = variable_of(finding.key).removeprefix("-e ")
        hosts = [host for host in finding.where.split(", ") if host in hostvars] or list(every)
        known = [hostvars.raw_get(host) for host in hosts]
        # The plan names its options without the prefix of the role, such as preset, and the command line has names of
        # its own. A finding about an entry of a variable has the variable's name as its place.
        names = [short.get(name, ""), name, f"{ROLE}_{name}", finding.where]
        name = next((one for one in names if any(one in values for values in known)), "")
        places = dict.fromkeys(filter(None, (place_of(name, values) for values in known)))
        found.append(replace(finding, place=", ".join(list(places)[:PLACES])))
    return found


def _tags(task_vars: Mapping[str, Any]) -> list[Finding]:
    asked = {option: task_vars.get(name) or [] for option, name in TAG_OPTIONS.items()}
    if not any(set(tags) - set(SPECIAL_TAGS) for tags in asked.values()):
        return []
    known = tags_of_run()
    return [] if known is None else check_tags(asked, known)


def _read(hostvars: Mapping[str, Any], host: str) -> Mapping[str, Any]:
    """Return the variables of a host. Raise AnsibleActionFail with the file and line that can't be read."""
    try:
        values: Mapping[str, Any] = hostvars[host]
    except AnsibleParserError as error:
        # Ansible's own message has no place; the error from which it was made has one.
        place = getattr(error.__context__, "obj", None)
        # The content of a file that is encrypted comes as bytes.
        shown = f"variables of {host}" if place is None or isinstance(place, bytes) else place
        password = "Give the password with which it was encrypted." if has_password() else "Add --ask-vault-pass (-J)."
        remedy = password if "vault" in error.message else "Correct this file."
        raise AnsibleActionFail(f"{shown}: {error.message} Nothing was changed. {remedy}") from None
    return values
