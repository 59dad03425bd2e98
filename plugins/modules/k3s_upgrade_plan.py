#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._common import findings
from ansible_collections.gb10.cluster.plugins.module_utils._k3s import upgrade
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import Cluster
from ansible_collections.gb10.cluster.plugins.module_utils._kube.errors import ClusterError
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
