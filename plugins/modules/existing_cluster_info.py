#!/usr/bin/python
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: existing_cluster_info
short_description: Read what a cluster offers that serving needs
version_added: 0.1.0
description:
  - Reads version, API groups, nodes, DaemonSets, runtime classes, storage classes, ingress classes, the policies of
    NVIDIA's operators and of the SR-IOV operator, and one namespace of a cluster that somebody else runs. It changes
    nothing, and reads no Secret and no environment of a pod.
  - What the kubeconfig may not read is returned in RV(unread), and is no error.
author: The gb10.cluster authors (@gb10)
extends_documentation_fragment: [gb10.cluster.shared.cluster, gb10.cluster.shared.readonly]
options:
  namespace:
    description: Namespace in which models are to be served.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Read what the cluster offers
  gb10.cluster.existing_cluster_info:
    kubeconfig: ~/.kube/config
    context: theirs
    namespace: models
  delegate_to: localhost
"""

RETURN = r"""
version:
  description: Version of the API server.
  returned: always
  type: str
distribution:
  description: Name of the distribution; empty if it is unknown.
  returned: always
  type: str
groups:
  description: Names of the API groups.
  returned: always
  type: list
  elements: str
nodes:
  description: The nodes as M(gb10.cluster.node_room_info) returns them, without holders.
  returned: always
  type: list
  elements: dict
daemon_sets:
  description: All DaemonSets, each with C(namespace), C(name), C(images), C(directories), C(wanted) and C(ready).
  returned: always
  type: list
  elements: dict
runtime_classes:
  description: Names of the runtime classes.
  returned: always
  type: list
  elements: str
storage_classes:
  description: The storage classes, each with C(name) and C(default).
  returned: always
  type: list
  elements: dict
ingress_classes:
  description: Names of the ingress classes.
  returned: always
  type: list
  elements: str
cluster_policies:
  description: The ClusterPolicies of NVIDIA's GPU operator, each with C(name) and C(state).
  returned: always
  type: list
  elements: dict
nic_cluster_policies:
  description: The NicClusterPolicies of NVIDIA's network operator, each with C(name) and C(state).
  returned: always
  type: list
  elements: dict
device_classes:
  description: The DeviceClasses of dynamic resource allocation, each with C(name) and C(resource) (the resource by
    which pods without a ResourceClaim get its devices; may be empty).
  returned: always
  type: list
  elements: dict
sriov_policies:
  description: The node policies of the SR-IOV operator, each with C(name) and C(creates) (whether it creates VFs for
    it).
  returned: always
  type: list
  elements: dict
namespace:
  description: Whether the namespace C(exists), and the Pod Security C(level) that it enforces.
  returned: always
  type: dict
unread:
  description: What the kubeconfig may not read, by the names of the other values.
  returned: always
  type: list
  elements: str
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import (
    FORBIDDEN,
    Cluster,
    ClusterError,
    tolerated,
)
from ansible_collections.gb10.cluster.plugins.module_utils._kube.kubeconfig import CLUSTER_SPEC
from ansible_collections.gb10.cluster.plugins.module_utils._kube.node_room import rooms

Json = dict[str, Any]
# Kubernetes still honours the second name (IsDefaultAnnotation in pkg/volume/util).
_DEFAULT_CLASS = ("storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")
_ENFORCE = "pod-security.kubernetes.io/enforce"
_VERSIONS = {"+k3s": "K3s", "+rke2": "RKE2", "+k0s": "k0s", "-gke": "GKE", "-eks": "EKS"}
# Labels and annotations of nodes. kubeadm 1.36 no longer writes its annotation (feature NodeLocalCRISocket), but gives
# control planes the label of the last line, which others give them too.
_NODES = {
    "node.openshift.io/os_id": "OpenShift",
    "microk8s.io/cluster": "MicroK8s",
    "kubernetes.azure.com/cluster": "AKS",
    "kops.k8s.io/instancegroup": "kOps",
    "kubeadm.alpha.kubernetes.io/cri-socket": "kubeadm",
    "node.kubernetes.io/exclude-from-external-load-balancers": "kubeadm",
}


