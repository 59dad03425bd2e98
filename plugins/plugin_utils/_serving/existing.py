# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide what a cluster that somebody else runs lacks for serving, and what of it is used. Private to the collection.

Nothing of such a cluster is replaced: what is missing is named with a remedy for its owner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, Severity
from ansible_collections.gb10.cluster.plugins.module_utils._common.terms import RdmaMode

MULTUS, PROMETHEUS, GPU_OPERATOR = "k8s.cni.cncf.io", "monitoring.coreos.com", "nvidia.com"
NETWORK_OPERATORS = ("mellanox.com", "sriovnetwork.openshift.io")
# The least strict Pod Security level that admits the pods of a mode (measured with the admission plugin of 1.36).
LEVELS: dict[RdmaMode, str] = {
    "privileged": "privileged",
    "ipc_lock": "privileged",
    "restricted": "restricted",
    "none": "baseline",
}
_STRICTNESS = ("privileged", "baseline", "restricted")
_GPU_PLUGINS = ("k8s-device-plugin", "nvidia-device-plugin")
_POLICIES = ("calico", "cilium", "antrea", "kube-router", "weave", "ovn")


@dataclass(frozen=True)
class Wanted:
    """What a site needs: ``resources`` by node, ``cni`` the missing CNI plugins by node, as its hosts report them."""

    namespace: str
    rdma_mode: RdmaMode
    nodes: Sequence[str]
    resources: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    runtime_class: str = ""
    networks: bool = True
    cni: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """``used`` and ``unknown`` are sentences; the findings are errors for what is missing, and remarks."""

    used: list[str]
    unknown: list[str]
    findings: list[Finding]


def judge(found: Mapping[str, Any], wanted: Wanted) -> Report:
    """Compare a cluster, as module existing_cluster_info returns it, with what is wanted."""
    findings = [
        *_nodes(found, wanted),
        *_runtime(found, wanted),
        *(_multus(found, wanted) if wanted.networks else ()),
        *_namespace(found, wanted),
        *_policies(found),
    ]
    unread = found["unread"]
    unknown = [f"The kubeconfig may not read {name.replace('_', ' ')}, so they were not checked." for name in unread]
    return Report(list(_used(found)), unknown, findings)


def _finding(
    rule: str, key: str, value: Any, reason: str, remedy: str, where: str = "", of: Severity = "error"
) -> Finding:
    return Finding(of, f"existing.{rule}", key, value, reason, remedy, where)


def _nodes(found: Mapping[str, Any], wanted: Wanted) -> Iterator[Finding]:
    if "nodes" in found["unread"]:
        return
    rooms = {room["host"]: room for room in found["nodes"]}
    for host in wanted.nodes:
        room = rooms.get(host)
        if room is None:
            reason = "the cluster has no node with this label kubernetes.io/hostname, so no rank could start there"
            remedy = f"Ask its owner to join the host, or rename it in the inventory; the cluster has {_list(rooms)}"
            yield _finding("node.absent", host, None, reason, remedy)
            continue
        if room["trouble"]:
            reason = f"the node is not ready: {room['trouble']}"
            yield _finding(
                "node.not-ready",
                host,
                None,
                reason,
                f"Ask the owner of the cluster to repair it: kubectl describe node {room['node']}",
            )
        for resource, count in wanted.resources.get(host, {}).items():
            if room["offers"].get(resource, 0) < count:
                yield _resource(resource, host, room["offers"], count)


def _resource(resource: str, host: str, offers: Mapping[str, int], count: int) -> Finding:
    if resource.startswith("nvidia.com/"):
        remedy = "Ask the owner of the cluster for NVIDIA's GPU operator or its device plugin (0.17.4 or later on GB10)"
    else:
        remedy = (
            "Ask the owner of the cluster for a device plugin that offers it, or name the resource that the node offers"
        )
    reason = f"the node offers {offers.get(resource, 0)} and a rank needs {count}; it offers {_list(offers)}"
    return _finding("resource.missing", resource, None, reason, remedy, host)


def _runtime(found: Mapping[str, Any], wanted: Wanted) -> Iterator[Finding]:
    names = found["runtime_classes"]
    if wanted.runtime_class and "runtime_classes" not in found["unread"] and wanted.runtime_class not in names:
        reason = f"the cluster has no RuntimeClass of this name, so its API refuses the pods; it has {_list(names)}"
        remedy = (
            "Set sglang_runtime_class to the name of NVIDIA's class, or to '' where NVIDIA's runtime is the default one"
        )
        yield _finding("runtime.missing", "sglang_runtime_class", wanted.runtime_class, reason, remedy)


