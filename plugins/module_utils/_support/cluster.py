# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a support bundle contains of a cluster: nodes, pods, events and logs, but never a Secret."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import Cluster
from ansible_collections.gb10.cluster.plugins.module_utils._kube.errors import FORBIDDEN, ClusterError
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import INSTANCE

from .redact import REMOVED, SHOWN_ENVIRONMENT, redact

SHOWN_ANNOTATIONS = "k8s.v1.cni.cncf.io/"
SYSTEM = "kube-system"
# Parts of the names of pods on which serving depends; operators run them in namespaces of their own.
PARTS = ("multus", "device-plugin", "rdma-shared", "sriov")
LINES = 3000


def _environment(entry: dict[str, Any]) -> dict[str, Any]:
    shown = entry["name"].startswith(SHOWN_ENVIRONMENT) or "value" not in entry
    return {"name": entry["name"], "value": entry.get("value", "from elsewhere") if shown else REMOVED}


def _container(container: dict[str, Any]) -> dict[str, Any]:
    kept = {k: container[k] for k in ("name", "image", "command", "args", "resources", "ports") if k in container}
    return kept | {"env": [_environment(entry) for entry in container.get("env") or []]}


def described_pod(pod: dict[str, Any]) -> dict[str, Any]:
    """Return what explains a pod's state: labels, networks, containers, conditions."""
    about, spec = pod["metadata"], pod.get("spec") or {}
    annotations = {k: v for k, v in (about.get("annotations") or {}).items() if k.startswith(SHOWN_ANNOTATIONS)}
    named = {k: about.get(k) for k in ("name", "namespace", "labels", "creationTimestamp", "deletionTimestamp")}
    containers = [_container(c) for c in (*(spec.get("initContainers") or []), *(spec.get("containers") or []))]
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
                found[name] = redact(text[-limit:])

    def listed_pods() -> str:
        try:
            pods.extend(cluster.all_pods())
        except ClusterError as error:
            if error.status != FORBIDDEN:
                raise
            missing["pods of other namespaces"] = str(error)
            pods.extend(cluster.pods(namespace, ""))
        return _json([described_pod(pod) for pod in pods])

    keep("nodes", lambda: _json([described_node(node) for node in cluster.nodes()]))
    keep("pods", listed_pods)
    groups = [pod for pod in pods if INSTANCE in (pod["metadata"].get("labels") or {})]
    others = [pod for pod in pods if pod not in groups and _of_system(pod["metadata"])]
    for space in sorted({pod["metadata"]["namespace"] for pod in (*groups, *others)}):
        keep(f"events {space}", lambda space=space: _json(cluster.events(space)))
    for pod in [*groups, *others]:
        space, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        for state in (pod.get("status") or {}).get("containerStatuses") or []:
            for previous in (False, True)[: 1 + bool(state.get("restartCount"))]:
                end = partial(cluster.log_end, space, name, state["name"], LINES, previous)
                part = f"log {space} {name} {state['name']}{' before' if previous else ''}"
                keep(part, lambda end=end: "\n".join(end()))
    if pods and not groups:
        missing["groups"] = "no serving group runs"
    return found, missing
