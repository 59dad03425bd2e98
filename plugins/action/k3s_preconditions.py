# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import (
    has_errors,
    sort_findings,
)
from ansible_collections.gb10.cluster.plugins.module_utils._host import k3s
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import ControllerAction, shown
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.host import Host, shape_facts
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.report import check_node, weigh_findings


class ActionModule(ControllerAction):
    """Reads the host with ``preflight_info`` and applies the rules for every node on the controller."""

    _requires_connection = True

    def act(self, options: Mapping[str, Any], task_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return the findings and the state of the host; failed if one is an error or the host can't be read."""
        facts: Any = options["facts"]
        if [disk["path"] for disk in shape_facts(facts)[0]["disks"]][:1] != [options["data_dir"]]:
            asked: dict[str, Any] = {"paths": [options["data_dir"]], "k3s_binary": options["binary"]}
            if options["controller_time"] is not None:
                asked["controller_time"] = options["controller_time"]
            read: dict[str, Any] = self._execute_module("gb10.cluster.preflight_info", asked, task_vars=dict(task_vars))
            if "ansible_facts" not in read:
                return {"failed": True, **read}
            facts = read["ansible_facts"]["gb10_preflight"]
        facts, misread = shape_facts(facts)
        host = Host(
            misread=misread,
            embedded_registry=options["embedded_registry"],
            name=task_vars["inventory_hostname"],
            facts=facts,
            server=options["role"] == "server",
            embedded_etcd=options["role"] == "server" and options["embedded_etcd"],
            version=options["version"],
            upgrading=options["upgrading"],
            kubelet_args=tuple(options["kubelet_args"]),
            api_host=options["api_host"],
            k3s=options["settings"],
        )
        findings = sort_findings(weigh_findings(check_node(host), options["severities"]))
        failed = has_errors(findings)
        size = facts["disks"][0]["total_gib"] if facts["disks"] else None
        text = shown(findings) or "K3s can be installed here."
        return {
            "changed": False,
            "failed": failed,
            "findings": [finding.as_dict() for finding in findings],
            "installed": any(facts["kubernetes"]["units"].values()),
            "started": facts["kubernetes"]["kubeconfig"],
            "installed_version": facts["kubernetes"]["version"],
            # Named as by setup, which the plays of K3s then need not run.
            "ansible_facts": {"architecture": facts["arch"]},
            "addresses": facts["addresses"],
            # Without the size of the disk of K3s's data, they are the given ones alone.
            "kubelet_args": k3s.kubelet_args(int(size * 2**30), options["kubelet_args"])
            if size
            else options["kubelet_args"],
            "msg": f"{host.name} can't run K3s, which was not changed." if failed else text,
        }
