# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Derive network attachments, probe pods and their expected status from the fabric plan. Private to the collection."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, clip
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import MANAGED_BY, NAME, OWNER, PART_OF, RAIL
from ansible_collections.gb10.cluster.plugins.module_utils._kube.objects import brief_pod, made

from .._controller.data import Rules

_RULES = Rules("_fabric")
NETWORKS = "k8s.v1.cni.cncf.io/networks"
NETWORK_STATUS = "k8s.v1.cni.cncf.io/network-status"
RESOURCE_NAME = "k8s.v1.cni.cncf.io/resourceName"
# An interface that moves into a pod loses the host's sysctls. If both rails share a broadcast domain, either VF would
# then answer ARP for both addresses, and RoCE traffic would go to the wrong VF. Measured with two hosts on one bridge:
# the other rail's MAC answered in 3 of 3 runs without these settings and in none with them. The tuning plugin replaces
# IFNAME.
SYSCTLS = {"net.ipv4.conf.IFNAME.arp_ignore": "1", "net.ipv4.conf.IFNAME.arp_announce": "2"}
Manifest = dict[str, Any]
_SHOWN = 100  # characters of a name in a finding


def nad(network: Mapping[str, Any], namespace: str, resource_prefix: str = "") -> Manifest:
    """Return the NetworkAttachmentDefinition of one network of the plan.

    host-device names the VF's netdev. With ``resource_prefix`` the SR-IOV device plugin chooses the VF and Multus
    passes its PCI address instead. ``ips`` must be declared as a capability, because Multus passes a pod's addresses on
    only then. The chained ``tuning`` plugin makes each VF answer ARP for its own address only.
    """
    device: dict[str, Any] = {
        "type": "host-device",
        "capabilities": {"ips": True},
        "ipam": {"type": "static"},
    }
    metadata: dict[str, Any] = {
        "name": network["nad"],
        "namespace": namespace,
        "labels": {MANAGED_BY: OWNER, PART_OF: OWNER, RAIL: network["rail"]},
    }
    if resource_prefix:
        device["capabilities"]["deviceID"] = True
        metadata["annotations"] = {RESOURCE_NAME: sriov_resource(network["nad"], resource_prefix)}
    else:
        device["device"] = network["device"]
    config = {
        "cniVersion": "1.0.0",
        "name": network["nad"],
        "plugins": [device, {"type": "tuning", "sysctl": SYSCTLS}],
    }
    return made("NetworkAttachmentDefinition", metadata, {"config": json.dumps(config, sort_keys=True)})


def sriov_resource(name: str, prefix: str) -> str:
    """Return the name of the resource under which the SR-IOV device plugin offers an attachment's VF."""
    return f"{prefix}/{name.replace('-', '_')}"


