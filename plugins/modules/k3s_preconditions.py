#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: k3s_preconditions
short_description: Check whether K3s can be installed on a host
version_added: 0.1.0
description:
  - Applies the rules of preflight's checklist that apply to every node, before anything is changed. The rules check
    user, cgroups, ports, default route, firewall, clock, the name of the API and earlier installations.
  - Fails with all findings at once if one of them is an error. It never changes the host.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.readonly]
options:
  role:
    description: The role that the host will have in the cluster.
    type: str
    choices: [server, agent]
    required: true
  version:
    description: The K3s release to install, such as V(v1.36.4+k3s1).
    type: str
    required: true
  kubelet_args:
    description: Arguments of the kubelet, each as V(key=value). They override the thresholds that the module computes.
    type: list
    elements: str
    default: []
  data_dir:
    description: K3s's data directory. The kubelet's eviction thresholds are computed from the size of its disk.
    type: path
    default: /var/lib/rancher/k3s
  embedded_etcd:
    description: Whether the servers store their state in the embedded etcd, which needs two more ports.
    type: bool
    default: false
  api_host:
    description: Name or address at which nodes reach the API.
    type: str
    default: ""
  controller_time:
    description: Seconds since 1970 on the controller, just before the task. If omitted, the clocks are not compared.
    type: float
  upgrading:
    description: Whether replacing another installed version is intended.
    type: bool
    default: false
  severities:
    description: Rule names with the severity to use instead of the usual, V(error), V(warning), V(info) or V(off).
    type: dict
    default: {}
  binary:
    description: Path at which an installed K3s is expected.
    type: path
    default: /usr/local/bin/k3s
"""

EXAMPLES = r"""
- name: Check the host
  gb10.cluster.k3s_preconditions:
    role: agent
    version: v1.36.4+k3s1
"""

RETURN = r"""
findings:
  description: All findings, errors first; each with C(severity), C(rule), C(key), C(value), C(reason) and C(remedy).
  returned: always
  type: list
  elements: dict
kubelet_args:
  description: Arguments of the kubelet, with thresholds for eviction and image deletion that suit the disk.
  returned: always
  type: list
  elements: str
installed:
  description: Whether this collection has installed K3s on the host.
  returned: always
  type: bool
installed_version:
  description: The installed release, or an empty string.
  returned: always
  type: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import (
    format_findings,
    has_errors,
    sort_findings,
)
from ansible_collections.gb10.cluster.plugins.module_utils._k3s import eviction
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.checklist import check_node
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.commands import runner
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.facts import Roots, read_host
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.rule import Host, weigh_findings


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "role": {"type": "str", "required": True, "choices": ["server", "agent"]},
            "version": {"type": "str", "required": True},
            "kubelet_args": {"type": "list", "elements": "str", "default": []},
            "data_dir": {"type": "path", "default": "/var/lib/rancher/k3s"},
            "embedded_etcd": {"type": "bool", "default": False},
            "api_host": {"type": "str", "default": ""},
            "controller_time": {"type": "float"},
            "upgrading": {"type": "bool", "default": False},
            "severities": {"type": "dict", "default": {}},
            "binary": {"type": "path", "default": "/usr/local/bin/k3s"},
        },
        supports_check_mode=True,
    )
    options = module.params
    facts = read_host(Roots(), [options["data_dir"]], runner(module), options["controller_time"], options["binary"])
    host = Host(
        name="",
        facts=facts,
        server=options["role"] == "server",
        embedded_etcd=options["role"] == "server" and options["embedded_etcd"],
        version=options["version"],
        upgrading=options["upgrading"],
        kubelet_args=tuple(options["kubelet_args"]),
        api_host=options["api_host"],
    )
    installed = any(facts["kubernetes"]["units"].values())
    result: dict[str, Any] = {
        "changed": False,
        "installed": installed,
        "kubelet_args": eviction.kubelet_args(int(facts["disks"][0]["total_gib"] * 2**30), options["kubelet_args"]),
        "installed_version": facts["kubernetes"]["version"],
    }
    findings = sort_findings(weigh_findings(check_node(host), options["severities"]))
    result["findings"] = [finding.as_dict() for finding in findings]
    result["msg"] = format_findings(findings) or "K3s can be installed here."
    if has_errors(findings):
        module.fail_json(**result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
