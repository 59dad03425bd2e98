# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide what a cluster that somebody else runs lacks for serving, and what of it is used. Private to the collection.

Nothing of such a cluster is replaced: what is missing is named with a remedy for its owner.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common import plain
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._common.terms import RdmaMode
from ansible_collections.gb10.cluster.plugins.module_utils._kube.node_room import Room

from .._rules import Rules
from .obstacles import closed

MULTUS, PROMETHEUS, OPENSHIFT = "k8s.cni.cncf.io", "monitoring.coreos.com", "security.openshift.io"
# The least strict Pod Security level that admits the pods of a mode (measured with the admission plugin of 1.36).
LEVELS: dict[RdmaMode, str] = {
    "privileged": "privileged",
    "ipc_lock": "privileged",
    "restricted": "restricted",
    "none": "baseline",
}
_finding = Rules("_serving").finding
_STRICTNESS = ("privileged", "baseline", "restricted")
_POLICIES = ("calico", "cilium", "antrea", "kube-router", "weave", "ovn", "network-policy-agent", "azure-npm")
_GPUS, _RDMA, _MULTUS = "GPUs", "RDMA devices", "Multus"
# DaemonSets beside Multus that have its name
_NOT_MULTUS = re.compile(r"whereabouts|dhcp|additional-cni")


@dataclass(frozen=True)
class Wanted:
    """What a site needs: ``resources`` by node, ``cni`` the missing CNI plugins by node, as its hosts report them.

    ``gpu`` is the resource of the GPUs, ``tolerations`` are those of the pods.
    """

    namespace: str
    rdma_mode: RdmaMode
    nodes: Sequence[str]
    resources: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    gpu: str = "nvidia.com/gpu"
    tolerations: Sequence[Mapping[str, Any]] = ()
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
        *(_multus(found, wanted) if wanted.networks else ()),
        *_namespace(found, wanted),
        *_twice(found),
    ]
    names, unread = found["runtime_classes"], found["unread"]
    if wanted.runtime_class and "runtime_classes" not in unread and wanted.runtime_class not in names:
        findings.append(_finding("existing.runtime.missing", wanted.runtime_class, present=_list(names)))
    # K3s enforces policies itself.
    if not (found["distribution"] == "K3s" or "daemon_sets" in unread or _named(found, _POLICIES)):
        findings.append(_finding("existing.policies.unknown", None))
    unknown = [f"The kubeconfig may not read {name.replace('_', ' ')}, so they were not checked." for name in unread]
    return Report(list(_used(found)), unknown, findings)


def _nodes(found: Mapping[str, Any], wanted: Wanted) -> Iterator[Finding]:
    if "nodes" in found["unread"]:
        return
    rooms = {room.host: room for room in (plain.load(Room, each) for each in found["nodes"])}
    for host in wanted.nodes:
        room = rooms.get(host)
        if room is None:
            yield _finding("existing.node.absent", None, key=host, present=_list(rooms))
            continue
        for rule, said in closed(room, wanted.tolerations):
            yield _finding(rule, None, host, key=room.node, **said)
        for resource, count in wanted.resources.get(host, {}).items():
            offered = room.offers.get(resource, 0)
            if offered < count:
                named = any(name.startswith(("nvidia.com/gpu", "nvidia.com/mig-")) for name in room.offers)
                kind = "other" if resource != wanted.gpu else "named" if named else "gpu"
                words = {"offered": offered, "count": count, "present": _list(room.offers)}
                yield _finding(f"existing.resource.missing/{kind}", None, host, key=resource, **words)


def _multus(found: Mapping[str, Any], wanted: Wanted) -> Iterator[Finding]:
    if MULTUS not in found["groups"]:
        yield _finding("existing.multus.missing", None)
    elif "daemon_sets" not in found["unread"] and not any(each["ready"] for each in _parts(found)[_MULTUS]):
        yield _finding("existing.multus.stopped", None)
    for policy in found["sriov_policies"]:
        if policy["creates"]:
            yield _finding("existing.sriov.managed", None, key=policy["name"])
    for host, plugins in wanted.cni.items():
        if plugins:
            yield _finding("existing.cni.missing", None, host, plugins=", ".join(plugins))


