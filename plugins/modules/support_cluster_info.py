#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a support bundle contains of a cluster: nodes, the pods, events and logs of serving, but never a Secret.

Pods of others are only what takes a node's resources. Their arguments, messages and logs are not read into the bundle.
"""

from __future__ import annotations

DOCUMENTATION = r"""
module: support_cluster_info
short_description: Read what a support bundle contains of a cluster
version_added: 0.1.0
description:
  - Reads nodes, pods with their transport conditions, events, and the last lines of the logs of serving groups and of
    pods on which they depend (C(kube-system), Multus, device plugins). It never reads a Secret.
  - Removes known forms of private keys, tokens and passwords, and the values of environment variables. Only those of
    NCCL, Gloo, UCX, CUDA, NVIDIA and PyTorch, C(SGLANG_HOST_IP) and C(MAX_JOBS) are kept.
  - What cannot be read is named in RV(missing), for example because there is no cluster. It is never an error.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.cluster, gb10.cluster.shared.readonly]
options:
  limit_kib:
    description: Size in KiB up to which the end of each text is kept.
    type: int
    default: 512
  namespace:
    description: Namespace of the serving groups. A user who may not list the pods of all namespaces gets those of this
      one.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Read the cluster for a support bundle
  gb10.cluster.support_cluster_info:
    kubeconfig: ~/.kube/config
    context: gb10
    namespace: gb10-serving
  delegate_to: localhost
  become: false
  register: support_bundle_cluster
"""

RETURN = r"""
texts:
  description: The texts by name, without known forms of secrets.
  returned: always
  type: dict
missing:
  description: Why a text is missing, by the name of the text.
  returned: always
  type: dict
"""

import json
from functools import partial
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._common.redact import REMOVED, SHOWN_ENVIRONMENT, end, redact
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import FORBIDDEN, Cluster, ClusterError
from ansible_collections.gb10.cluster.plugins.module_utils._kube.kubeconfig import CLUSTER_SPEC
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import INSTANCE

SHOWN_ANNOTATIONS = "k8s.v1.cni.cncf.io/"
SYSTEM = "kube-system"
# Parts of the names of pods on which serving depends; operators run them in namespaces of their own.
PARTS = ("multus", "device-plugin", "rdma-shared", "sriov")
LINES = 3000


def _environment(entry: dict[str, Any]) -> dict[str, Any]:
    shown = entry["name"].startswith(SHOWN_ENVIRONMENT) or "value" not in entry
    return {"name": entry["name"], "value": entry.get("value", "from elsewhere") if shown else REMOVED}


def _container(container: dict[str, Any], own: bool) -> dict[str, Any]:
    # The arguments of SGLang explain a fault. Those of other programs may have anything in them.
    names = ("name", "image", "resources", "ports", *(("command", "args") if own else ()))
    kept = {k: container[k] for k in names if k in container}
    return kept | {"env": [_environment(entry) for entry in container.get("env") or []]}


def foreign_pod(pod: dict[str, Any]) -> dict[str, Any]:
    """Return of a pod that does not belong to serving only what it takes: its node and the resources there."""
    about, spec = pod["metadata"], pod.get("spec") or {}
    containers = [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]
    return {
        "name": about.get("name"),
        "namespace": about.get("namespace"),
        "nodeName": spec.get("nodeName"),
        "hostNetwork": spec.get("hostNetwork"),
        "phase": (pod.get("status") or {}).get("phase"),
        "resources": [container.get("resources") for container in containers],
    }


def described_pod(pod: dict[str, Any]) -> dict[str, Any]:
    """Return what explains a pod's state: labels, networks, containers, conditions."""
    about, spec = pod["metadata"], pod.get("spec") or {}
    annotations = {k: v for k, v in (about.get("annotations") or {}).items() if k.startswith(SHOWN_ANNOTATIONS)}
    named = {k: about.get(k) for k in ("name", "namespace", "labels", "creationTimestamp", "deletionTimestamp")}
    own = _of_group(pod)
    containers = [_container(c, own) for c in (*(spec.get("initContainers") or []), *(spec.get("containers") or []))]
    kept = {k: spec.get(k) for k in ("nodeName", "hostNetwork", "tolerations", "readinessGates")}
    return named | {"annotations": annotations, "spec": kept, "containers": containers, "status": pod.get("status")}


