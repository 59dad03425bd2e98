# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan what every rank of a group runs, from a fabric plan and a resolved profile. Private to the collection.

Shapes: docs/interfaces.md, "Fabric plan" (in) and "Serving plan" (out). Nothing here touches a host or a cluster.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, has_errors, sort_findings

from .._fabric.attachments import sriov_resource
from .._sglang.facts import GPUS, described
from .._sglang.memory import two_digits
from .cables import POD_INTERFACE, Cabling, cable_env, cables, merges_ports
from .checks import check, fabric_env, log_env, platform_env, select_vfs
from .model import Expectation, NetworkAttachment, Plan, Profile, RankPlan, Rendezvous, Service, Settings, flags

# Columns, so that a command fits a terminal beside the indent of Ansible's message.
_COMMAND_WIDTH = 110


def plan_group(fabric: Mapping[str, Any] | None, profile: Profile, settings: Settings) -> tuple[Plan, list[Finding]]:
    """Return the serving plan and its findings; with an error the plan has no ranks, so that no part of it is run.

    Without a fabric (None) the plan has no ranks either, and only what does not depend on it is checked.
    """
    findings = sort_findings(check(fabric, profile, settings))
    cabling = Cabling.of(fabric or {}, settings.nodes)
    plan = Plan(
        instance=settings.instance,
        profile=profile.name,
        preset=profile.preset,
        namespace=settings.namespace,
        sglang_version=profile.sglang_version,
        image=profile.image,
        model_path=profile.model_path,
        rdma_mode=settings.rdma_mode,
        transport=settings.transport,
        vf_index=settings.vf_index,
        service=Service(settings.instance, settings.port),
        expect=_expect(cabling, profile, settings),
        patches=profile.patches,
        paths=profile.paths,
        models=profile.models,
        revisions=profile.revisions,
        models_dir=settings.models_dir,
        memory=profile.memory,
        load=profile.load,
        mtu=(fabric or {}).get("mtu", 0),
        gpu=described(settings.platform, settings.gpus_per_node) if settings.platform in GPUS else {},
    )
    if fabric is None or has_errors(findings):
        return plan, findings
    ranks = [_rank(rank, node, fabric, cabling, settings, profile) for rank, node in enumerate(settings.nodes)]
    meet = _rendezvous(ranks, cabling, settings)
    ready = tuple(replace(rank, argv=_argv(rank, meet, settings.port, profile)) for rank in ranks)
    if settings.transport == "roce":
        plan = replace(plan, cables=cables(cabling, profile, settings.nodes, [rank.networks for rank in ranks]))
    return replace(plan, rendezvous=meet, ranks=ready), findings


def _rendezvous(ranks: Sequence[RankPlan], cabling: Cabling, settings: Settings) -> Rendezvous | None:
    if len(ranks) < 2:
        return None
    if cabling.common:
        return Rendezvous(ranks[0].networks[0].ip, settings.rendezvous_port)
    service = f"{settings.instance}-ranks"
    return Rendezvous(f"{service}.{settings.namespace}.svc", settings.rendezvous_port, service)


def _expect(cabling: Cabling, profile: Profile, settings: Settings) -> Expectation:
    """Return the conditions of the transport verdict; the ranks of a single node use no network."""
    expected = Expectation(ranks=profile.tp * profile.pp, nodes=len(settings.nodes))
    if len(settings.nodes) < 2:
        return expected
    if settings.transport == "socket":
        return replace(expected, networks=("Socket",), min_devices=1)
    if not cabling.common:
        # Channel lines name the device that NCCL chose before the choice by subnet; the counters prove each cable.
        return replace(expected, networks=("IB",), min_devices=1)
    rails = min(map(len, cabling.rails.values()))
    return replace(expected, networks=("IB", "IBext*"), min_devices=rails)


def _networks(host: Mapping[str, Any], rails: Sequence[str], settings: Settings) -> tuple[NetworkAttachment, ...]:
    chosen = [vf for vf in select_vfs(host, settings.vf_index) if vf["rail"] in rails]
    return tuple(
        NetworkAttachment(
            vf["nad"], settings.namespace, f"net{place}", (f"{vf['address']}/{vf['prefix']}",), vf["rdma_device"]
        )
        for place, vf in enumerate(chosen, start=1)
    )