def sriov_resources(plan: Mapping[str, Any], prefix: str, selectors: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the SR-IOV device plugin's ``resourceList``.

    Each VF index of each rail is a separate resource, so that the plan and not the kubelet decides which VF, and so
    which address, a pod gets. ``selectors`` are added to each resource.
    """
    resources = []
    for network in plan["networks"]:
        pfs = {vf["pf"] for host in plan["hosts"].values() for vf in host["vfs"] if vf["nad"] == network["nad"]}
        index = network["vf_index"]
        resources.append(
            {
                "resourcePrefix": prefix,
                "resourceName": sriov_resource(network["nad"], prefix).rpartition("/")[2],
                "selectors": [{**selectors, "pfNames": [f"{pf}#{index}-{index}" for pf in sorted(pfs)]}],
            }
        )
    return resources


def sriov_offers(plan: Mapping[str, Any], nodes: Mapping[str, str], prefix: str) -> dict[str, list[str]]:
    """Return the resources that the device plugin must offer on each node; ``nodes`` maps the plan's hosts to nodes."""
    return {
        node: [sriov_resource(vf["nad"], prefix) for vf in plan["hosts"][host]["vfs"]] for host, node in nodes.items()
    }


def nads(
    plan: Mapping[str, Any], namespace: str, resource_prefix: str = "", existing: Iterable[Mapping[str, Any]] = ()
) -> list[Manifest]:
    """Return an attachment per rail and VF index, in the order of the plan, without those that exist as planned."""
    present = {item["metadata"]["name"]: _applied(item) for item in existing}
    wanted = [nad(network, namespace, resource_prefix) for network in plan["networks"]]
    return [item for item in wanted if present.get(item["metadata"]["name"]) != _applied(item)]


def _applied(item: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the fields that applying an attachment sets. The API adds no defaults to this kind."""
    return item["metadata"].get("labels"), item["metadata"].get("annotations"), item.get("spec")


def stale_nads(existing: Iterable[Mapping[str, Any]], plan: Mapping[str, Any]) -> list[str]:
    """Return the names of attachments that this collection created and that the plan no longer contains."""
    planned = {network["nad"] for network in plan["networks"]}
    return sorted(
        resource["metadata"]["name"]
        for resource in existing
        if (resource["metadata"].get("labels") or {}).get(MANAGED_BY) == OWNER
        and resource["metadata"]["name"] not in planned
    )


def attachments(plan: Mapping[str, Any], host: str, namespace: str) -> list[dict[str, Any]]:
    """Return the networks annotation of a pod that uses every VF of ``host``: net1, net2, … in the plan's order."""
    return [
        {
            "name": vf["nad"],
            "namespace": namespace,
            "interface": f"net{number}",
            "ips": [f"{vf['address']}/{vf['prefix']}"],
        }
        for number, vf in enumerate(plan["hosts"][host]["vfs"], start=1)
    ]


def probe_pod(
    plan: Mapping[str, Any], host: str, namespace: str, node: str, image: str, resource_prefix: str = ""
) -> Manifest:
    """Return a pod on ``node`` that only attaches to every VF of ``host``; all Pod Security levels admit it.

    With ``resource_prefix`` the pod requests the VFs from the SR-IOV device plugin.
    """
    names = [vf["nad"] for vf in plan["hosts"][host]["vfs"]] if resource_prefix else []
    meta = {
        "name": f"gb10-probe-{node}",
        "namespace": namespace,
        "labels": {MANAGED_BY: OWNER, NAME: "gb10-probe"},
        "annotations": {NETWORKS: json.dumps(attachments(plan, host, namespace), sort_keys=True)},
    }
    limits = {sriov_resource(name, resource_prefix): 1 for name in names}
    container = {"name": "probe", "image": image, "imagePullPolicy": "IfNotPresent", "resources": {"limits": limits}}
    return brief_pod(meta, container, {"nodeName": node})


def read_networks(text: Any) -> list[Mapping[str, Any]]:
    """Return the networks in an annotation of a pod, which whoever created the pod may have written; [] for no list."""
    try:
        found = json.loads(text) if isinstance(text, str) else []
    except (ValueError, RecursionError):
        return []
    listed = found if isinstance(found, list) else []
    return [entry for entry in listed if isinstance(entry, dict)]


def _texts(found: Any) -> set[str]:
    return {each for each in found if isinstance(each, str)} if isinstance(found, list) else set()


def all_pinged(pods: Iterable[Mapping[str, Any]], results: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether each address of these pods was pinged from inside the very same pod, and no ping of it failed.

    ``results`` are those of fabric_ping of all hosts. A pod that was replaced since then has another UID.
    """
    passed: dict[object, bool] = {}
    for result in results:
        key = str(result.get("pod_uid")), str(result.get("source"))
        passed[key] = result["ok"] and passed.get(key, True)
    wanted = [
        [
            (pod["metadata"]["uid"], address.partition("/")[0])
            for network in read_networks((pod["metadata"].get("annotations") or {}).get(NETWORKS))
            for address in _texts(network.get("ips"))
        ]
        for pod in pods
    ]
    # A pod whose annotation names no address was not pinged from.
    return bool(wanted) and all(keys and all(passed.get(key, False) for key in keys) for keys in wanted)


def attached_nads(pods: Iterable[Mapping[str, Any]]) -> dict[str, set[str]]:
    """Return {node: attachments that its pods hold}; a probe of these would fail, as a VF can be in one pod only."""
    held: dict[str, set[str]] = {}
    for pod in pods:
        networks = read_networks((pod["metadata"].get("annotations") or {}).get(NETWORKS))
        node = pod.get("spec", {}).get("nodeName", "")
        phase = (pod.get("status") or {}).get("phase", "")
        if node and networks and phase not in ("Succeeded", "Failed"):
            held.setdefault(node, set()).update(_texts([entry.get("name") for entry in networks]))
    return held


def compare_status(pod: Mapping[str, Any]) -> list[Finding]:
    """Compare the networks that a pod requested with those that Multus reports: interface names and addresses.

    Addresses in the status have no prefix length, so only the address part is compared.
    """
    name = pod["metadata"]["name"]
    annotations = pod["metadata"].get("annotations") or {}
    wanted = read_networks(annotations.get(NETWORKS))
    got = {str(entry.get("interface", "")): entry for entry in read_networks(annotations.get(NETWORK_STATUS))}
    findings = []
    for entry in wanted:
        status = got.get(str(entry.get("interface")))
        addresses = {address.split("/")[0] for address in _texts(entry.get("ips"))}
        has = _texts(status.get("ips")) if status else set()
        # Without wanted addresses, the IPAM of the network chooses them.
        if not addresses <= has or not has:
            findings.append(
                _RULES.finding(
                    "multus.attachment.wrong" if status else "multus.attachment.missing",
                    ", ".join(sorted(has)) or None,
                    name,
                    pod=name,
                    interface=clip(str(entry.get("interface")), _SHOWN),
                    nad=clip(str(entry.get("name")), _SHOWN),
                    addresses=", ".join(sorted(addresses)) or "an address of this network",
                )
            )
    return findings
