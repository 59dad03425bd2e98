#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._kube import survey
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import (
    FORBIDDEN,
    NOT_FOUND,
    Cluster,
    ClusterError,
    tolerated,
)
from ansible_collections.gb10.cluster.plugins.module_utils._kube.kubeconfig import CLUSTER_SPEC
from ansible_collections.gb10.cluster.plugins.module_utils._kube.node_room import rooms


class Survey:
    """Reads a cluster; ``unread`` names what the API refused. Every method raises ClusterError."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.unread: list[str] = []

    def _try(self, name: str, read: Callable[[], Any], otherwise: Any) -> Any:
        with tolerated(NOT_FOUND):
            with tolerated(FORBIDDEN):
                return read()
            self.unread.append(name)
        return otherwise

    def read(self, namespace: str) -> dict[str, Any]:
        """Return the values that the module documents."""
        cluster = self._cluster
        version = cluster.version()
        nodes = self._try("nodes", cluster.nodes, [])
        found: dict[str, Any] = {
            "version": version,
            "distribution": survey.distribution(version, nodes),
            "groups": sorted(cluster.api_groups()),
            "nodes": [room.as_dict() for room in rooms(nodes, [])],
        }
        lists = {
            "daemon_sets": cluster.daemon_sets,
            "runtime_classes": cluster.runtime_classes,
            "storage_classes": cluster.storage_classes,
            "ingress_classes": cluster.ingress_classes,
        }
        for name, read in lists.items():
            found[name] = survey.reduced(name, self._try(name, read, []))
        space = self._try("namespace", lambda: cluster.namespace(namespace), {})
        found["namespace"] = {"exists": bool(space), "level": survey.level(space) if space else ""}
        return {**found, "unread": self.unread}


def main() -> None:
    module = AnsibleModule(
        argument_spec={**CLUSTER_SPEC, "namespace": {"type": "str", "required": True}}, supports_check_mode=True
    )
    options = module.params
    try:
        found = Survey(Cluster(options["kubeconfig"], options["context"])).read(options["namespace"])
    except (ClusterError, ValueError) as error:
        module.fail_json(msg=str(error), changed=False)
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
