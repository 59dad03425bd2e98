#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: k3s_upgrade_plan
short_description: Plan the order of a K3s upgrade
version_added: 0.1.0
description:
  - Reads from the cluster which model groups run, and the marks that an interrupted upgrade left.
  - Orders servers before agents, stops the model group before the first node and starts it after the last, and omits
    the steps that an interrupted run has already done.
  - Fails with all findings at once if a node would skip a minor release or be downgraded.
author: The gb10.cluster authors (@gb10)
requirements:
  - kubernetes
extends_documentation_fragment: [gb10.cluster.cluster, gb10.cluster.readonly]
options:
  namespace:
    description: Namespace of the model groups.
    type: str
    required: true
  version:
    description: The release to upgrade to.
    type: str
    required: true
  nodes:
    description: The present state of the hosts.
    type: list
    elements: dict
    required: true
    suboptions:
      host:
        description: Name of the host.
        type: str
        required: true
      node:
        description: Name of its node in the cluster.
        type: str
        required: true
      server:
        description: Whether the host runs the control plane.
        type: bool
        required: true
      installed:
        description: Version of the host's K3s binary; empty if K3s is not installed.
        type: str
        required: true
      stale:
        description: Whether the host's service still runs older files.
        type: bool
        default: false
"""

EXAMPLES = r"""
- name: Plan the upgrade
  gb10.cluster.k3s_upgrade_plan:
    kubeconfig: ~/.kube/config
    context: gb10
    namespace: gb10-serving
    version: v1.36.5+k3s1
    nodes:
      - {host: control, node: control, server: true, installed: v1.36.4+k3s1}
      - {host: spark1, node: spark1, server: false, installed: v1.36.4+k3s1}
  delegate_to: localhost
"""

RETURN = r"""
steps:
  description: The steps, each with C(action), C(host), C(before) and C(after).
  returned: always
  type: list
  elements: dict
order:
  description: The steps as numbered sentences.
  returned: always
  type: list
  elements: str
hosts:
  description: The hosts of the steps, in order.
  returned: always
  type: list
  elements: str
instances:
  description: Instances of the running model groups.
  returned: always
  type: list
  elements: str
findings:
  description: The reasons why the upgrade is not possible.
  returned: always
  type: list
  elements: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._common import findings
from ansible_collections.gb10.cluster.plugins.module_utils._k3s import upgrade
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import Cluster, ClusterError
from ansible_collections.gb10.cluster.plugins.module_utils._kube.kubeconfig import CLUSTER_SPEC
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import INSTANCE, UPGRADE


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **CLUSTER_SPEC,
            "namespace": {"type": "str", "required": True},
            "version": {"type": "str", "required": True},
            "nodes": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "host": {"type": "str", "required": True},
                    "node": {"type": "str", "required": True},
                    "server": {"type": "bool", "required": True},
                    "installed": {"type": "str", "required": True},
                    "stale": {"type": "bool", "default": False},
                },
            },
        },
        supports_check_mode=True,
    )
    options = module.params
    result: dict[str, Any] = {"changed": False, "instances": []}
    try:
        cluster = Cluster(options["kubeconfig"], options["context"])
        result["instances"] = upgrade.running_instances(cluster.pods(options["namespace"], INSTANCE))
        plan = upgrade.plan_upgrade(
            upgrade.read_nodes(options["nodes"], cluster.nodes()),
            options["version"],
            group_running=bool(result["instances"]),
            group_stopped_by_us=UPGRADE in cluster.namespace_annotations(options["namespace"]),
        )
    except (ClusterError, ValueError) as error:
        module.fail_json(msg=str(error), steps=[], order=[], hosts=[], findings=[], **result)
    result.update(plan.as_dict())
    if findings.has_errors(plan.findings):
        module.fail_json(msg=findings.format_findings(plan.findings), **result)
    module.exit_json(msg=f"{len(plan.steps)} steps" if plan.steps else "Nothing to upgrade.", **result)


if __name__ == "__main__":
    main()
