# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reduce the API's answers about a cluster to what serving uses. Private to the collection; does not call the API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .labels import MANAGED_BY, OWNER

Json = dict[str, Any]
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_ENFORCE = "pod-security.kubernetes.io/enforce"


def distribution(version: str, nodes: list[Json]) -> str:
    """Return the name of the Kubernetes distribution, read from its version or its nodes; empty if neither shows it."""
    for mark, name in (("+k3s", "K3s"), ("+rke2", "RKE2"), ("+k0s", "k0s"), ("-gke", "GKE"), ("-eks", "EKS")):
        if mark in version:
            return name
    for node in nodes:
        meta = node["metadata"]
        names = {*(meta.get("annotations") or {}), *(meta.get("labels") or {})}
        if "node.openshift.io/os_id" in names:
            return "OpenShift"
        if "microk8s.io/cluster" in names:
            return "MicroK8s"
        if "kubeadm.alpha.kubernetes.io/cri-socket" in names:
            return "kubeadm"
    return ""


def daemon_set(item: Mapping[str, Any]) -> Json:
    """Return name, images and mounted directories of a DaemonSet, and how many of its pods run."""
    spec, status = item["spec"]["template"]["spec"], item.get("status") or {}
    paths = (volume.get("hostPath", {}).get("path") for volume in spec.get("volumes") or [])
    return {
        "namespace": item["metadata"]["namespace"],
        "name": item["metadata"]["name"],
        "images": [container["image"] for container in spec["containers"]],
        "directories": sorted(path for path in paths if path),
        "wanted": status.get("desiredNumberScheduled", 0),
        "ready": status.get("numberReady", 0),
        "ours": (item["metadata"].get("labels") or {}).get(MANAGED_BY) == OWNER,
    }


def storage_class(item: Mapping[str, Any]) -> Json:
    """Return name and kind of a StorageClass."""
    annotations = item["metadata"].get("annotations") or {}
    return {"name": item["metadata"]["name"], "default": annotations.get(_DEFAULT_CLASS) == "true"}


def name_of(item: Mapping[str, Any]) -> str:
    """Return the name of an object."""
    return str(item["metadata"]["name"])


# {name of a list: (resource, function that reduces an object)}
LISTS: dict[str, tuple[str, Callable[[Mapping[str, Any]], Any]]] = {
    "daemon_sets": ("apps/v1/daemonsets", daemon_set),
    "runtime_classes": ("node.k8s.io/v1/runtimeclasses", name_of),
    "storage_classes": ("storage.k8s.io/v1/storageclasses", storage_class),
    "ingress_classes": ("networking.k8s.io/v1/ingressclasses", name_of),
}


def level(namespace: Mapping[str, Any]) -> str:
    """Return the Pod Security level that a namespace enforces; empty if it has no label."""
    return str((namespace["metadata"].get("labels") or {}).get(_ENFORCE, ""))
