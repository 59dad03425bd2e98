# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide by which cables ranks reach each other, and whether NCCL can use them.

With a switch or one direct cable all ranks are on common rails. In a ring every pair of neighbours has its own rails,
and NCCL must choose the device by the peer's subnet. The statements about NCCL are from the source of 2.30.7:
transport/net_ib/connect.cc (choice of the device), init.cc (connections, number of devices), graph/connect.cc (order).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version

from .._fabric.model import plan_rails, ring_order, shared_rails, unlinked
from .._rules import Rules
from .model import Cable, NetworkAttachment, Profile, Settings

# The first tag that reads NCCL_IB_SUBNET_AWARE_ROUTING.
NCCL_MINIMUM = "2.30.7"
# The interface that every CRI runtime gives a pod for the cluster's network.
POD_INTERFACE = "eth0"
_WHERE = "the cables between the group's nodes"
_finding = Rules("_serving").finding


@dataclass(frozen=True)
class Cabling:
    """The rails that each node of a group uses.

    ``common`` means that all nodes use the same rails; ``every_pair`` that no two nodes lack a cable.
    """

    rails: Mapping[str, tuple[str, ...]]
    common: bool
    every_pair: bool

    @classmethod
    def of(cls, fabric: Mapping[str, Any], nodes: Sequence[str]) -> Cabling:
        """Return the rails of all nodes if there are such rails, else those that a node shares with any other."""
        planned = plan_rails(fabric)
        known = {node: planned[node] for node in nodes if node in planned}
        every = shared_rails(known, *known) if known else ()
        if every or len(nodes) < 2:
            return cls(dict.fromkeys(known, every), common=True, every_pair=True)
        used = {
            node: tuple(rail for rail in own if any(rail in known[other] for other in known if other != node))
            for node, own in known.items()
        }
        return cls(used, common=False, every_pair=not unlinked(used, list(used)))

    def pairs(self, nodes: Sequence[str]) -> list[tuple[str, str]]:
        """Return the pairs of nodes whose ranks NCCL connects: all, or only neighbours in rank order."""
        if self.every_pair:
            return list(combinations(nodes, 2))
        return [*pairwise(nodes), (nodes[-1], nodes[0])]


def cable_env(cabling: Cabling, prefix: int) -> dict[str, str]:
    """Return the environment by which NCCL reaches each peer over its own cable; ``prefix`` is that of the subnets.

    By default NCCL assigns the devices to channels in turn and does not check that they reach the peer. An external
    network plugin does not have the choice by subnet.

    Where some pairs lack a cable, only the ring algorithm may be used. SGLang sets NCCL_CUMEM_ENABLE=0 if it is unset;
    NCCL then connects trees and PAT at start, also with NCCL_ALGO=Ring. Measured with four ranks and NCCL 2.28.9: with
    NCCL_CUMEM_ENABLE=1 all-reduce, all-gather, reduce-scatter and broadcast connect only neighbours, with 0 all pairs.
    """
    env = {
        "NCCL_IB_SUBNET_AWARE_ROUTING": "1",
        "NCCL_IB_SUBNET_PREFIX_LEN": str(prefix),
        "NCCL_NET_PLUGIN": "none",
    }
    return env if cabling.every_pair else env | {"NCCL_ALGO": "Ring", "NCCL_CUMEM_ENABLE": "1"}


def cables(
    cabling: Cabling, profile: Profile, nodes: Sequence[str], networks: Sequence[Sequence[NetworkAttachment]]
) -> tuple[Cable, ...]:
    """Return the cables that every generation uses, from the view of both ranks; none where all ranks share rails.

    A ring and the two trees of three ranks use every pair. Above three, trees leave pairs out, so a full mesh is not
    listed. What the last stage of a pipeline returns to the first is too small to prove anything.
    """
    if cabling.common or (cabling.every_pair and len(nodes) > 3):
        return ()
    pairs = [*pairwise(nodes), *([(nodes[-1], nodes[0])] if profile.pp == 1 else [])]
    found = []
    for node, peer in [*pairs, *((two, one) for one, two in pairs)]:
        shared, rank = shared_rails(cabling.rails, node, peer), nodes.index(node)
        by_rail = zip(cabling.rails[node], networks[rank], strict=True)
        devices = tuple(network.rdma_device for rail, network in by_rail if rail in shared)
        found.append(Cable(rank, nodes.index(peer), devices))
    return tuple(sorted(found, key=lambda cable: (cable.rank, cable.peer)))


def check_cables(fabric: Mapping[str, Any], profile: Profile, settings: Settings) -> Iterator[Finding]:
    """Return what prevents NCCL from using the cables between the ranks of a group."""
    nodes, cabling = settings.nodes, Cabling.of(fabric, settings.nodes)
    if set(nodes) - cabling.rails.keys() or len(set(nodes)) < len(nodes):
        return
    if cabling.common:
        if settings.transport == "roce":
            yield from _order(fabric, cabling, settings)
        return
    if settings.transport == "roce":
        missing = list(_paths(cabling, profile, nodes))
        yield from missing or _devices(fabric, cabling, settings)
        if not missing and merges_ports(fabric, cabling, settings):
            yield _finding("serving.cable.merged", "1", _WHERE, key="NCCL_IB_MERGE_NICS")
        yield from _release(profile)
        yield from _owned(cabling, profile, settings)
    yield _finding("serving.rendezvous.pod_network", POD_INTERFACE, _WHERE)


