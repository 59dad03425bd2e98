#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_room_info
short_description: Read the devices that the nodes of a cluster offer, and the pods that hold them
version_added: 0.1.0
description:
  - Reads nodes and pods of a cluster. For each node it returns whether pods can start there, which devices the node
    offers (GPUs, RDMA devices, VFs), and which pods hold them.
  - Pods that have ended or are being deleted do not count.
  - Returns no other data of the pods, in particular not their environment.
  - With O(optional), a kubeconfig that may not list nodes or the pods of all namespaces is no error.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.cluster, gb10.cluster.shared.readonly]
options:
  optional:
    description: Return in RV(unread) what the kubeconfig may not read, instead of failing.
    type: bool
    default: false
  wanted:
    description:
      - Nodes to wait for, by their label kubernetes.io/hostname, each with the smallest number of every device that it
        must offer.
      - A node that just restarted is not ready for a minute, and offers no devices until its device plugins run again.
    type: dict
    default: {}
  wait_timeout:
    description: Seconds to wait for the nodes of O(wanted). After this time the module returns the present state.
    type: int
    default: 0
"""

EXAMPLES = r"""
- name: Find the pods that hold GPUs
  gb10.cluster.node_room_info:
    kubeconfig: ~/.kube/config
    context: gb10
  delegate_to: localhost
"""

RETURN = r"""
nodes:
  description:
    - A dictionary for every node, by name, with C(node), C(host) (its label kubernetes.io/hostname), C(trouble) (why it
      is not ready; empty if it is), C(cordoned), C(offers), C(holders), C(disk) (why its disk is too full for new
      pods; empty if it is not), C(arch) and C(taints) (each with C(key), C(value) and C(effect)).
    - C(offers) contains numbers of extended resources. C(holders) have C(namespace), C(pod), C(instance) (the serving
      group; empty for other pods) and C(resources).
  returned: always
  type: list
  elements: dict
unread:
  description:
    - What the kubeconfig may not read, V(nodes) or V(pods). Without nodes the result has none; without pods it has no
      C(holders).
  returned: always
  type: list
  elements: str
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import (
    FORBIDDEN,
    Cluster,
    ClusterError,
    poll,
    tolerated,
)
from ansible_collections.gb10.cluster.plugins.module_utils._kube.kubeconfig import CLUSTER_SPEC
from ansible_collections.gb10.cluster.plugins.module_utils._kube.node_room import Room, able, rooms

POLL_SECONDS = 5
UNREAD = {
    "nodes": "The kubeconfig may not list nodes. Not checked: whether they are ready and offer the devices.",
    "pods": "The kubeconfig may not list the pods of all namespaces. Not checked: whether other pods hold the devices.",
}


class Reader:
    """Reads nodes and pods; ``unread`` names what the API refused, if that is ``optional``."""

    def __init__(self, cluster: Cluster, optional: bool) -> None:
        self._cluster = cluster
        self._tolerated = (FORBIDDEN,) if optional else ()
        self.unread: list[str] = []

    def rooms(self) -> list[Room]:
        """Return the nodes' devices and their holders; raise ClusterError, or ValueError for an invalid quantity."""
        self.unread = []
        nodes = self._try("nodes", self._cluster.nodes)
        return rooms(nodes, self._try("pods", self._cluster.all_pods))

    def _try(self, what: str, read: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        with tolerated(*self._tolerated):
            return read()
        self.unread.append(what)
        return []


def wait(reader: Reader, wanted: dict[str, dict[str, int]], timeout: int) -> list[Room]:
    """Return the nodes once the wanted ones are ready and offer their devices, or when the time is over."""
    return poll(reader.rooms, lambda found: able(found, wanted) or "nodes" in reader.unread, timeout, POLL_SECONDS)


def message(found: list[Room], unread: list[str]) -> str:
    """Return one line for everything that could not be read, and for every pod that holds a device."""
    lines = [UNREAD[what] for what in unread]
    return "\n".join(
        lines
        + [
            f"{room.node}: {holder.namespace}/{holder.pod} holds"
            f" {', '.join(f'{count} {name}' for name, count in sorted(holder.resources.items()))}"
            for room in found
            for holder in room.holders
        ]
    )


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **CLUSTER_SPEC,
            "optional": {"type": "bool", "default": False},
            "wanted": {"type": "dict", "default": {}},
            "wait_timeout": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    result: dict[str, Any] = {"changed": False, "nodes": [], "unread": [], "msg": ""}
    options = module.params
    try:
        reader = Reader(Cluster(options["kubeconfig"], options["context"]), options["optional"])
        found = wait(reader, options["wanted"], options["wait_timeout"])
    except (ClusterError, ValueError) as error:
        result["msg"] = str(error)
        module.fail_json(**result)
    result |= {"nodes": [asdict(room) for room in found], "unread": reader.unread}
    module.exit_json(**(result | {"msg": message(found, reader.unread)}))


if __name__ == "__main__":
    main()
