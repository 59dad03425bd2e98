# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the inputs of a serving plan before anything is changed, and the cables between its ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import PurePosixPath
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._common.terms import Transport
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.causes import VARIABLES, blinds

from .._controller.data import Rules
from .._fabric.model import plan_rails, ring_order, shared_rails, unlinked
from .._node.combinations import describe_holes, find_known
from .._sglang.profile_files import secret_findings
from .model import Cable, NetworkAttachment, Profile, Settings

# Decide by which cables ranks reach each other, and whether NCCL can use them.
#
# With a switch or one direct cable all ranks are on common rails. In a ring every pair of neighbours has its own rails,
# and NCCL must choose the device by the peer's subnet. The statements about NCCL are from the source of 2.30.7:
# transport/net_ib/connect.cc (choice of the device), init.cc (connections, number of devices), graph/connect.cc
# (order).

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
        if not Version.parse(profile.nccl).within(NCCL_MINIMUM, None):
            words = {"nccl": profile.nccl, "least": NCCL_MINIMUM}
            yield _finding("serving.cable.nccl", profile.sglang_version, profile.place, **words)
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


def _owned(cabling: Cabling, profile: Profile, settings: Settings) -> Iterator[Finding]:
    owned = {**cable_env(cabling, 24), "NCCL_IB_MERGE_NICS": "0"}
    for env, where in ((profile.env, profile.place), (settings.env, "serving_plan_env")):
        for key in sorted(owned.keys() & env.keys()):
            yield _finding("serving.env.cable", env[key], where, key=key)


# The plan sets these from the addresses and devices of the fabric plan; another value would be wrong.
OWNED = frozenset(
    {"GLOO_SOCKET_IFNAME", "NCCL_IB_DISABLE", "NCCL_IB_HCA", "NCCL_NET", "NCCL_SOCKET_IFNAME", "SGLANG_HOST_IP"}
)


def fabric_env(
    interface: str, address: str, devices: Sequence[str], transport: Transport, strict: bool
) -> dict[str, str]:
    """Return the environment that binds one rank to its VFs.

    ``interface`` is the pod's interface that reaches every rank, ``address`` the IPv4 address there (empty for the
    pod network: SGLang then takes that of the default route), ``devices`` the RDMA devices of all rails in rail order.
    ``strict`` forbids NCCL to choose another transport, so that a rank without RDMA fails at start instead of running
    on TCP.
    """
    env = {"NCCL_SOCKET_IFNAME": f"={interface}", "GLOO_SOCKET_IFNAME": interface}
    if address:
        env["SGLANG_HOST_IP"] = address
    if transport == "socket":
        # NCCL_IB_DISABLE=1 alone does not stop an external plugin (IBext).
        return env | {"NCCL_NET": "Socket"}
    # "=" means exact names: without it rocep1s0f0v1 also selects rocep1s0f0v10. start_rank.py names devices of networks
    # that others made.
    if all(devices):
        env["NCCL_IB_HCA"] = "=" + ",".join(devices)
    # Pods that have only VFs can't merge the rails into one virtual NIC, which would also hide a dead rail.
    env["NCCL_IB_MERGE_NICS"] = "0"
    if strict:
        env["NCCL_NET"] = "IB"
    return env


# The variables that make NCCL log its transport.
LOG_ENV = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV"}


def platform_env(platform: str) -> dict[str, str]:
    """Return the settings that a machine needs with every profile."""
    # SGLang sends itself a request when it starts, and ends if there is no answer after 600 s (http_server.py,
    # _execute_server_warmup). With a cold cache this request compiles kernels.
    env = {"SGLANG_WARMUP_TIMEOUT": "3600"}
    if platform != "gb10":
        return env
    # NVLS probing hangs on GB10 with NCCL 2.30.4, and a single GPU has no NVLink peers to multicast to. Compilers share
    # the 121 GB with the model: FlashInfer starts 15 and more at once, and machines of four Sparks ran out of memory.
    return env | {"NCCL_NVLS_ENABLE": "0", "MAX_JOBS": "2"}


def check_profile_env(env: Mapping[str, str], where: str, settings: Settings) -> list[Finding]:
    """Return the findings about variables that a profile or the user sets; ``where`` names their origin."""
    found = [_finding("serving.env.owned", env[key], where, key=key) for key in sorted(OWNED & env.keys())]
    # NCCL writes the evidence of its transport to the second one's file, which start_rank.py sets at every start.
    for key, rule in (("NCCL_IB_GID_INDEX", "serving.env.gid_index"), ("NCCL_DEBUG_FILE", "serving.env.evidence")):
        if key in env:
            words = {"kubectl": settings.kubectl, "namespace": settings.namespace}
            found.append(_finding(rule, env[key], where, key=key, **words))
    # NCCL's files have to prove a transport, which groups of one node do not use.
    proves = len(settings.nodes) > 1
    hiding = ((key, blinds(key, str(env[key]))) for key in VARIABLES if proves and key in env)
    return found + [_finding(f"serving.env.{how}", env[key], where, key=key) for key, how in hiding if how]