def _namespace(found: Mapping[str, Any], wanted: Wanted) -> Iterator[Finding]:
    if "namespace" in found["unread"]:
        return
    level, name = found["namespace"]["level"], wanted.namespace
    needed = LEVELS[wanted.rdma_mode]
    if not found["namespace"]["exists"]:
        yield _finding("existing.namespace.missing", name, level=needed)
    elif level and _STRICTNESS.index(level) > _STRICTNESS.index(needed):
        yield _finding("existing.namespace.level", name, level=level, mode=wanted.rdma_mode, needed=needed)
    elif OPENSHIFT in found["groups"]:
        # Pods of mode restricted have a fixed user, which restricted-v2 refuses.
        context = "nonroot-v2" if wanted.rdma_mode == "restricted" else "privileged"
        yield _finding("existing.namespace.openshift", name, context=context)


def _twice(found: Mapping[str, Any]) -> Iterator[Finding]:
    for part in (_GPUS, _MULTUS):
        names = [f"{each['namespace']}/{each['name']}" for each in _parts(found)[part] if each["wanted"]]
        if len(names) > 1:
            yield _finding("existing.part.twice", None, key=part, names=" and ".join(sorted(names)))


def _parts(found: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """Return the DaemonSets of Multus, and the device plugins: they mount the directory of the kubelet's sockets.

    NVIDIA's other DaemonSets use the image of its device plugin too, and that of the SR-IOV CNI plugin has its name.
    """
    sets = found["daemon_sets"]
    plugins = [
        each
        for each in sets
        if any(path.rstrip("/").endswith(("/device-plugins", "/kubelet")) for path in each["directories"])
    ]
    rdma = [each for each in plugins if _has(each, ("rdma", "sriov"))]
    return {
        _GPUS: [each for each in plugins if each not in rdma and _has(each, ("nvidia", "gpu"))],
        _MULTUS: [each for each in sets if _has(each, ("multus",)) and not _NOT_MULTUS.search(each["name"])],
        _RDMA: rdma,
    }


def _has(daemon_set: Mapping[str, Any], words: Sequence[str]) -> bool:
    text = " ".join([daemon_set["name"], *daemon_set["images"]]).lower()
    return any(word in text for word in words)


def _named(found: Mapping[str, Any], words: Sequence[str]) -> list[Mapping[str, Any]]:
    return [each for each in found["daemon_sets"] if _has(each, words)]


def _used(found: Mapping[str, Any]) -> Iterator[str]:
    kind = f" ({found['distribution']})" if found["distribution"] else ""
    nodes = "" if "nodes" in found["unread"] else f" with {len(found['nodes'])} nodes"
    yield f"Kubernetes {found['version']}{kind}{nodes}"
    for each in found["cluster_policies"]:
        yield f"GPUs: NVIDIA's GPU operator, ClusterPolicy {each['name']} is {each['state']}"
    for title, sets in _parts(found).items():
        for each in sets:
            state = f"{each['ready']} of {each['wanted']} pods ready"
            configured = [path for path in each["directories"] if path.endswith("net.d")]
            state += f", CNI configuration in {configured[0]}" if title == _MULTUS and configured else ""
            yield f"{title}: DaemonSet {each['namespace']}/{each['name']}, {state}"
    for each in found["nic_cluster_policies"]:
        yield f"Network: NVIDIA's network operator, NicClusterPolicy {each['name']} is {each['state']}"
    if found["sriov_policies"]:
        yield f"VFs: policies of the SR-IOV operator: {_list(each['name'] for each in found['sriov_policies'])}"
    if "storage_classes" not in found["unread"]:
        yield f"Default StorageClass: {_list(each['name'] for each in found['storage_classes'] if each['default'])}"
    if "ingress_classes" not in found["unread"]:
        yield f"Ingress classes: {_list(found['ingress_classes'])}"
    yield f"Prometheus operator: {'yes' if PROMETHEUS in found['groups'] else 'no'}"


def _list(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"
