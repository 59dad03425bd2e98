# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Draw the cabling of all hosts on the controller, and compare it with the inventory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import as_dicts, has_errors
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.data import Rules
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.cabling import (
    about_ports,
    check_hosts,
    draw,
    draw_svg,
    judge,
    ports_of,
    suggest,
    write_map,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.parse import fabric_variables, plain
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import plan_fabric


class ActionModule(ControllerAction):
    """Reads the facts of cabling_info and pf_info of the given hosts."""

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return picture and findings, and whether all hosts were read and are like the inventory."""
        facts = {host: task_vars["hostvars"][host].get("ansible_facts") or {} for host in plain(options["hosts"])}
        unread = [host for host, known in facts.items() if "gb10_cabling" not in known]
        ports = ports_of({host: plain(known["gb10_cabling"]) for host, known in facts.items() if host not in unread})
        variables = fabric_variables(options["hosts"], task_vars)[0]
        plan, planned = plan_fabric(variables)
        addresses = {host: plain(known["gb10_addresses"]) for host, known in facts.items() if host not in unread}
        missing = [Rules("_fabric").finding("cabling.unread", None, host) for host in unread]
        wrong = [*judge(ports, plan), *about_ports(planned), *check_hosts(plan, variables, addresses)]
        findings = [*missing, *wrong]
        fitting = suggest(ports, plan)
        # of a part of the hosts it would leave out the cables of the others
        named = {name for own in variables.values() for name in _rail_hosts(own.get("gb10_fabric_rails"))}
        matches = not has_errors(findings)
        advice = ["Variables that fit these cables:", yaml.safe_dump(fitting, sort_keys=False)]
        return {
            "changed": False,
            "matches": matches,
            "fitting": fitting,
            "drawing": draw(ports),
            "svg": draw_svg(ports),
            "map": "" if unread or named - facts.keys() else write_map(ports, plan),
            "findings": as_dicts(findings),
            "msg": "\n".join([*draw(ports), *([] if matches else advice)]),
        }


def _rail_hosts(rails: Any) -> list[str]:
    """Return the hosts that the rails of an inventory name; what has another form is a finding of the plan."""
    known = [rail.get("hosts") for rail in rails if isinstance(rail, Mapping)] if isinstance(rails, list) else []
    return [str(name) for hosts in known if isinstance(hosts, list) for name in hosts]
