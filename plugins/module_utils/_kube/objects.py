# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make Kubernetes objects as plain JSON. Private to the collection; does not call the API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

RBAC = "rbac.authorization.k8s.io"
_NETWORKS = "networking.k8s.io"
_ATTACHMENTS = "k8s.cni.cncf.io"
# {kind: (API group, resource)}; all are in version v1 of their group
RESOURCES = {
    "ClusterRole": (RBAC, "clusterroles"),
    "ClusterRoleBinding": (RBAC, "clusterrolebindings"),
    "ConfigMap": ("", "configmaps"),
    "Deployment": ("apps", "deployments"),
    "Ingress": (_NETWORKS, "ingresses"),
    "NetworkAttachmentDefinition": (_ATTACHMENTS, "network-attachment-definitions"),
    "NetworkPolicy": (_NETWORKS, "networkpolicies"),
    "PersistentVolume": ("", "persistentvolumes"),
    "PersistentVolumeClaim": ("", "persistentvolumeclaims"),
    "Pod": ("", "pods"),
    "Role": (RBAC, "roles"),
    "RoleBinding": (RBAC, "rolebindings"),
    "Service": ("", "services"),
    "ServiceAccount": ("", "serviceaccounts"),
    "StatefulSet": ("apps", "statefulsets"),
}


def made(kind: str, meta: Mapping[str, Any], spec: Mapping[str, Any] | None = None, **parts: Any) -> dict[str, Any]:
    """Return an object with its metadata, its ``spec`` if it has one, and other parts such as ``data``."""
    version = f"{RESOURCES[kind][0]}/v1".removeprefix("/")
    own = {} if spec is None else {"spec": dict(spec)}
    return {"apiVersion": version, "kind": kind, "metadata": dict(meta), **own, **parts}


def policy(meta: Mapping[str, Any], pods: Mapping[str, str], ingress: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a NetworkPolicy that admits only these connections to the pods with these labels."""
    selected = {"podSelector": {"matchLabels": dict(pods)}, "policyTypes": ["Ingress"]}
    return made("NetworkPolicy", meta, {**selected, "ingress": list(ingress)})


def on_hosts(hosts: Iterable[str]) -> dict[str, Any]:
    """Return the term of a selector that chooses these nodes."""
    return {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(hosts)}]}


def brief_pod(meta: Mapping[str, Any], container: Mapping[str, Any], place: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod without any privilege that serves one purpose and is deleted then, also on tainted nodes.

    The Pod Security level restricted admits it. ``place`` says on which node it runs.
    """
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "tolerations": [{"operator": "Exists"}],
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65534, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{**container, "securityContext": security}],
    }
    return made("Pod", meta, {**spec, **place})
