# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide what a cluster that somebody else runs lacks for serving, and what of it is used. Private to the collection.

Nothing of such a cluster is replaced: what is missing is named with a remedy for its owner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._common.terms import RdmaMode

from .._rules import Rules

MULTUS, PROMETHEUS, GPU_OPERATOR = "k8s.cni.cncf.io", "monitoring.coreos.com", "nvidia.com"
NETWORK_OPERATORS = ("mellanox.com", "sriovnetwork.openshift.io")
# The least strict Pod Security level that admits the pods of a mode (measured with the admission plugin of 1.36).
LEVELS: dict[RdmaMode, str] = {
    "privileged": "privileged",
    "ipc_lock": "privileged",
    "restricted": "restricted",
    "none": "baseline",
}
_finding = Rules("_serving").finding
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
        *(_multus(found, wanted) if wanted.networks else ()),
        *_namespace(found, wanted),
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
    rooms = {room["host"]: room for room in found["nodes"]}
    for host in wanted.nodes:
        room = rooms.get(host)
        if room is None:
            yield _finding("existing.node.absent", None, key=host, present=_list(rooms))
            continue
        if room["trouble"]:
            yield _finding("existing.node.not-ready", None, key=host, trouble=room["trouble"], node=room["node"])
        for resource, count in wanted.resources.get(host, {}).items():
            if room["offers"].get(resource, 0) < count:
                gpu = resource.startswith("nvidia.com/")
                rule = "existing.resource.missing/gpu" if gpu else "existing.resource.missing/other"
                offered = room["offers"].get(resource, 0)
                words = {"offered": offered, "count": count, "present": _list(room["offers"])}
                yield _finding(rule, None, host, key=resource, **words)


def _multus(found: Mapping[str, Any], wanted: Wanted) -> Iterator[Finding]:
    if MULTUS not in found["groups"]:
        yield _finding("existing.multus.missing", None)
    elif "daemon_sets" not in found["unread"] and not _named(found, ("multus",)):
        yield _finding("existing.multus.stopped", None)
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
