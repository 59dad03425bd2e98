#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: image_pull
short_description: Pull an image on nodes of a cluster, and pin its digest on first use
version_added: 0.1.0
description:
  - Makes every node pull the image, before a workload with a time limit uses it. All nodes pull at once, unless
    O(one_first) is set. A short pod per node pulls it, so the registries and credentials of the nodes apply. Nodes that
    report the image already get no pod.
  - Shows at least every 30 seconds what each node waits for.
  - An image name without a digest is pinned on first use. The digest that the first node has is recorded in the
    ConfigMap C(gb10-images) of O(namespace). It is required of all other nodes and of every later run.
  - A node with another digest is refused with both values and with the command that accepts the new one.
  - An image that was imported from a file has no digest of a registry. Its image id is recorded and compared instead.
  - Fails if a Secret or the PriorityClass of O(owner) does not exist, unless the kubeconfig may not read it.
  - A kubeconfig that may not list nodes is enough if O(nodes) names them. A node then gets a pod unless O(listings) has
    its image.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.cluster, gb10.cluster.shared.pod, gb10.cluster.shared.slices]
attributes:
  check_mode:
    description: Pulls and records nothing.
    support: full
  idempotent:
    description: Only recording a digest counts as a change.
    support: full
options:
  namespace:
    description: Namespace of the pods and of the ConfigMap.
    type: str
    required: true
  host_network:
    description:
      - Run the pods in the network of the host, where no CNI plugin has to work yet.
      - The Pod Security levels baseline and restricted forbid it.
    type: bool
    default: false
  image:
    description: Name of the image. A name with a digest is pulled and not recorded.
    type: str
    required: true
  nodes:
    description: Nodes by their label kubernetes.io/hostname. If it is empty, all nodes of the cluster.
    type: list
    elements: str
    default: []
  one_first:
    description:
      - If no node of the cluster has the image, pull it on the first node, and on the others once that node has it.
      - For nodes that fetch images from each other, for example with K3s's embedded registry mirror. If they all start
        at once, none can offer the image to the others, so each may download it from the registry.
      - If the kubeconfig may not list nodes, a node counts as one that has the image only after its pod has started.
    type: bool
    default: false
  listings:
    description:
      - What C(ctr --namespace k8s.io images list) has just printed on nodes, by their names in O(nodes).
      - A node whose listing has an imported image gets no pod, unless O(pull_policy) is V(Always).
    type: dict
    default: {}
  command:
    description: A command of the image that ends at once.
    type: list
    elements: str
    default: ["true"]
  timeout:
    description: Seconds that all nodes together may take.
    type: int
    default: 14400
"""

EXAMPLES = r"""
- name: Pull the image before the ranks start
  gb10.cluster.image_pull:
    kubeconfig: ~/.kube/config
    context: gb10
    namespace: gb10-serving
    image: docker.io/lmsysorg/sglang:v0.5.14
    nodes: [spark1, spark2]
  delegate_to: localhost
"""

RETURN = r"""
image:
  description: The name with which pods must be started. It contains the digest if one is known.
  returned: always
  type: str
digest:
  description: The digest, or V(id:) and the image id of an imported image; empty if it is unknown.
  returned: always
  type: str
