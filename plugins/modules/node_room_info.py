#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import Cluster
from ansible_collections.gb10.cluster.plugins.module_utils._kube.errors import FORBIDDEN, ClusterError, tolerated
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
    deadline = time.monotonic() + timeout
    while True:
        found = reader.rooms()
        if able(found, wanted) or "nodes" in reader.unread or time.monotonic() >= deadline:
            return found
        time.sleep(POLL_SECONDS)


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


def main(make: Callable[..., Any] = AnsibleModule) -> None:
    module = make(
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