# The pod's label statefulset.kubernetes.io/pod-name and the hash that StatefulSets append must fit in 63 characters.
INSTANCE_LENGTH = 45
_INSTANCE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_OBJECT = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
_COMMIT = re.compile(r"[0-9a-f]{40}")

TRUST_FLAG = "--trust-remote-code"

# front_door.py stands in front of uvicorn with SGLang's own paths. These start another server, or move the paths.
DOORLESS_FLAGS = frozenset(
    {"--enable-http2", "--fastapi-root-path", "--grpc-mode", "--grpc-port", "--smg-grpc-mode", "--use-ray"}
)


def select_vfs(host: Mapping[str, Any], vf_index: int) -> list[Mapping[str, Any]]:
    """Return the VFs of that index on a host of the fabric plan, in rail order."""
    vfs: list[Mapping[str, Any]] = [vf for vf in host.get("vfs", []) if vf["vf_index"] == vf_index]
    return sorted(vfs, key=lambda vf: int(vf["rail_index"]))


def check(fabric: Mapping[str, Any] | None, profile: Profile, settings: Settings) -> list[Finding]:
    """Return all findings of all checks, unsorted; without a fabric (None) those of the checks that need none."""
    found = [
        *_instance(settings),
        *_modes(settings),
        *_topology(profile, settings),
        *_flags(profile),
        *find_known("serving", facts_of(profile, settings), profile.place),
        *_environment(profile, settings),
        *_models(profile, settings),
        *_ports(settings),
        *_networks(settings),
    ]
    if settings.networks:
        return found
    if fabric is not None and len(settings.nodes) > 1:
        found += [*_fabric(fabric, settings), *check_cables(fabric, profile, settings)]
    return [*found, *_taken(settings)]


def facts_of(profile: Profile, settings: Settings) -> dict[str, Any]:
    """Return what the known combinations and holes are compared with."""
    version = Version.find(profile.sglang_version)
    release = [*version.release] if version else []
    if version and version.stage < 0 and release[-1]:
        release[-1] -= 1  # a development build does not have all changes of the release that it is named after
    return {
        "platform": settings.platform,
        "nodes": len(settings.nodes),
        "image": profile.image,
        "nccl": profile.nccl,
        "sglang": f"SGLang {profile.sglang_version}",
        "release": ".".join(map(str, release)),
        "flags": sorted(_given(profile)),
        "env": sorted({**profile.env, **settings.env}),
        "pinned": not _unpinned(profile),
        "door": not settings.open_routes,
    }


def holes(profile: Profile, settings: Settings) -> list[str]:
    """Return a line with the public names of the known holes of the release, if there are any."""
    names = describe_holes(facts_of(profile, settings))
    return [f"known holes of SGLang {profile.sglang_version}: {names}"] if names else []


def _given(profile: Profile) -> set[str]:
    return {word.partition("=")[0] for word in profile.argv if word.startswith("--")}


def _unpinned(profile: Profile) -> dict[str, str]:
    """Return the repositories whose files can change, because their revision is a branch or a tag."""
    return {name: revision for name, revision in profile.revisions.items() if not _COMMIT.fullmatch(revision)}


def _environment(profile: Profile, settings: Settings) -> Iterator[Finding]:
    # The user's value replaces the profile's, which then hides nothing.
    replaced = settings.env.keys() & set(VARIABLES)
    kept = {key: value for key, value in profile.env.items() if key not in replaced}
    yield from check_profile_env(kept, profile.place, settings)
    yield from check_profile_env(settings.env, "serving_plan_env", settings)
    for found in secret_findings({}, settings.env, "serving_plan_env"):
        yield _finding("serving.env.secret", None, found.where, key=found.key)


def _instance(settings: Settings) -> Iterator[Finding]:
    if not _INSTANCE.fullmatch(settings.instance) or len(settings.instance) > INSTANCE_LENGTH:
        yield _finding("serving.instance.name", settings.instance, most=INSTANCE_LENGTH)


