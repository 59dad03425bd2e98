#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report why Kubernetes nodes are not ready for the model.

No message contains an API object.
"""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_wait
short_description: Wait until Kubernetes nodes are ready and offer their devices
version_added: 0.1.0
description:
  - Waits for nodes to join, to become ready, and to offer resources such as V(nvidia.com/gpu).
  - Shows at least every 30 seconds what the nodes lack.
  - Fails after O(timeout) seconds with what each node lacks, the newest Warning events, and a remedy if the cause is
    known, such as a missing container runtime. It never prints an API object.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.cluster, gb10.cluster.shared.slices, gb10.cluster.shared.readonly]
options:
  nodes:
    description: Names of the nodes to wait for. Empty waits for all nodes that have O(label).
    type: list
    elements: str
    default: []
  label:
    description: Label of the nodes as V(name=value). It is used if O(nodes) is empty.
    type: str
    default: ""
  resources:
    description: The smallest number of each resource that every node must offer.
    type: dict
    default: {}
  of_node:
    description: Resources by node name; the node must offer at least one of each.
    type: dict
    default: {}
  namespace:
    description: Namespace whose Warning events are shown on failure, besides those of nodes.
    type: str
    default: kube-system
  timeout:
    description: Seconds to wait.
    type: int
    default: 300
"""

EXAMPLES = r"""
- name: Wait for the GPU of every node
  gb10.cluster.node_wait:
    kubeconfig: ~/.kube/config
    context: gb10
    label: gb10.cluster/gpu=true
    resources: {nvidia.com/gpu: 1}
  delegate_to: localhost
"""

RETURN = r"""
lacking:
  description: What each node still lacks, one sentence per node; empty if all nodes are ready.
  returned: always
  type: list
  elements: str
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import (
    PROGRESS_SPEC,
    Cluster,
    ClusterError,
    Slice,
    poll,
)
from ansible_collections.gb10.cluster.plugins.module_utils._kube.kubeconfig import CLUSTER_SPEC, kubectl
from ansible_collections.gb10.cluster.plugins.module_utils._kube.node_room import amount
from ansible_collections.gb10.cluster.plugins.module_utils._kube.pod_state import hints, latest_warnings, quoted


def lacks(node: Mapping[str, Any], wanted: Mapping[str, int]) -> list[str]:
    """Return, in words, why a node is not ready or does not offer ``{resource: smallest number}``."""
    status = node.get("status", {})
    ready: Mapping[str, Any] = next((c for c in status.get("conditions") or () if c.get("type") == "Ready"), {})
    found = [] if ready.get("status") == "True" else [f"is not ready ({ready.get('message') or 'it never reported'})"]
    offered = status.get("allocatable") or {}
    return found + [
        f"offers {amount(name, offered.get(name, 0))} of {least} {name}"
        for name, least in wanted.items()
        if amount(name, offered.get(name, 0)) < least
    ]


def missing_on_nodes(
    nodes: Sequence[Mapping[str, Any]],
    names: Iterable[str],
    resources: Mapping[str, int],
    of_node: Mapping[str, Iterable[str]],
) -> list[str]:
    """Return a sentence for each node of ``names`` (empty: all) that is absent, not ready, or offers too little."""
    by_name = {node["metadata"]["name"]: node for node in nodes}
    found = []
    for name in list(names) or sorted(by_name):
        wanted = dict.fromkeys(of_node.get(name, ()), 1) | dict(resources)
        wrong = lacks(by_name[name], wanted) if name in by_name else ["has not joined the cluster"]
        if wrong:
            found.append(f"{name} {' and '.join(wrong)}")
    return found or ([] if by_name else ["no node has this label"])


POLL_SECONDS = 2
# Kubernetes stores the events of nodes in this namespace.
NODE_EVENTS = "default"


def look(cluster: Cluster, options: dict[str, Any]) -> list[str]:
    """Return what the nodes lack now. This includes an API that does not respond, for example while K3s restarts."""
    key, _equals, value = options["label"].partition("=")
    try:
        nodes = cluster.nodes()
    except ClusterError as error:
        return [str(error)]
    if not options["nodes"] and key:
        nodes = [node for node in nodes if (node["metadata"].get("labels") or {}).get(key) == value]
    return missing_on_nodes(nodes, options["nodes"], options["resources"], options["of_node"])


def warnings(cluster: Cluster, namespace: str) -> list[str]:
    """Return the newest warnings; empty if the API does not respond."""
    try:
        return latest_warnings([*cluster.warnings(namespace), *cluster.warnings(NODE_EVENTS)])
    except ClusterError:
        return []


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **CLUSTER_SPEC,
            "nodes": {"type": "list", "elements": "str", "default": []},
            "label": {"type": "str", "default": ""},
            "resources": {"type": "dict", "default": {}},
            "of_node": {"type": "dict", "default": {}},
            "namespace": {"type": "str", "default": "kube-system"},
            "timeout": {"type": "int", "default": 300},
            "progress": PROGRESS_SPEC,
        },
        supports_check_mode=True,
    )
    options = module.params
    options["resources"] = {name: int(least) for name, least in options["resources"].items()}
    result: dict[str, Any] = {"changed": False, "done": True, "lacking": []}
    part = Slice(options["timeout"], options["progress"])
    try:
        cluster = Cluster(options["kubeconfig"], options["context"])
        lacking = poll(lambda: look(cluster, options), lambda found: not found, part.seconds, POLL_SECONDS)
    except (ClusterError, ValueError) as error:
        module.fail_json(msg=str(error), **result)
    if not lacking:
        module.exit_json(msg="All nodes are ready.", **result)
    if not part.last:
        result |= {"done": False, "lacking": lacking, "progress": {"waited": part.waited}}
        module.exit_json(msg=f"waiting for {part.waited:.0f} s: {'; '.join(lacking)}", **result)
    seen = warnings(cluster, options["namespace"])
    head = f"After {options['timeout']} s: {'; '.join(lacking)}."
    place = "journalctl -u k3s or journalctl -u k3s-agent on the node"
    program = kubectl(options["kubeconfig"], options["context"])
    if all(" offers " in line and " is not ready " not in line for line in lacking):
        place = f"the pods of the device plugins and their logs: {program} -n {options['namespace']} get pods"
    advice = hints(seen, program) or [f"Look at {place}."]
    result["lacking"] = lacking
    module.fail_json(msg="\n".join([head, *quoted(seen, head), *advice]), **result)


if __name__ == "__main__":
    main()
