# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the inputs of a serving plan before anything is changed. Private to the collection."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version

from .._sglang.owned import OWNED_FLAGS
from .cables import Cabling, check_cables
from .env import check_profile_env
from .model import Profile, Settings

# The pod's label statefulset.kubernetes.io/pod-name and the hash that StatefulSets append must fit in 63 characters.
INSTANCE_LENGTH = 45
# Older releases leak proxy operations on ARM.
NCCL_ON_ARM = "2.29.3"
_INSTANCE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")

SECRET_FLAGS = frozenset({"--api-key", "--admin-api-key", "--ssl-keyfile-password"})


def select_vfs(host: Mapping[str, Any], vf_index: int) -> list[Mapping[str, Any]]:
    """Return the VFs of that index on a host of the fabric plan, in rail order."""
    vfs: list[Mapping[str, Any]] = [vf for vf in host.get("vfs", []) if vf["vf_index"] == vf_index]
    return sorted(vfs, key=lambda vf: int(vf["rail_index"]))


def check(fabric: Mapping[str, Any], profile: Profile, settings: Settings) -> list[Finding]:
    """Return all findings of all checks, unsorted."""
    return [
        *_instance(settings),
        *_modes(settings),
        *_workload(settings),
        *_topology(profile, settings),
        *_flags(profile),
        *_nccl(profile, settings),
        *check_profile_env(profile.env, f"profile {profile.name}/{profile.preset}"),
        *check_profile_env(settings.env, "serving_plan_env"),
        *_models(profile, settings),
        *_ports(settings),
        *(_fabric(fabric, settings) if len(settings.nodes) > 1 else ()),
        *(check_cables(fabric, profile, settings) if len(settings.nodes) > 1 else ()),
        *_taken(settings),
    ]


def _nccl(profile: Profile, settings: Settings) -> Iterator[Finding]:
    arm = settings.platform == "gb10" and len(settings.nodes) > 1
    if arm and not Version.parse(profile.nccl).within(NCCL_ON_ARM, None):
        yield Finding(
            "warning",
            "serving.nccl.arm",
            "image",
            profile.image,
            f"it comes with NCCL {profile.nccl}; before {NCCL_ON_ARM} ranks on ARM can hang without a message",
            f"Use an image with a newer NCCL, and list it in the profile with carries: [nccl>={NCCL_ON_ARM}]",
            f"profile {profile.name}/{profile.preset}",
            "sglang#33289, nccl#2353",
        )


def _error(rule: str, key: str, value: Any, reason: str, remedy: str, *, where: str = "") -> Finding:
    return Finding("error", rule, key, value, reason, remedy, where)


def _instance(settings: Settings) -> Iterator[Finding]:
    if not _INSTANCE.fullmatch(settings.instance) or len(settings.instance) > INSTANCE_LENGTH:
        yield _error(
            "serving.instance.name",
            "serving_plan_instance",
            settings.instance,
            "it is not a valid name, and Kubernetes builds object and DNS names from it",
            f"Use lower-case letters, digits and dashes only, at most {INSTANCE_LENGTH} characters",
        )


def _modes(settings: Settings) -> Iterator[Finding]:
    mode = settings.rdma_mode
    if settings.transport != "roce" or len(settings.nodes) < 2:
        return
    if mode in ("ipc_lock", "restricted") and not (settings.rdma_resources or settings.sriov_prefix):
        yield _error(
            "serving.rdma.resource",
            "serving_plan_rdma_resources",
            [],
            f"in mode {mode} a pod gets /dev/infiniband only from a device plugin, by the name of its resource",
            "Set the names of the plugin's resources, or use gb10_rdma_mode privileged",
        )
    if mode == "none":
        yield Finding(
            "warning",
            "serving.rdma.none",
            "gb10_rdma_mode",
            mode,
            "the pods get no RDMA device, so NCCL falls back to Socket without an error and the verification fails",
            "Use gb10_rdma_mode privileged, ipc_lock or restricted, or serving_plan_transport socket",
        )


def _workload(settings: Settings) -> Iterator[Finding]:
    if settings.workload == "leaderworkerset" and len(settings.nodes) != 2:
        yield _error(
            "serving.workload.ranks",
            "serving_plan_workload",
            settings.workload,
            f"a LeaderWorkerSet has one template for all workers, while each of {len(settings.nodes)} ranks has a node "
            "and addresses of its own",
            "Use it for groups of two nodes, and statefulset for all others",
        )


def _topology(profile: Profile, settings: Settings) -> Iterator[Finding]:
    nodes, where = len(settings.nodes), f"profile {profile.name}/{profile.preset}"
    if nodes != profile.nodes:
        yield _error(
            "serving.nodes.count",
            "serving_plan_nodes",
            list(settings.nodes),
            f"{nodes} node(s) are given, but the profile is for {profile.nodes}",
            f"Give {profile.nodes} node(s) in rank order, or use another preset",
            where=where,
        )
    twice = sorted({node for node in settings.nodes if settings.nodes.count(node) > 1})
    if twice:
        yield _error(
            "serving.nodes.duplicate",
            "serving_plan_nodes",
            twice,
            "each rank uses the addresses of its node, so a node can run only one rank of a group",
            "Name each node once",
        )
    world, gpus = profile.tp * profile.pp, profile.nodes * settings.gpus_per_node
    if world != gpus:
        yield _error(
            "serving.topology.world",
            "topology",
            {"tp": profile.tp, "pp": profile.pp, "nodes": profile.nodes},
            f"tp x pp = {world} ranks, but {profile.nodes} node(s) with {settings.gpus_per_node} GPU(s) have {gpus}",
            "Choose tp and pp so that tp x pp is the number of GPUs",
            where=where,
        )
    if profile.ep < 1 or profile.tp % profile.ep:
        yield _error(
            "serving.topology.ep",
            "topology.ep",
            profile.ep,
            f"SGLang spreads the experts over a tensor-parallel group of {profile.tp}, which ep has to divide",
            "Use a divisor of tp",
            where=where,
        )


