# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the facts of all hosts on the controller, and write one report."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, has_errors
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction, width
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.options import from_options
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.cabling import moved, ports_of
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.inventory import Refused, reported
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.model import Plan
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.parse import fabric_variables, plain
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.plan import plan_fabric
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.host import Host, Needs, Settings, shape_facts
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.node_rules import wanted_settings
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.report import (
    check_hosts,
    describe_hosts,
    format_report,
    make_finding,
    severities_for,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.options import find_needs, serving_options


class ActionModule(ControllerAction):
    """Plans the fabric, compares the facts of the play's hosts with the plan, and reports both."""

    ROLE = "preflight"

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return the findings and the report; failed if a finding is an error, unless told otherwise (``refuse``)."""
        variables, planning = fabric_variables(options["nodes"], task_vars)
        plan, found = plan_fabric(variables)
        settings = from_options(Settings, options)
        needs = _needs(self._loader, options["nodes"], task_vars["hostvars"])
        kubeconfig = Path(options["kubeconfig"]).absolute()
        if not _can_replace(kubeconfig):
            planning.append(make_finding("preflight.controller.kubeconfig", "", {"value": str(kubeconfig)}))
        names = task_vars["ansible_play_hosts_all"]
        # A task outside of the role need not name the servers.
        servers = options["servers"] or ()
        hosts = [replace(_host(name, task_vars, plan, servers, settings), needs=needs) for name in names]
        others = [*planning, *found, *_moved_cables(options["neighbours"], names, task_vars["hostvars"], plan)]
        findings = check_hosts(hosts, severities_for(options["provider"], options["severities"]), others)
        report = format_report(hosts, findings, width())
        if options["doctor"]:
            file = Path(options["doctor"]).absolute()
            file.write_text(describe_hosts(hosts, findings), encoding="utf-8")
            report += f"\n{file} has the facts of all hosts without names, addresses and serial numbers."
        failed = has_errors(findings) and options["refuse"] and not options["doctor"]
        told = [{**one.as_dict(), "layer": one.rule.split(".")[1]} for one in findings]
        return {
            "changed": False,
            "failed": failed,
            "findings": told,
        } | (
            # Ansible keeps no facts of a failed task, and prints them.
            {"msg": "Not ready; nothing was changed.", "report": report}
            if failed
            else {"msg": report, "ansible_facts": {"gb10_preflight_findings": told}}
        )


def _needs(loader: Any, nodes: Sequence[str], hostvars: Mapping[str, Any]) -> Needs | None:
    """Return what the group needs that playbook serve would plan now; None if that is not known."""
    if not nodes:
        return None
    own = {}
    for name in hostvars[nodes[0]]:
        if name.startswith(("serving_plan_", "gb10_")):
            # The check of the inventory reports a value that cannot be read.
            with suppress(AnsibleError):
                own[name] = plain(hostvars[nodes[0]][name])
    try:
        return find_needs({**serving_options(loader, own), "candidates": list(nodes)})
    except AnsibleActionFail:
        return None


def _moved_cables(register: str, names: Sequence[str], hostvars: Mapping[str, Any], plan: Plan) -> Iterator[Finding]:
    seen = {}
    for name in names:
        # Not the fact, which a fact cache may have kept from a run in which the cables were others.
        told = plain(hostvars[name].get(register) or {}) if register else {}
        try:
            seen[name] = reported(name, told.get("ansible_facts") or {})["gb10_cabling"]
        except Refused:
            yield make_finding("preflight.facts.shape", name, {"value": "gb10_cabling"})
    yield from moved(ports_of(seen), plan)


def _can_replace(path: Path) -> bool:
    """Tell whether the user may read the file and write one in its place, also where its directory is not made yet."""
    there = next(each for each in path.parents if os.access(each, os.F_OK))
    readable = os.access(path, os.R_OK) or not os.access(path, os.F_OK)
    return readable and there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _host(name: str, task_vars: Mapping[str, Any], plan: Plan, servers: Sequence[str], settings: Settings) -> Host:
    hostvars = task_vars["hostvars"]
    mine, first = hostvars[name], hostvars[servers[0]] if servers else {}
    read = mine.get("ansible_facts") or {}
    facts = read.get("gb10_preflight")
    planned = plan.hosts.get(name)
    mine_rails = {pf.rail for pf in planned.pfs} if planned else set()
    shaped, misread = (None, []) if facts is None else shape_facts(plain(facts))
    return Host(
        name=name,
        facts=shaped,
        misread=misread,
        server=name in servers,
        embedded_etcd=name in servers and len(servers) > 1,
        embedded_registry=boolean(mine.get("k3s_embedded_registry") or False),
        version=mine.get("k3s_version") or "",
        kubelet_args=tuple(mine.get("k3s_kubelet_args") or ()),
        # The same default as in role k3s: its option, otherwise the address or name of the first server.
        api_host=mine.get("k3s_api_host") or first.get("ansible_host") or "".join(servers[:1]),
        k3s=wanted_settings(mine),
        management_interface=mine.get("gb10_management_interface"),
        pfs=tuple(pf.name for pf in planned.pfs) if planned else (),
        rails={pf.name: pf.rail for pf in planned.pfs} if planned else {},
        vfs={vf.netdev: vf.mac for vf in planned.vfs} if planned else {},
        networks={rail.name: rail.network for rail in plan.rails if rail.name in mine_rails},
        mtu=plan.mtu,
        share_port=mine.get("models_share_port") or Host.share_port,
        settings=settings,
        unread=plain(read.get("gb10_preflight_unread") or {}),
    )