def _paths(cabling: Cabling, profile: Profile, nodes: Sequence[str]) -> Iterator[Finding]:
    gaps = [pair for pair in cabling.pairs(nodes) if not shared_rails(cabling.rails, *pair)]
    if not cabling.every_pair and profile.tp > 1 and profile.pp > 1:
        first = unlinked(cabling.rails, nodes)[0]
        asked, world = {"tp": profile.tp, "pp": profile.pp}, profile.tp * profile.pp
        yield _finding("serving.cable.groups", asked, _WHERE, pair=" and ".join(first), world=world)
    elif gaps:
        order = ring_order(cabling.rails, nodes)
        fix = (
            f"Set serving_plan_nodes to [{', '.join(order)}]" if order else "Close the ring with a cable, use a switch"
        )
        yield _finding("serving.cable.path", list(nodes), _WHERE, pair=" and ".join(gaps[0]), fix=fix)


def _devices(fabric: Mapping[str, Any], cabling: Cabling, settings: Settings) -> Iterator[Finding]:
    """Check that NCCL finds a device for every pair.

    The sender takes a device on the subnet of the listener's device, or else keeps its own, and then the listener takes
    one on that subnet. So one of two devices with the same number must be on the pair's cable. NCCL numbers devices by
    PCI address, which the rail order of a host need not follow; names of RDMA devices do.
    """
    counts = {node: len(rails) for node, rails in cabling.rails.items()}
    if len(set(counts.values())) > 1:
        yield _finding("serving.cable.devices", counts, _WHERE)
        return
    for one, two in [] if merges_ports(fabric, cabling, settings) else _unreached(fabric, cabling, settings):
        shared = shared_rails(cabling.rails, one, two)
        yield _finding("serving.cable.cage", ", ".join(shared), _WHERE, one=one, two=two)


def _unreached(fabric: Mapping[str, Any], cabling: Cabling, settings: Settings) -> list[tuple[str, str]]:
    """Return the pairs of which two devices with the same number are both on other cables."""
    ordered = {node: _by_device(fabric, node, cabling.rails[node], settings.vf_index) for node in cabling.rails}
    return [
        (one, two)
        for one, two in cabling.pairs(settings.nodes)
        for shared in [set(shared_rails(cabling.rails, one, two))]
        if any(not {first, second} & shared for first, second in zip(ordered[one], ordered[two], strict=True))
    ]


def merges_ports(fabric: Mapping[str, Any], cabling: Cabling, settings: Settings) -> bool:
    """Tell whether NCCL has to join the two ports of each NIC to one device, and whether this reaches each neighbour.

    So it is in a ring whose cables all join the same cages of their hosts. With NCCL_IB_MERGE_NICS=1 NCCL chooses the
    port by the peer's subnet within the joined device (reported for four Sparks by two owners, with PFs:
    tonyd2wild/GLM-5.3-Int4-Int8Mix-TP4-4x#2 and sparknet). Where only some cables do so, it was seen to fall back to
    TCP.
    """
    if cabling.common or len({len(rails) for rails in cabling.rails.values()}) > 1:
        return False
    pairs = cabling.pairs(settings.nodes)
    joined = {node: _by_nic(fabric, node, cabling.rails[node], settings.vf_index) for node in cabling.rails}
    return _unreached(fabric, cabling, settings) == pairs and all(
        joined[one].keys() == joined[two].keys()
        and all(joined[one][nic] & joined[two][nic] & set(shared_rails(cabling.rails, one, two)) for nic in joined[one])
        for one, two in pairs
    )


def _by_nic(fabric: Mapping[str, Any], node: str, rails: Sequence[str], vf_index: int) -> dict[str, set[str]]:
    """Return the rails of each PCI device: rocep1s0f0v0 and rocep1s0f1v0 are VFs of its two ports."""
    found: dict[str, set[str]] = {}
    for vf in fabric["hosts"][node]["vfs"]:
        if vf["vf_index"] == vf_index and vf["rail"] in rails:
            found.setdefault(re.sub(r"f\d+(v\d+)?$", "", str(vf["rdma_device"])), set()).add(vf["rail"])
    return found


def _order(fabric: Mapping[str, Any], cabling: Cabling, settings: Settings) -> Iterator[Finding]:
    """Check that devices with the same number are on the same rail: NCCL joins them, by default without a check."""
    named = [node for node in cabling.rails if all(vf["rdma_device"] for vf in fabric["hosts"][node]["vfs"])]
    orders = {node: _by_device(fabric, node, cabling.rails[node], settings.vf_index) for node in named}
    first = next(iter(orders), "")
    for node, order in orders.items():
        if order != orders[first]:
            words = {"one": first, "two": node, "order": ", ".join(orders[first])}
            yield _finding("serving.cable.order", ", ".join(order), _WHERE, **words)


def _by_device(fabric: Mapping[str, Any], node: str, rails: Sequence[str], vf_index: int) -> list[str]:
    devices = {vf["rail"]: vf["rdma_device"] for vf in fabric["hosts"][node]["vfs"] if vf["vf_index"] == vf_index}
    return sorted(rails, key=lambda rail: str(devices.get(rail)))


def _release(profile: Profile) -> Iterator[Finding]:
    if not Version.parse(profile.nccl).within(NCCL_MINIMUM, None):
        where, words = f"profile {profile.name}/{profile.preset}", {"nccl": profile.nccl, "least": NCCL_MINIMUM}
        yield _finding("serving.cable.nccl", profile.sglang_version, where, **words)


def _owned(cabling: Cabling, profile: Profile, settings: Settings) -> Iterator[Finding]:
    owned = {**cable_env(cabling, 24), "NCCL_IB_MERGE_NICS": "0"}
    for env, where in ((profile.env, f"profile {profile.name}/{profile.preset}"), (settings.env, "serving_plan_env")):
        for key in sorted(owned.keys() & env.keys()):
            yield _finding("serving.env.cable", env[key], where, key=key)