def _flags(profile: Profile) -> Iterator[Finding]:
    where = f"profile {profile.name}/{profile.preset}"
    given = {word.partition("=")[0] for word in profile.argv if word.startswith("--")}
    for flag in sorted(given & OWNED_FLAGS):
        yield _error(
            "serving.args.owned",
            flag,
            None,
            "the serving plan writes this flag from topology, addresses and model",
            "Remove it from server_args",
            where=where,
        )
    for flag in sorted(given & SECRET_FLAGS):
        yield _error(
            "serving.args.secret",
            flag,
            None,
            "everybody on the node can read the arguments of a process, and SGLang writes them to its log",
            "Remove it from server_args and set gateway_api_key or gateway_tls_secret of role gateway",
            where=where,
        )


def _models(profile: Profile, settings: Settings) -> Iterator[Finding]:
    where = f"profile {profile.name}/{profile.preset}"
    directory = PurePosixPath(settings.models_dir) if settings.models_dir else None
    for path in profile.paths:
        if directory is None or directory not in PurePosixPath(path).parents:
            yield _error(
                "serving.model.path",
                "model.path",
                path,
                f"pods see only the directory serving_plan_models_dir of the node ({settings.models_dir or 'none'})",
                "Put the model below that directory on every node, or set serving_plan_models_dir to its parent",
                where=where,
            )
    if not settings.models_dir and len(settings.nodes) > 1:
        yield Finding(
            "warning",
            "serving.model.unstaged",
            "serving_plan_models_dir",
            "",
            "every rank downloads the model itself, so a slow or full node is noticed only when the other ranks wait",
            "Set gb10_models_dir, a directory of every node; all nodes then have the model before any rank starts",
            where,
        )


def _ports(settings: Settings) -> Iterator[Finding]:
    for key, port in (("serving_plan_port", settings.port), ("serving_plan_rendezvous_port", settings.rendezvous_port)):
        if not 1024 <= port <= 65535:
            yield _error("serving.port.range", key, port, "a server cannot listen on this port", "Use 1024 to 65535")
    if settings.port == settings.rendezvous_port:
        yield _error(
            "serving.port.clash",
            "serving_plan_rendezvous_port",
            settings.rendezvous_port,
            "the head already listens for requests there (serving_plan_port)",
            "Use a different port for the rendezvous of the ranks",
        )


def _fabric(fabric: Mapping[str, Any], settings: Settings) -> Iterator[Finding]:
    hosts = fabric.get("hosts", {})
    cabling = Cabling.of(fabric, settings.nodes)
    for finding in fabric.get("findings", []):
        if finding["severity"] == "error":
            yield Finding(**finding)
    for node in sorted(set(settings.nodes)):
        if node not in hosts:
            yield _error(
                "serving.nodes.unknown",
                "serving_plan_nodes",
                node,
                "the fabric plan does not contain this host",
                f"Use hosts of the group gb10_nodes: {', '.join(sorted(hosts)) or 'none is planned'}",
            )
            continue
        vfs = {vf["rail"]: vf for vf in select_vfs(hosts[node], settings.vf_index)}
        for rail in cabling.rails[node]:
            if rail not in vfs:
                yield _missing_vf(hosts[node], rail, settings.vf_index, node)
                continue
            for key in ("nad", "address", "rdma_device"):
                if not vfs[rail].get(key):
                    yield _error(
                        f"serving.vf.{key}",
                        f"{rail} VF {settings.vf_index}",
                        vfs[rail].get(key),
                        f"the fabric plan gives this VF no {key}",
                        "Run playbooks/fabric.yml and correct its findings",
                        where=node,
                    )


def _missing_vf(host: Mapping[str, Any], rail: str, vf_index: int, node: str) -> Finding:
    have = sorted(vf["vf_index"] for vf in host.get("vfs", []) if vf["rail"] == rail)
    shown = ", ".join(map(str, have)) or "none"
    return _error(
        "serving.vf.index",
        "serving_plan_vf_index",
        vf_index,
        f"{rail} has no VF of this index; planned are: {shown}",
        "Use a planned index, or raise gb10_fabric_vf_count",
        where=node,
    )


def _taken(settings: Settings) -> Iterator[Finding]:
    """Refuse VFs that other running groups hold."""
    for other in settings.taken:
        same_vf = other["node"] in settings.nodes and int(other["vf_index"]) == settings.vf_index
        if same_vf and other["instance"] != settings.instance:
            yield _error(
                "serving.vf.taken",
                "serving_plan_vf_index",
                settings.vf_index,
                f"instance {other['instance']} holds the VFs of this index, and a pod waits forever for them",
                "Use another serving_plan_vf_index or other nodes, or stop that instance: playbooks/serve_stop.yml"
                f" -e instance={other['instance']}",
                where=str(other["node"]),
            )