def _modes(settings: Settings) -> Iterator[Finding]:
    mode = settings.rdma_mode
    if settings.transport != "roce" or len(settings.nodes) < 2:
        return
    theirs = [one["resource"] for one in settings.networks if one.get("resource")]
    if mode in ("ipc_lock", "restricted") and not (settings.rdma_resources or settings.sriov_prefix or theirs):
        yield _finding("serving.rdma.resource", [], mode=mode)
    if mode == "none":
        yield _finding("serving.rdma.none", mode)


def _topology(profile: Profile, settings: Settings) -> Iterator[Finding]:
    nodes, where = len(settings.nodes), profile.place
    if nodes != profile.nodes:
        yield _finding("serving.nodes.count", list(settings.nodes), where, count=nodes, wanted=profile.nodes)
    twice = sorted({node for node in settings.nodes if settings.nodes.count(node) > 1})
    if twice:
        yield _finding("serving.nodes.duplicate", twice)
    world, gpus = profile.tp * profile.pp, profile.nodes * settings.gpus_per_node
    if world != gpus:
        asked = {"tp": profile.tp, "pp": profile.pp, "nodes": profile.nodes}
        words = {"world": world, "nodes": profile.nodes, "each": settings.gpus_per_node, "gpus": gpus}
        yield _finding("serving.topology.world", asked, where, **words)


def _flags(profile: Profile) -> Iterator[Finding]:
    """Report flags that pass by the door, and Python code of a repository that can change without the owner."""
    given = _given(profile)
    for flag in sorted(given & DOORLESS_FLAGS):
        yield _finding("serving.args.door", None, profile.place, key=flag)
    for name, revision in _unpinned(profile).items() if TRUST_FLAG in given else ():
        yield _finding("serving.model.code", revision, profile.place, name=name)


def _models(profile: Profile, settings: Settings) -> Iterator[Finding]:
    directory = PurePosixPath(settings.models_dir) if settings.models_dir else None
    for path in profile.paths:
        if directory is None or directory not in PurePosixPath(path).parents:
            yield _finding("serving.model.path", path, profile.place, directory=settings.models_dir or "none")
    if not settings.models_dir and len(settings.nodes) > 1:
        yield _finding("serving.model.unstaged", "", profile.place)


def _networks(settings: Settings) -> Iterator[Finding]:
    for one in settings.networks:
        if not (_OBJECT.fullmatch(one["name"]) and _INSTANCE.fullmatch(one["namespace"])):
            yield _finding("serving.networks.name", one.get("given", ""), kubectl=settings.kubectl)


def _ports(settings: Settings) -> Iterator[Finding]:
    for key, port in (("serving_plan_port", settings.port), ("serving_plan_rendezvous_port", settings.rendezvous_port)):
        if not 1024 <= port <= 65535:
            yield _finding("serving.port.range", port, key=key)
    if settings.port == settings.rendezvous_port:
        yield _finding("serving.port.clash", settings.rendezvous_port)


def _fabric(fabric: Mapping[str, Any], settings: Settings) -> Iterator[Finding]:
    hosts = fabric.get("hosts", {})
    cabling = Cabling.of(fabric, settings.nodes)
    for finding in fabric.get("findings", []):
        if finding["severity"] == "error":
            yield Finding(**finding)
    for node in sorted(set(settings.nodes)):
        if node not in hosts:
            yield _finding("serving.nodes.unknown", node, known=", ".join(sorted(hosts)) or "none is planned")
            continue
        vfs = {vf["rail"]: vf for vf in select_vfs(hosts[node], settings.vf_index)}
        lacking: dict[str, list[str]] = {}
        for rail in cabling.rails[node]:
            if rail not in vfs:
                have = sorted(vf["vf_index"] for vf in hosts[node].get("vfs", []) if vf["rail"] == rail)
                lacking.setdefault(", ".join(map(str, have)) or "none", []).append(rail)
                continue
            for part in ("nad", "address", "rdma_device"):
                if not vfs[rail].get(part):
                    words = {"rail": rail, "index": settings.vf_index, "part": part}
                    yield _finding(f"serving.vf.{part}", vfs[rail].get(part), node, **words)
        for planned, rails in lacking.items():
            yield _finding("serving.vf.index", settings.vf_index, node, rails=", ".join(rails), planned=planned)


def _taken(settings: Settings) -> Iterator[Finding]:
    """Refuse VFs that other running groups hold."""
    for other in settings.taken:
        same_vf = other["node"] in settings.nodes and int(other["vf_index"]) == settings.vf_index
        if same_vf and other["instance"] != settings.instance:
            yield _finding("serving.vf.taken", settings.vf_index, str(other["node"]), other=other["instance"])