def _rank(
    rank: int, node: str, fabric: Mapping[str, Any], cabling: Cabling, settings: Settings, profile: Profile
) -> RankPlan:
    # A group of one node needs no fabric, and VFs that it holds are unavailable to other groups.
    several = len(settings.nodes) > 1
    networks = _networks(fabric["hosts"][node], cabling.rails[node], settings) if several else ()
    env = platform_env(settings.platform) | log_env()
    if several:
        reach = (networks[0].interface, networks[0].ip) if cabling.common else (POD_INTERFACE, "")
        devices = [network.rdma_device for network in networks]
        env |= fabric_env(*reach, devices, settings.transport, settings.strict_transport)
        if not cabling.common and settings.transport == "roce":
            env |= cable_env(cabling, int(networks[0].address.partition("/")[2]))
            env["NCCL_IB_MERGE_NICS"] = str(int(merges_ports(fabric, cabling, settings)))
    env |= {str(key): str(value) for key, value in {**profile.env, **settings.env}.items()}
    limits = {settings.gpu_resource: settings.gpus_per_node}
    if networks and settings.transport == "roce":
        limits |= dict.fromkeys(settings.rdma_resources, 1)
    if settings.sriov_prefix:
        # For every transport: without the resource Multus would not know which VF to attach.
        limits |= {sriov_resource(network.name, settings.sriov_prefix): 1 for network in networks}
    return RankPlan(
        rank=rank,
        role="head" if rank == 0 else "worker",
        node=node,
        name=f"{settings.instance}-{rank}",
        # The name that the controller of StatefulSets gives to the one pod of a set
        pod=f"{settings.instance}-{rank}-0",
        env=dict(sorted(env.items())),
        networks=networks,
        resources={"limits": limits},
    )


def _argv(rank: RankPlan, meet: Rendezvous | None, port: int, profile: Profile) -> tuple[str, ...]:
    # SGLang ignores the revision of staged files, but with it the group is replaced when another one is staged.
    revision = ["--revision", profile.revision] if profile.revision else []
    argv = ["python3", "-m", "sglang.launch_server", "--model-path", profile.model_path, *revision, *profile.argv]
    argv += ["--tp-size", str(profile.tp), "--pp-size", str(profile.pp), "--ep-size", str(profile.ep)]
    if meet:
        argv += ["--nnodes", str(profile.nodes), "--node-rank", str(rank.rank)]
        argv += ["--dist-init-addr", f"{meet.address}:{meet.port}"]
    return (*argv, "--host", "0.0.0.0", "--port", str(port))


def summarize(
    plan: Plan, memory: Mapping[str, Any], full: bool = False, image_gb: float | None = None, image_note: str = ""
) -> list[str]:
    """Return the plan for people: what is served and downloaded, a line per rank, and the memory in one line.

    ``memory`` is the estimate of the resolved profile, ``image_gb`` the size of the image's download (GB), and
    ``image_note`` on what it runs. With ``full`` there are the head's command and the arithmetic.
    """
    ranks = [
        f"rank {rank.rank} on {rank.node}: "
        + (", ".join(f"{n.interface} {n.address} ({n.rdma_device})" for n in rank.networks) or "no fabric")
        for rank in plan.ranks
    ]
    more = [*(line for rank in plan.ranks[:1] for line in _command("command of rank 0:", rank.argv)), *plan.memory]
    return [*_overview(plan, memory, image_gb, image_note), *ranks, *(more if full else [])]


def _overview(plan: Plan, memory: Mapping[str, Any], image_gb: float | None, image_note: str) -> list[str]:
    size = f"about {two_digits(memory['download_gb'])} GB" if memory.get("download_gb") else "size not known"
    nodes = list(dict.fromkeys(rank.node for rank in plan.ranks))
    to = f"each of {len(nodes)} nodes" if len(nodes) > 1 else "".join(nodes) or "each node"
    if not plan.models:
        download = "nothing"
    elif plan.models_dir:
        download = f"what {plan.models_dir} on {to} lacks of {', '.join(plan.models)} ({size})"
    else:
        download = f"{', '.join(plan.models)} ({size}) by each pod, at every start"
    service = plan.service
    # The directory of a downloaded model is named after it.
    model = next(
        (name for name in plan.models if plan.model_path.endswith(f"/{name.replace('/', '--')}")), plan.model_path
    )
    return [
        f"model: {model}, profile {plan.profile}/{plan.preset}",
        f"image: {plan.image} (SGLang {plan.sglang_version}, {_pull(image_gb)}{image_note and f'; {image_note}'})",
        f"download: {download}",
        f"memory: {memory.get('fits', 'not estimated')}",
        f"endpoint: http://{service.name}.{plan.namespace}:{service.port}/v1, in the cluster",
    ]


def _pull(size: float | None) -> str:
    return f"about {two_digits(size)} GB for each node that lacks it" if size else "size not known"


def _command(title: str, argv: Sequence[str]) -> list[str]:
    """Return a title and a command in lines that fit a terminal; a flag and its value share a line."""
    lines = [title, " "]
    for part in flags(map(shlex.quote, argv)):
        if len(lines[-1]) + len(part) > _COMMAND_WIDTH:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {part}"
    return lines
