# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a fabric plan and a resolved profile to what every rank of a group runs. Private to the collection.

Shapes: docs/interfaces.md, "Fabric plan" (in) and "Serving plan" (out). Nothing here touches a host or a cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import has_errors, sort_findings

from .._fabric.attachments import sriov_resource
from .checks import check
from .env import fabric_env, log_env, platform_env
from .types import Profile, Settings, select_vfs

SCHEMA = 1


def build(fabric: Mapping[str, Any], profile: Profile, settings: Settings) -> dict[str, Any]:
    """Return the serving plan; with errors among its findings it has no ranks, so that nobody can run half a plan."""
    findings = sort_findings(check(fabric, profile, settings))
    plan: dict[str, Any] = {
        "schema": SCHEMA,
        "instance": settings.instance,
        "profile": profile.name,
        "preset": profile.preset,
        "namespace": settings.namespace,
        "sglang_version": profile.sglang_version,
        "image": profile.image,
        "model_path": profile.model_path,
        "paths": list(profile.paths),
        "rdma_mode": settings.rdma_mode,
        "workload": settings.workload,
        "transport": settings.transport,
        "vf_index": settings.vf_index,
        "nccl_log": settings.nccl_debug_file,
        "service": {"name": settings.instance, "port": settings.port},
        "rendezvous": {},
        "expect": _expect(fabric, profile, settings),
        "ranks": [],
        "patches": [dict(patch) for patch in profile.patches],
        "findings": [finding.as_dict() for finding in findings],
    }
    if not has_errors(findings):
        ranks = [_rank(rank, node, fabric, settings, profile) for rank, node in enumerate(settings.nodes)]
        if len(ranks) > 1:
            address = ranks[0]["networks"][0]["ips"][0].partition("/")[0]
            plan["rendezvous"] = {"address": address, "port": settings.rendezvous_port}
        plan["ranks"] = [entry | {"argv": _argv(entry, plan, profile)} for entry in ranks]
    return plan


def _expect(fabric: Mapping[str, Any], profile: Profile, settings: Settings) -> dict[str, Any]:
    """Return what the transport verdict has to find; a single node talks over no network at all."""
    expected: dict[str, Any] = {"ranks": profile.tp * profile.pp, "nodes": len(settings.nodes), "gdr": False}
    if len(settings.nodes) < 2:
        return expected | {"networks": [], "min_devices": 0}
    if settings.transport == "socket":
        return expected | {"networks": ["Socket"], "min_devices": 1}
    return expected | {"networks": ["IB", "IBext*"], "min_devices": len(fabric.get("rails", []))}


def _networks(host: Mapping[str, Any], settings: Settings) -> list[dict[str, Any]]:
    return [
        {
            "name": vf["nad"],
            "namespace": settings.namespace,
            "interface": f"net{place}",
            "ips": [f"{vf['address']}/{vf['prefix']}"],
            "rdma_device": vf["rdma_device"],
        }
        for place, vf in enumerate(select_vfs(host, settings.vf_index), start=1)
    ]


def _rank(rank: int, node: str, fabric: Mapping[str, Any], settings: Settings, profile: Profile) -> dict[str, Any]:
    # A group of one node needs no fabric: taking VFs there would only keep them from others.
    networks = _networks(fabric["hosts"][node], settings) if len(settings.nodes) > 1 else []
    env = platform_env(settings.platform) | log_env(settings.nccl_debug_file)
    if networks:
        first = networks[0]
        devices = [network["rdma_device"] for network in networks]
        address = first["ips"][0].partition("/")[0]
        env |= fabric_env(first["interface"], address, devices, settings.transport, settings.strict_transport)
    env |= {str(key): str(value) for key, value in {**profile.env, **settings.env}.items()}
    limits: dict[str, Any] = {settings.gpu_resource: settings.gpus_per_node}
    if networks and settings.transport == "roce":
        limits |= dict.fromkeys(settings.rdma_resources, 1)
    if settings.sriov_prefix:
        # Whatever the transport: without the resource Multus would not know which VF to attach.
        limits |= {sriov_resource(network["name"], settings.sriov_prefix): 1 for network in networks}
    return {
        "rank": rank,
        "role": "head" if rank == 0 else "worker",
        "node": node,
        "name": f"{settings.instance}-{rank}",
        "pod": _pod(rank, settings),
        "env": dict(sorted(env.items())),
        "networks": networks,
        "resources": {"limits": limits},
    }


def _pod(rank: int, settings: Settings) -> str:
    """Return the name that the workload's controller gives to the pod of a rank."""
    if settings.workload == "leaderworkerset":
        # the set has the head's name; its leader is called after the replica, a worker after leader and place
        return f"{settings.instance}-0-0" + (f"-{rank}" if rank else "")
    return f"{settings.instance}-{rank}-0"


def _argv(entry: Mapping[str, Any], plan: Mapping[str, Any], profile: Profile) -> list[str]:
    # Staged files have a revision too: SGLang passes over it, but the group is replaced when another one is staged.
    revision = ["--revision", profile.revision] if profile.revision else []
    argv = ["python3", "-m", "sglang.launch_server", "--model-path", profile.model_path, *revision, *profile.argv]
    argv += ["--tp-size", str(profile.tp), "--pp-size", str(profile.pp), "--ep-size", str(profile.ep)]
    if plan["rendezvous"]:
        rendezvous = plan["rendezvous"]
        argv += ["--nnodes", str(profile.nodes), "--node-rank", str(entry["rank"])]
        argv += ["--dist-init-addr", f"{rendezvous['address']}:{rendezvous['port']}"]
    return [*argv, "--host", "0.0.0.0", "--port", str(plan["service"]["port"])]


def summarize(plan: Mapping[str, Any]) -> list[str]:
    """Return a line a rank for people: rank, node, addresses, devices."""
    return [
        f"rank {entry['rank']} on {entry['node']}: "
        + (", ".join(f"{n['interface']} {n['ips'][0]} ({n['rdma_device']})" for n in entry["networks"]) or "no fabric")
        for entry in plan["ranks"]
    ]