"""

import json
from collections.abc import Container
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._kube import objects
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import (
    FORBIDDEN,
    PROGRESS_SPEC,
    Cluster,
    ClusterError,
    Slice,
    poll,
    tolerated,
)
from ansible_collections.gb10.cluster.plugins.module_utils._kube.kubeconfig import CLUSTER_SPEC, kubectl
from ansible_collections.gb10.cluster.plugins.module_utils._kube.pod_state import (
    OF_DOCKER,
    hints,
    latest_warnings,
    pod_lines,
    quoted,
    refused_image,
)

POLL_SECONDS = 1
RECORD = "gb10-images"


class Pull:
    """One image on the nodes of a cluster; every method raises ClusterError."""

    def __init__(self, cluster: Cluster, options: dict[str, Any]) -> None:
        self._cluster, self._options, self.image = cluster, options, options["image"]
        self._namespace = options["namespace"]
        self.program = kubectl(options["kubeconfig"], options["context"])
        self._owner = objects.Owner(**options["owner"])
        recorded = cluster.config_map(self._namespace, RECORD).get(objects.record_key(self.image), "")
        self.pinned = objects.digest_in(self.image) or recorded
        self.name = objects.reference(self.image, self.pinned)
        nodes = {objects.host_of(node): node for node in self._known_nodes()}
        self._offered = any(self._wanted(objects.held(node, self.image, self.pinned)) for node in nodes.values())
        self.absent = [host for host in options["nodes"] if host not in nodes]
        self.nodes = {host: nodes[host] for host in options["nodes"] or sorted(nodes) if host in nodes}
        self.found: dict[str, str] = {}
        self.later: list[str] = []
        self.refused = False

    def lacks(self) -> str:
        """Return what the cluster lacks of what its owner wants on pods, as far as the kubeconfig may read it."""
        secrets = self._owner.image_pull_secrets
        missing = [name for name in secrets if not self._has("v1/secrets", self._namespace, name)]
        if missing:
            return _without_secrets(missing, self._namespace, self.program)
        priority = self._owner.priority_class
        if not priority or self._has("scheduling.k8s.io/v1/priorityclasses", "", priority):
            return ""
        return (
            f"The cluster has no PriorityClass {priority}, so it would refuse the pods; nothing was changed."
            " Create it, or set sglang_priority_class (for the gateway gateway_priority_class) to one of"
            f" {self.program} get priorityclasses."
        )

    def _has(self, resource: str, namespace: str, name: str) -> bool:
        with tolerated(FORBIDDEN):
            return bool(self._cluster.objects(resource, namespace, name))
        return True

    def _known_nodes(self) -> list[dict[str, Any]]:
        """Return the nodes; only their names if the cluster may not be asked and the options name them."""
        named = self._options["nodes"]
        with tolerated(*([FORBIDDEN] if named else [])):
            return self._cluster.nodes()
        return [{"metadata": {"name": host}} for host in named]

    def pods(self) -> dict[str, dict[str, Any]]:
        """Return the pods that pull the image, by the node's name."""
        found = self._cluster.pods(self._namespace, objects.selector(self.name))
        return {pod["spec"]["nodeSelector"][objects.HOSTNAME]: pod for pod in found}

    def _wanted(self, digest: str) -> bool:
        """Return whether a node with this digest has the image that the others need."""
        return bool(digest) and digest == (self.pinned or digest)

    def look(self) -> bool:
        """Return whether the wait is over: all nodes have the image, or no registry will give it to those without.

        A node without it gets a pod that pulls it.
        """
        pods = self.pods()
        for host, node in self.nodes.items():
            digest = objects.held(node, self.image, self.pinned) or objects.pulled(pods.get(host, {}))
            known = "" if self._options["pull_policy"] == "Always" else str(self._options["listings"].get(host, ""))
            if digest := digest or objects.imported(known, self.image):
                self.found[host] = digest
        missing = [host for host in self.nodes if host not in self.found]
        self.later = self._later(missing, pods)
        tried = [pods[host] for host in missing if host in pods]
        self.refused = bool(tried) and all(map(refused_image, tried))
        for host in missing:
            if host not in pods and host not in self.later:
                words = (self._options[key] for key in ("pull_policy", "command", "host_network"))
                pod = self._owner.on(objects.pull_pod(self.name, host, *words))
                self._cluster.create_pod(self._namespace, pod)
        return self.refused or not missing

    def _later(self, missing: list[str], pods: Container[str]) -> list[str]:
        """Return the nodes that get no pod until another node has the image."""
        if not self._options["one_first"] or self._offered or any(map(self._wanted, self.found.values())):
            return []
        # An interrupted run may have left a pod on any node.
        pulling = [host for host in missing if host in pods] or missing[:1]
        return [host for host in missing if host not in pulling]

    def waiting(self) -> list[str]:
        """Return what each node without the image waits for."""
        pods, events = self.pods(), self._cluster.events(self._namespace)
        missing = [pod for host, pod in pods.items() if host not in self.found]
        lines = [f"  {line}" for line in pod_lines(missing, events, self.program)]
        if self.later:
            first = [host for host in self.nodes if host not in (*self.found, *self.later)]
            verb = "waits" if len(self.later) == 1 else "wait"
            lines.append(f"  {_series(self.later, 'and')} {verb} until {_series(first, 'or')} has the image")
        return lines

    def warnings(self) -> list[str]:
        """Return the newest Warning events of the pods that pull."""
        uids = {pod["metadata"]["uid"] for pod in self.pods().values()}
        events = self._cluster.warnings(self._namespace)
        return latest_warnings(event for event in events if event.get("involvedObject", {}).get("uid") in uids)

    def finish(self) -> None:
        """Delete the pods."""
        for pod in self.pods().values():
            self._cluster.delete_pod(self._namespace, pod["metadata"]["name"])

    def mismatch(self, wanted: str) -> list[str]:
        """Return the message about nodes with another digest; empty if all have the wanted one."""
        origin = "was recorded on first use" if self.pinned else f"is on {next(iter(self.nodes))}"
        origin = "is in its name" if objects.digest_in(self.image) else origin
        other = [f"{host} has {digest}" for host, digest in self.found.items() if digest != wanted]
        if not other:
            return []
        return [
            f"{self.image}: {wanted} {origin}, but {', '.join(other)}. Ranks would run another program than was proven;"
            " nothing was recorded or replaced.",
            f"To use {wanted}, run crictl rmi {self.image} on the nodes named last (on K3s: k3s crictl), and then the"
            " playbook again.",
            *self.advice(),
        ]

    def advice(self) -> list[str]:
        """Return how to accept another image, if a recorded digest is what prevents it."""
        if not self.pinned or objects.digest_in(self.image):
            return []
        patch = json.dumps({"data": {objects.record_key(self.image): None}}, separators=(",", ":"))
        command = f"{self.program} -n {self._namespace} patch configmap {RECORD} --type merge -p '{patch}'"
        return [f"{self.pinned} was recorded on first use. To accept what {self.image} is now, run {command}"]

    def record(self, digest: str) -> bool:
        """Record the digest of the first use; return whether it was recorded now."""
        if self.pinned:
            return False
        self._cluster.add_to_config_map(self._namespace, RECORD, {objects.record_key(self.image): digest})
        return True


