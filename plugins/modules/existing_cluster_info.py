#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._kube import survey
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import Cluster
from ansible_collections.gb10.cluster.plugins.module_utils._kube.errors import FORBIDDEN, ClusterError, tolerated
from ansible_collections.gb10.cluster.plugins.module_utils._kube.kubeconfig import CLUSTER_SPEC
from ansible_collections.gb10.cluster.plugins.module_utils._kube.node_room import rooms


def read(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """Return the values that the module documents; ``unread`` names what the API refused. Raise ClusterError."""
    unread: list[str] = []

    def listed(name: str, resource: str, only: str = "") -> list[dict[str, Any]]:
        group = resource.partition("/")[0]
        # To a user without rights, the API refuses also what it does not know.
        if "." in group and group not in groups:
            return []
        with tolerated(FORBIDDEN):
            return cluster.objects(resource, name=only)
        unread.append(name)
        return []

    version, groups = cluster.version(), cluster.api_groups()
    nodes = listed("nodes", "v1/nodes")
    lists = {name: [reduce(item) for item in listed(name, of)] for name, (of, reduce) in survey.LISTS.items()}
    space = listed("namespace", "v1/namespaces", namespace)
    return {
        "version": version,
        "distribution": survey.distribution(version, nodes),
        "groups": sorted(groups),
        "nodes": [asdict(room) for room in rooms(nodes, [])],
        **lists,
        "namespace": {"exists": bool(space), "level": survey.level(space[0]) if space else ""},
        "unread": unread,
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={**CLUSTER_SPEC, "namespace": {"type": "str", "required": True}}, supports_check_mode=True
    )
    options = module.params
    try:
        found = read(Cluster(options["kubeconfig"], options["context"]), options["namespace"])
    except (ClusterError, ValueError) as error:
        module.fail_json(msg=str(error), changed=False)
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
