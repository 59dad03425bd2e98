# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find what would prevent a group from starting, before a running one is stopped. Private to the collection.

Nothing of a cluster of others is replaced: what is missing is named with a remedy for its owner.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common import plain
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._common.terms import RdmaMode
from ansible_collections.gb10.cluster.plugins.module_utils._kube.kubeconfig import kubectl
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import INSTANCE
from ansible_collections.gb10.cluster.plugins.module_utils._kube.node_room import Holder, Room, amount, untolerated

from .._controller.data import Rules
from .._fabric.attachments import RESOURCE_NAME
from .model import Plan, RankPlan
from .pods import requests
from .summary import revisions

_finding = Rules("_serving").finding


def obstacles(
    plan: Plan,
    nads: Iterable[Mapping[str, Any]],
    rooms: Iterable[Room],
    unread: Iterable[str] = (),
    tolerations: Sequence[Mapping[str, Any]] = (),
    resources: Mapping[str, Any] | None = None,
    computed: bool = True,
    kubeconfig: str | None = None,
    context: str | None = None,
) -> list[Finding]:
    """Return an error for everything in the cluster that prevents a rank of ``plan`` from starting on its node.

    ``nads`` are the NetworkAttachmentDefinitions of the networks' namespaces, ``rooms`` the nodes as module
    node_room_info returns them; ``unread`` may contain ``nodes``, and then they are not judged. Pods of the same group
    are no obstacle: they stop before the new ones start. ``tolerations`` are those of the pods. ``resources`` and
    ``computed`` say what they request, as :func:`.pods.requests` takes them. ``kubeconfig`` and ``context``
    stand in the commands of remedies.
    """
    present = {(nad["metadata"].get("namespace", plan.namespace), nad["metadata"]["name"]): nad for nad in nads}
    by_host = {room.host: room for room in rooms}
    program = kubectl(kubeconfig, context)
    found: list[Finding] = []
    for entry in plan.ranks:
        found += _networks(entry, present, program)
        if "nodes" in unread:
            continue
        room = by_host.get(entry.node)
        if room is None:
            found.append(_error("serving.node.absent", entry.node, entry))
        else:
            found += [_error(rule, room.node, entry, **words) for rule, words in closed(room, tolerations, program)]
            found += _shortages(entry, room, plan)
            found += _too_large(entry, room, requests(entry, plan, resources or {}, computed))
    return found


def _networks(entry: RankPlan, present: Mapping[tuple[str, str], Mapping[str, Any]], program: str) -> Iterator[Finding]:
    """Yield what is wrong with the networks of a rank; ``present`` has those of the cluster by namespace and name."""
    for one in entry.networks:
        nad = present.get((one.namespace, one.name))
        rule = "serving.nad.missing" if one.ips else "serving.nad.missing/theirs"
        if nad is None:
            yield _error(rule, one.name, entry, namespace=one.namespace, interface=one.interface, kubectl=program)
            continue
        resource = str((nad["metadata"].get("annotations") or {}).get(RESOURCE_NAME) or "")
        if resource and resource not in entry.limits:
            yield _error("serving.nad.resource", one.name, entry, resource=resource, namespace=one.namespace)


def unknown_group(accounts: Iterable[Mapping[str, Any]], instance: str, namespace: str) -> list[Finding]:
    """Return an error if the group is not named or does not exist.

    ``accounts`` are the namespace's ServiceAccounts. Of a group's objects, this is created first and deleted last.
    """
    found = {item["metadata"].get("labels", {}).get(INSTANCE, "") for item in accounts} - {""}
    if instance in found:
        return []
    present = ", ".join(sorted(found)) or "none"
    rule = "serving.group.unknown" if instance else "serving.group.unnamed"
    return [_finding(rule, instance or None, namespace=namespace, present=present)]


def replaced(objects: Iterable[Mapping[str, Any]], ranks: Iterable[Mapping[str, Any]], instance: str) -> list[Finding]:
    """Return an error if ranks run another revision than that of the ``objects`` that were applied.

    ``ranks`` are those of module serving_group_info.
    """
    applied = set(revisions(objects).values())
    other = {str(rank["pod"]): str(rank["revision"]) for rank in ranks if rank["revision"] not in applied}
    if not other:
        return []
    shown = ", ".join(f"{pod} has {revision or 'none'}" for pod, revision in sorted(other.items()))
    return [_finding("serving.group.replaced", instance, revision=", ".join(sorted(applied)), pods=shown)]