def _without_secrets(missing: list[str], namespace: str, program: str) -> str:
    """Return the message about pull secrets that do not exist. Kubernetes itself only says it in an event."""
    command = f"{program} -n {namespace} create secret docker-registry {missing[0]} {OF_DOCKER}"
    return (
        f"Namespace {namespace} has no Secret {_series(missing, 'and')}, which gb10_image_pull_secrets names, so a node"
        f" may be refused the image; nothing was changed. Create it, after docker login: {command}, or take its name"
        " out of gb10_image_pull_secrets."
    )


def _series(names: list[str], word: str) -> str:
    """Return names as a sentence lists them: ``spark2, spark3 and spark4``."""
    return f" {word} ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **CLUSTER_SPEC,
            "namespace": {"type": "str", "required": True},
            "host_network": {"type": "bool", "default": False},
            "image": {"type": "str", "required": True},
            "nodes": {"type": "list", "elements": "str", "default": []},
            "pull_policy": {"type": "str", "choices": ["Always", "IfNotPresent", "Never"], "default": "IfNotPresent"},
            "one_first": {"type": "bool", "default": False},
            "listings": {"type": "dict", "default": {}},
            "command": {"type": "list", "elements": "str", "default": ["true"]},
            "owner": objects.OWNER_SPEC,
            "timeout": {"type": "int", "default": 14400},
            "progress": PROGRESS_SPEC,
        },
        supports_check_mode=True,
    )
    options = module.params
    result: dict[str, Any] = {"changed": False, "done": True, "image": options["image"], "digest": ""}
    part = Slice(options["timeout"], options["progress"])
    try:
        pull = Pull(Cluster(options["kubeconfig"], options["context"]), options)
        result |= {"image": pull.name, "digest": pull.pinned}
        if pull.absent:
            remedy = "Run playbooks/kubernetes.yml, which joins hosts to K3s or names what an existing cluster lacks."
            module.fail_json(msg=f"The cluster has no node {', '.join(pull.absent)}. {remedy}", **result)
        if lacks := pull.lacks():
            module.fail_json(msg=lacks, **result)
        if module.check_mode:
            module.exit_json(msg=f"{pull.name} would be pulled where it is missing.", **result)
        if not poll(pull.look, bool, part.seconds, POLL_SECONDS) or pull.refused:
            lines = [f"{pull.name} is on {len(pull.found)} of {len(pull.nodes)} nodes after {part.waited:.0f} s"]
            lines += pull.waiting()
            if not part.last and not pull.refused:
                result |= {"done": False, "progress": {"waited": part.waited}}
                module.exit_json(msg="\n".join(lines), **result)
            lines += quoted(pull.warnings(), "\n".join(lines))
            lines += [*hints(lines, pull.program), *pull.advice()]
            pull.finish()
            module.fail_json(msg="\n".join(lines), **result)
        pull.finish()
        wanted = pull.pinned or pull.found[next(iter(pull.nodes))]
        if wrong := pull.mismatch(wanted):
            module.fail_json(msg="\n".join(wrong), **result)
        result |= {"changed": pull.record(wanted), "digest": wanted, "image": objects.reference(pull.image, wanted)}
    except ClusterError as error:
        module.fail_json(msg=str(error), **result)
    module.exit_json(msg=f"{result['image']} is on {', '.join(pull.nodes)}.", **result)


if __name__ == "__main__":
    main()