def described_node(node: dict[str, Any]) -> dict[str, Any]:
    """Return a node's labels, taints, conditions, resources and versions."""
    about, status = node["metadata"], node.get("status") or {}
    kept = ("addresses", "allocatable", "capacity", "conditions", "nodeInfo")
    taints = (node.get("spec") or {}).get("taints")
    return {"name": about["name"], "labels": about.get("labels"), "taints": taints} | {k: status.get(k) for k in kept}


def _shown(value: Any) -> Any:
    """Return a value without the secrets in its strings, which JSON would put into one line each."""
    if isinstance(value, dict):
        return {key: _shown(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_shown(each) for each in value]
    return redact(value) if isinstance(value, str) else value


def _json(value: Any) -> str:
    return json.dumps(_shown(value), indent=1)


def _of_group(pod: dict[str, Any]) -> bool:
    return INSTANCE in (pod["metadata"].get("labels") or {})


def _of_system(meta: dict[str, Any]) -> bool:
    return meta["namespace"] == SYSTEM or any(part in meta["name"] for part in PARTS)


def gather(cluster: Cluster, limit: int, namespace: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the texts by name, without secrets, and the reasons why others are missing.

    A user with rights in one namespace gets those of the pods there.
    """
    found: dict[str, str] = {}
    missing: dict[str, str] = {}
    pods: list[dict[str, Any]] = []

    def keep(name: str, read: Any) -> None:
        try:
            text = read()
        except ClusterError as error:
            missing[name] = str(error)
        else:
            if text:
                # A value whose name is cut off is no longer known to be a secret.
                found[name] = end(redact(text), limit)

    def listed_pods() -> str:
        try:
            pods.extend(cluster.all_pods())
        except ClusterError as error:
            if error.status != FORBIDDEN:
                raise
            missing["pods of other namespaces"] = str(error)
            pods.extend(cluster.pods(namespace, ""))
        described = [
            described_pod(pod) if _of_group(pod) or _of_system(pod["metadata"]) else foreign_pod(pod) for pod in pods
        ]
        return _json(described)

    def events(space: str) -> str:
        """Return the events of a namespace, without those of the pods that do not belong to serving."""
        names = {pod["metadata"]["name"] for pod in shown if pod["metadata"]["namespace"] == space}
        abouts = [(event, event.get("involvedObject") or {}) for event in cluster.events(space)]
        return _json([event for event, about in abouts if about.get("kind") != "Pod" or about.get("name") in names])

    keep("nodes", lambda: _json([described_node(node) for node in cluster.nodes()]))
    keep("pods", listed_pods)
    groups = [pod for pod in pods if _of_group(pod)]
    others = [pod for pod in pods if pod not in groups and _of_system(pod["metadata"])]
    shown = [*groups, *others]
    for space in sorted({pod["metadata"]["namespace"] for pod in shown}):
        keep(f"events {space}", partial(events, space))
    for pod in shown:
        space, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        for state in (pod.get("status") or {}).get("containerStatuses") or []:
            for previous in (False, True)[: 1 + bool(state.get("restartCount"))]:
                log = partial(cluster.log_end, space, name, state["name"], LINES, previous)
                part = f"log {space} {name} {state['name']}{' before' if previous else ''}"
                keep(part, lambda log=log: "\n".join(log()))
    if pods and not groups:
        missing["groups"] = "no serving group runs"
    return found, missing


def main() -> None:
    own = {"limit_kib": {"type": "int", "default": 512}, "namespace": {"type": "str", "required": True}}
    module = AnsibleModule(argument_spec={**CLUSTER_SPEC, **own}, supports_check_mode=True)
    options = module.params
    try:
        cluster = Cluster(options["kubeconfig"], options["context"])
        texts, missing = gather(cluster, 1024 * options["limit_kib"], options["namespace"])
    except ClusterError as error:
        texts, missing = {}, {"cluster": str(error)}
    module.exit_json(changed=False, texts=texts, missing=missing)


if __name__ == "__main__":
    main()
