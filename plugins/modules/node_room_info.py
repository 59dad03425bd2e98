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
author: The gb10.cluster authors (@gb10)
requirements:
  - kubernetes
extends_documentation_fragment: [gb10.cluster.cluster, gb10.cluster.readonly]
options:
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
      is not ready; empty if it is), C(cordoned), C(offers), C(holders) and C(disk) (why its disk is too full for new
      pods; empty if it is not).
    - C(offers) contains numbers of extended resources. C(holders) have C(namespace), C(pod), C(instance) (the serving
      group; empty for other pods) and C(resources).
  returned: always
  type: list
  elements: dict
msg:
  description: The pods that hold devices, one line per pod.
  returned: always
  type: str
"""

import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import Cluster, ClusterError
from ansible_collections.gb10.cluster.plugins.module_utils._kube.kubeconfig import CLUSTER_SPEC
from ansible_collections.gb10.cluster.plugins.module_utils._kube.node_room import Room, able, rooms

POLL_SECONDS = 5


def read_rooms(cluster: Cluster) -> list[Room]:
    """Return the devices of the nodes and their holders; raise ClusterError, or ValueError for an invalid quantity."""
    return rooms(cluster.nodes(), cluster.all_pods())


def wait(cluster: Cluster, wanted: dict[str, dict[str, int]], timeout: int) -> list[Room]:
    """Return the nodes once the wanted ones are ready and offer their devices, or when the time is over."""
    deadline = time.monotonic() + timeout
    while True:
        found = read_rooms(cluster)
        if able(found, wanted) or time.monotonic() >= deadline:
            return found
        time.sleep(POLL_SECONDS)


def message(found: list[Room]) -> str:
    """Return one line for every pod that holds a device."""
    return "\n".join(
        f"{room.node}: {holder.namespace}/{holder.pod} holds"
        f" {', '.join(f'{count} {name}' for name, count in sorted(holder.resources.items()))}"
        for room in found
        for holder in room.holders
    )


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **CLUSTER_SPEC,
            "wanted": {"type": "dict", "default": {}},
            "wait_timeout": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    result: dict[str, Any] = {"changed": False, "nodes": [], "msg": ""}
    options = module.params
    try:
        cluster = Cluster(options["kubeconfig"], options["context"])
        found = wait(cluster, options["wanted"], options["wait_timeout"])
    except (ClusterError, ValueError) as error:
        result["msg"] = str(error)
        module.fail_json(**result)
    module.exit_json(**(result | {"nodes": [room.as_dict() for room in found], "msg": message(found)}))


if __name__ == "__main__":
    main()