def _multus(found: Mapping[str, Any], wanted: Wanted) -> Iterator[Finding]:
    if MULTUS not in found["groups"]:
        reason = "the cluster does not know network attachments, so pods can't get VFs"
        remedy = "Ask the owner of the cluster for Multus (thin or thick, 4.0 or later), or set gb10_rdma_mode to none"
        yield _finding("multus.missing", MULTUS, None, reason, remedy)
    elif "daemon_sets" not in found["unread"] and not _named(found, ("multus",)):
        reason = "the cluster knows network attachments, but no DaemonSet of Multus creates them"
        yield _finding(
            "multus.stopped", MULTUS, None, reason, "Ask the owner of the cluster to run Multus", of="warning"
        )
    for host, plugins in wanted.cni.items():
        if plugins:
            reason = f"the host lacks the CNI plugins {', '.join(plugins)}, which put a VF into a pod"
            remedy = (
                "Ask the owner of the cluster to install them (project containernetworking/plugins) where the container"
                " runtime looks for them, and name that directory in existing_cluster_cni_dirs"
            )
            yield _finding("cni.missing", "existing_cluster_cni_dirs", None, reason, remedy, host)


def _namespace(found: Mapping[str, Any], wanted: Wanted) -> Iterator[Finding]:
    if "namespace" in found["unread"]:
        return
    level, name = found["namespace"]["level"], wanted.namespace
    needed = LEVELS[wanted.rdma_mode]
    if not found["namespace"]["exists"]:
        label = f"kubectl label namespace {name} pod-security.kubernetes.io/enforce={needed}"
        reason = "the namespace does not exist, and creating one needs rights for the whole cluster"
        yield _finding(
            "namespace.missing", "gb10_namespace", name, reason, f"Ask for: kubectl create namespace {name} && {label}"
        )
    elif level and _STRICTNESS.index(level) > _STRICTNESS.index(needed):
        reason = (
            f"it enforces the Pod Security level {level}, which refuses the pods of gb10_rdma_mode {wanted.rdma_mode}"
        )
        remedy = f"Set gb10_rdma_mode to restricted, or ask for the level {needed}"
        yield _finding("namespace.level", "gb10_namespace", name, reason, remedy)


def _policies(found: Mapping[str, Any]) -> Iterator[Finding]:
    # K3s enforces them itself.
    known = found["distribution"] == "K3s" or "daemon_sets" in found["unread"]
    if not known and not _named(found, _POLICIES):
        reason = "no DaemonSet is known to enforce them, so sglang_allow_from may have no effect"
        remedy = "Ask the owner of the cluster whether its network enforces NetworkPolicies"
        yield _finding("policies.unknown", "NetworkPolicies", None, reason, remedy, of="info")


def _named(found: Mapping[str, Any], words: Sequence[str]) -> list[Mapping[str, Any]]:
    return [
        each
        for each in found["daemon_sets"]
        if any(word in " ".join([each["name"], *each["images"]]).lower() for word in words)
    ]


def _used(found: Mapping[str, Any]) -> Iterator[str]:
    kind = f" ({found['distribution']})" if found["distribution"] else ""
    nodes = "" if "nodes" in found["unread"] else f" with {len(found['nodes'])} nodes"
    yield f"Kubernetes {found['version']}{kind}{nodes}"
    if GPU_OPERATOR in found["groups"]:
        yield "GPUs: NVIDIA's GPU operator"
    for title, words in (("GPUs", _GPU_PLUGINS), ("Multus", ("multus",)), ("RDMA devices", ("rdma", "sriov"))):
        for each in _named(found, words):
            state = f"{each['ready']} of {each['wanted']} pods ready"
            configured = [path for path in each["directories"] if path.endswith("net.d")]
            state += f", CNI configuration in {configured[0]}" if title == "Multus" and configured else ""
            yield f"{title}: DaemonSet {each['namespace']}/{each['name']}, {state}"
    for group in NETWORK_OPERATORS:
        if group in found["groups"]:
            yield f"Network operator: API group {group}"
    if "storage_classes" not in found["unread"]:
        yield f"Default StorageClass: {_list(each['name'] for each in found['storage_classes'] if each['default'])}"
    if "ingress_classes" not in found["unread"]:
        yield f"Ingress classes: {_list(found['ingress_classes'])}"
    yield f"Prometheus operator: {'yes' if PROMETHEUS in found['groups'] else 'no'}"


def _list(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"