def distribution(version: str, nodes: list[Json]) -> str:
    """Return the name of the Kubernetes distribution, read from its version or its nodes; empty if neither shows it."""
    about = [node["metadata"] for node in nodes]
    marks = {name for meta in about for part in ("annotations", "labels") for name in meta.get(part) or {}}
    found = [name for mark, name in _VERSIONS.items() if mark in version]
    return next(iter([*found, *(name for mark, name in _NODES.items() if mark in marks)]), "")


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
    }


def storage_class(item: Mapping[str, Any]) -> Json:
    """Return name and kind of a StorageClass."""
    annotations = item["metadata"].get("annotations") or {}
    return {"name": name_of(item), "default": "true" in map(annotations.get, _DEFAULT_CLASS)}


def name_of(item: Mapping[str, Any]) -> str:
    """Return the name of an object."""
    return str(item["metadata"]["name"])


def operator_policy(item: Mapping[str, Any]) -> Json:
    """Return name and state of the object by which an operator of NVIDIA is configured."""
    return {"name": name_of(item), "state": (item.get("status") or {}).get("state", "unknown")}


def sriov_policy(item: Mapping[str, Any]) -> Json:
    """Return the name of a policy of the SR-IOV operator, and whether the operator creates VFs for it."""
    spec = item["spec"]
    return {"name": name_of(item), "creates": bool(spec.get("numVfs")) and not spec.get("externallyManaged")}


def device_class(item: Mapping[str, Any]) -> Json:
    """Return the name of a DeviceClass, and the resource by which pods without a ResourceClaim get its devices."""
    return {"name": name_of(item), "resource": str(item["spec"].get("extendedResourceName") or "")}


# {name of a list: (resource, function that reduces an object)}
LISTS: dict[str, tuple[str, Callable[[Mapping[str, Any]], Any]]] = {
    "daemon_sets": ("apps/v1/daemonsets", daemon_set),
    "runtime_classes": ("node.k8s.io/v1/runtimeclasses", name_of),
    "storage_classes": ("storage.k8s.io/v1/storageclasses", storage_class),
    "ingress_classes": ("networking.k8s.io/v1/ingressclasses", name_of),
    "device_classes": ("resource.k8s.io/v1/deviceclasses", device_class),
    "cluster_policies": ("nvidia.com/v1/clusterpolicies", operator_policy),
    "nic_cluster_policies": ("mellanox.com/v1alpha1/nicclusterpolicies", operator_policy),
    "sriov_policies": ("sriovnetwork.openshift.io/v1/sriovnetworknodepolicies", sriov_policy),
}


def read(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """Return the values that the module documents; ``unread`` names what the API refused. Raise ClusterError."""
    unread: list[str] = []

    def listed(name: str, resource: str, only: str = "") -> list[dict[str, Any]]:
        group = resource.partition("/")[0]
        # To a user without rights, the API refuses also what it does not know.
        if "." in group and group not in groups:
            return []
        with tolerated(FORBIDDEN):
            return cluster.objects(resource, name=only)
        unread.append(name)
        return []

    version, groups = cluster.version(), cluster.api_groups()
    nodes = listed("nodes", "v1/nodes")
    lists = {name: [reduce(item) for item in listed(name, of)] for name, (of, reduce) in LISTS.items()}
    space = listed("namespace", "v1/namespaces", namespace)
    labels = space[0]["metadata"].get("labels") or {} if space else {}
    return {
        "version": version,
        "distribution": distribution(version, nodes),
        "groups": sorted(groups),
        "nodes": [asdict(room) for room in rooms(nodes, [])],
        **lists,
        "namespace": {"exists": bool(space), "level": str(labels.get(_ENFORCE, ""))},
        "unread": unread,
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={**CLUSTER_SPEC, "namespace": {"type": "str", "required": True}}, supports_check_mode=True
    )
    options = module.params
    try:
        found = read(Cluster(options["kubeconfig"], options["context"]), options["namespace"])
    except (ClusterError, ValueError) as error:
        module.fail_json(msg=str(error), changed=False)
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