def taken(plan: Plan, held: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """Return an error for each VF of the plan that another group has got since it was planned.

    ``held`` has ``{instance, node, vf_index}`` per rank of a running group.
    """
    wanted = {(rank.node, plan.vf_index) for rank in plan.ranks if any(network.ips for network in rank.networks)}
    return [
        _finding("serving.vf.taken", plan.vf_index, str(one["node"]), other=one["instance"])
        for one in held
        if (one["node"], one["vf_index"]) in wanted and one["instance"] != plan.instance
    ]


def _error(rule: str, key: str, entry: RankPlan, **words: object) -> Finding:
    return _finding(rule, None, f"rank {entry.rank} on {entry.node}", key=key, **words)


def closed(room: Room, tolerations: Sequence[Mapping[str, Any]], program: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the rules by which no pod with these tolerations can start on a node, each with its words."""
    if room.trouble:
        yield "serving.node.not_ready", {"trouble": room.trouble}
    if room.disk:
        yield "serving.node.disk", {"disk": room.disk}
    if room.cordoned:
        yield "serving.node.cordoned", {"kubectl": program}
    if taints := untolerated(room, tolerations):
        wanted = ", ".join(f"{{key: {taint.key}, operator: Exists}}" for taint in taints)
        yield "serving.node.tainted", {"taints": ", ".join(map(str, taints)), "wanted": wanted}


def _shortages(entry: RankPlan, room: Room, plan: Plan) -> list[Finding]:
    own = (plan.namespace, plan.instance)
    found = []
    for resource, needed in entry.limits.items():
        total = room.offers.get(resource, 0)
        others = [h for h in room.holders if resource in h.resources and (h.namespace, h.instance) != own]
        if needed > total:
            found.append(_error("serving.node.full/offers", resource, entry, total=total, needed=needed))
        elif needed > total - sum(h.resources[resource] for h in others):
            held = ", ".join(f"pod {h.namespace}/{h.pod} holds {h.resources[resource]}" for h in others)
            words = {"total": total, "needed": needed, "held": held, "fix": _fix(others, plan.namespace)}
            found.append(_error("serving.node.full/held", resource, entry, **words))
    return found


_UNITS = {"cpu": (1000, "CPUs"), "memory": (2**30, "GiB of memory")}


def _too_large(entry: RankPlan, room: Room, asked: Mapping[str, str]) -> Iterator[Finding]:
    for name, left in room.left.items():
        if name in asked and (needed := amount(name, asked[name])) > left:
            scale, unit = _UNITS[name]
            words = {"needed": f"{needed / scale:g}", "left": f"{left / scale:.1f}", "unit": unit}
            yield _error(f"serving.node.requests{'/cpu' if name == 'cpu' else ''}", name, entry, **words)


def _fix(others: Sequence[Holder], namespace: str) -> str:
    groups = sorted(
        {
            one.instance + (f" -e gb10_namespace={one.namespace}" if one.namespace != namespace else "")
            for one in others
            if one.instance
        }
    )
    if not groups:
        return "Delete what made these pods, such as a Deployment or Job, or a pod that nothing made"
    stops = " and ".join(f"playbooks/serve_stop.yml -e instance={group}" for group in groups)
    return f"Stop the other group first ({stops})"


MULTUS, PROMETHEUS, OPENSHIFT = "k8s.cni.cncf.io", "monitoring.coreos.com", "security.openshift.io"
# The least strict Pod Security level that admits the pods of a mode (measured with the admission plugin of 1.36).
LEVELS: dict[RdmaMode, str] = {
    "privileged": "privileged",
    "ipc_lock": "privileged",
    "restricted": "restricted",
    "none": "baseline",
}
_STRICTNESS = ("privileged", "baseline", "restricted")
_POLICIES = ("calico", "cilium", "antrea", "kube-router", "weave", "ovn", "network-policy-agent", "azure-npm")
_GPUS, _RDMA, _MULTUS = "GPUs", "RDMA devices", "Multus"
# DaemonSets beside Multus that have its name
_NOT_MULTUS = re.compile(r"whereabouts|dhcp|additional-cni")


@dataclass(frozen=True)
class Wanted:
    """What a site needs: ``resources`` by node, ``cni`` the missing CNI plugins by node, as its hosts report them.

    ``gpu`` is the resource of the GPUs, ``tolerations`` are those of the pods. Without ``ssh`` no host was asked;
    ``theirs`` tells that somebody else makes VFs and networks.
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
    ssh: bool = True
    theirs: bool = False
    kubeconfig: str = ""
    context: str = ""

    @property
    def kubectl(self) -> str:
        """Return the beginning of a command about the cluster."""
        return kubectl(self.kubeconfig, self.context)


def judge(found: Mapping[str, Any], wanted: Wanted) -> tuple[list[str], list[Finding]]:
    """Compare a cluster, as module existing_cluster_info returns it, with what is wanted.

    Return sentences about what is used and what is unknown, and errors for what is missing, and remarks.
    """
    findings = [
        *_nodes(found, wanted),
        *(_multus(found, wanted) if wanted.networks else ()),
        *_namespace(found, wanted),
        *_twice(found),
        *_stricter(found, wanted),
    ]
    names, unread = found["runtime_classes"], found["unread"]
    if wanted.runtime_class and "runtime_classes" not in unread and wanted.runtime_class not in names:
        findings.append(_finding("existing.runtime.missing", wanted.runtime_class, present=_list(names)))
    # K3s enforces policies itself.
    if not (
        found["distribution"] == "K3s"
        or "daemon_sets" in unread
        or any(_has(each, _POLICIES) for each in found["daemon_sets"])
    ):
        findings.append(_finding("existing.policies.unknown", None))
    lines = [f"used: {line}" for line in _used(found)]
    lines += [f"The kubeconfig may not read {name.replace('_', ' ')}, so they were not checked." for name in unread]
    if wanted.networks and not wanted.ssh:
        lines.append("No node was asked over SSH, so neither VFs nor CNI plugins were checked.")
    return lines, findings


def _nodes(found: Mapping[str, Any], wanted: Wanted) -> Iterator[Finding]:
    if "nodes" in found["unread"]:
        return
    rooms = {room.host: room for room in (plain.load(Room, each) for each in found["nodes"])}
    for host in wanted.nodes:
        room = rooms.get(host)
        if room is None:
            yield _finding("existing.node.absent", None, key=host, present=_list(rooms))
            continue
        for rule, said in closed(room, wanted.tolerations, wanted.kubectl):
            yield _finding(rule, None, host, key=room.node, **said)
        for resource, count in wanted.resources.get(host, {}).items():
            offered = room.offers.get(resource, 0)
            # A node does not list what the scheduler gets by a claim that it makes itself (DRAExtendedResource).
            if offered < count and resource not in {one["resource"] for one in found["device_classes"]}:
                named = any(name.startswith(("nvidia.com/gpu", "nvidia.com/mig-")) for name in room.offers)
                kind = "named" if named else "claims" if found["device_classes"] else "gpu"
                kind = kind if resource == wanted.gpu else "other"
                words = {"offered": offered, "count": count, "present": _list(room.offers)}
                words |= {"classes": _list(one["name"] for one in found["device_classes"])}
                yield _finding(f"existing.resource.missing/{kind}", None, host, key=resource, **words)


def _multus(found: Mapping[str, Any], wanted: Wanted) -> Iterator[Finding]:
    if MULTUS not in found["groups"]:
        yield _finding("existing.multus.missing", None)
    elif "daemon_sets" not in found["unread"] and not any(each["ready"] for each in _parts(found)[_MULTUS]):
        yield _finding("existing.multus.stopped", None)
    for policy in found["sriov_policies"]:
        if policy["creates"] and not wanted.theirs:
            yield _finding("existing.sriov.managed", None, key=policy["name"], kubectl=wanted.kubectl)
    for host, plugins in wanted.cni.items():
        if plugins:
            yield _finding("existing.cni.missing", None, host, plugins=", ".join(plugins))


def _namespace(found: Mapping[str, Any], wanted: Wanted) -> Iterator[Finding]:
    if "namespace" in found["unread"]:
        return
    level, name = found["namespace"]["level"], wanted.namespace
    needed = LEVELS[wanted.rdma_mode]
    if not found["namespace"]["exists"]:
        yield _finding("existing.namespace.missing", name, level=needed, kubectl=wanted.kubectl)
    elif level and _STRICTNESS.index(level) > _STRICTNESS.index(needed):
        yield _finding("existing.namespace.level", name, level=level, mode=wanted.rdma_mode, needed=needed)
    elif OPENSHIFT in found["groups"]:
        # Pods of mode restricted have a fixed user, which restricted-v2 refuses.
        context = "nonroot-v2" if wanted.rdma_mode == "restricted" else "privileged"
        yield _finding("existing.namespace.openshift", name, context=context)


# The names under which shared RDMA device plugins offer devices
_SHARED = re.compile(r"rdma/|[^/]+/(rdma|hca|roce)")


def _stricter(found: Mapping[str, Any], wanted: Wanted) -> Iterator[Finding]:
    """Yield the strictest RDMA mode that the devices of the nodes allow, if the wanted one is privileged."""
    if wanted.rdma_mode != "privileged" or not wanted.networks:
        return
    offers = [plain.load(Room, each).offers for each in found["nodes"] if each["host"] in wanted.nodes]
    shared = [
        name for name in (offers[0] if offers else ()) if _SHARED.match(name) and all(one.get(name) for one in offers)
    ]
    if shared:
        yield _finding("existing.mode.stricter", wanted.rdma_mode, resource=min(shared))
    else:
        yield _finding("existing.mode.privileged", wanted.rdma_mode)


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
