# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan what every rank of a group runs, and the preset that serves while a node is gone."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, combinations
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, has_errors, sort_findings
from ansible_collections.gb10.cluster.plugins.module_utils._pod.fallback import MAIN, Status

from .._controller.data import Rules
from .._controller.options import from_options
from .._fabric.attachments import sriov_resource
from .._sglang.memory import two_digits
from .._sglang.models import GPUS, described
from .checks import (
    LOG_ENV,
    POD_INTERFACE,
    Cabling,
    cable_env,
    cables,
    check,
    fabric_env,
    merges_ports,
    platform_env,
    select_vfs,
)
from .model import Expectation, NetworkAttachment, Plan, Profile, RankPlan, Rendezvous, Service, Settings, flags

# Plan what every rank of a group runs, from a fabric plan and a resolved profile.
#
# Shapes: docs/interfaces.md, "Fabric plan" (in) and "Serving plan" (out). Nothing in this part touches a host or a
# cluster.

# Columns, so that a command fits a terminal beside the indent of Ansible's message.
_COMMAND_WIDTH = 110


def plan_group(fabric: Mapping[str, Any] | None, profile: Profile, settings: Settings) -> tuple[Plan, list[Finding]]:
    """Return the serving plan and its findings; with an error the plan has no ranks, so that no part of it is run.

    Without a fabric (None) the plan has no ranks either, and only what does not depend on it is checked.
    """
    findings = sort_findings(check(fabric, profile, settings))
    names = tuple(network["name"] for network in settings.networks)
    cabling = (
        Cabling(dict.fromkeys(settings.nodes, names), True, True) if names else Cabling.of(fabric or {}, settings.nodes)
    )
    plan = from_options(
        Plan,
        {**vars(settings), **vars(profile)},
        profile=profile.name,
        service=Service(settings.instance, settings.port),
        expect=_expect(cabling, profile, settings),
        mtu=0 if names else (fabric or {}).get("mtu", 0),
        gpu=described(settings.platform, settings.gpus_per_node) if settings.platform in GPUS else {},
    )
    if (fabric is None and not names) or has_errors(findings):
        return plan, findings
    ranks = [_rank(rank, node, fabric or {}, cabling, settings, profile) for rank, node in enumerate(settings.nodes)]
    meet = _rendezvous(ranks, cabling, settings)
    ready = tuple(replace(rank, argv=_argv(rank, meet, settings.port, profile)) for rank in ranks)
    if settings.transport == "roce":
        plan = replace(plan, cables=cables(cabling, profile, settings.nodes, [rank.networks for rank in ranks]))
    return replace(plan, rendezvous=meet, ranks=ready), findings


def _rendezvous(ranks: Sequence[RankPlan], cabling: Cabling, settings: Settings) -> Rendezvous | None:
    if len(ranks) < 2:
        return None
    if cabling.common and not settings.networks:
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


def _networks(
    fabric: Mapping[str, Any], node: str, rails: Sequence[str], settings: Settings
) -> tuple[NetworkAttachment, ...]:
    if settings.networks:
        return tuple(
            NetworkAttachment(one["name"], one.get("namespace") or settings.namespace, f"net{place}", (), "")
            for place, one in enumerate(settings.networks, start=1)
        )
    host = fabric["hosts"][node]
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
    networks = _networks(fabric, node, cabling.rails[node], settings) if several else ()
    env = platform_env(settings.platform) | LOG_ENV
    if several:
        # An address that others' IPAM chooses is not known before the pod has it.
        planned = cabling.common and not settings.networks
        reach = (networks[0].interface, networks[0].ip) if planned else (POD_INTERFACE, "")
        devices = [network.rdma_device for network in networks]
        env |= fabric_env(*reach, devices, settings.transport, settings.strict_transport)
        if not cabling.common and settings.transport == "roce":
            env |= cable_env(cabling, int(networks[0].address.partition("/")[2]))
            env["NCCL_IB_MERGE_NICS"] = str(int(merges_ports(fabric, cabling, settings)))
    env |= {str(key): str(value) for key, value in {**profile.env, **settings.env}.items()}
    limits = {settings.gpu_resource: settings.gpus_per_node}
    if networks and settings.transport == "roce":
        limits |= dict.fromkeys(settings.rdma_resources, 1)
    for one in settings.networks if several else ():
        if resource := one.get("resource"):
            limits[resource] = limits.get(resource, 0) + 1
    if settings.sriov_prefix and not settings.networks:
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
        f"rank {rank.rank} on {rank.node}: " + (", ".join(map(_attached, rank.networks)) or "no fabric")
        for rank in plan.ranks
    ]
    more = [*(line for rank in plan.ranks[:1] for line in _command(rank.argv)), *plan.memory]
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
    pull = f"about {two_digits(image_gb)} GB for each node that lacks it" if image_gb else "size not known"
    # The directory of a downloaded model is named after it.
    model = next(
        (name for name in plan.models if plan.model_path.endswith(f"/{name.replace('/', '--')}")), plan.model_path
    )
    return [
        f"model: {model}, profile {plan.profile}/{plan.preset}",
        f"image: {plan.image} (SGLang {plan.sglang_version}, {pull}{image_note and f'; {image_note}'})",
        f"download: {download}",
        f"memory: {memory.get('fits', 'not estimated')}",
        f"endpoint: http://{service.name}.{plan.namespace}:{service.port}/v1, in the cluster",
        *ranks,
        *(more if full else []),
    ]


def _attached(network: NetworkAttachment) -> str:
    if network.ips:
        return f"{network.interface} {network.address} ({network.rdma_device})"
    return f"{network.interface} in {network.namespace}/{network.name} (its IPAM chooses the address)"


def _command(argv: Sequence[str]) -> list[str]:
    """Return a command in lines that fit a terminal, below a title; a flag and its value share a line."""
    lines = ["command of rank 0:", " "]
    for part in flags(map(shlex.quote, argv)):
        if len(lines[-1]) + len(part) > _COMMAND_WIDTH:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {part}"
    return lines


# Plan the preset that serves while a node of the group is gone.

OPTION = "serving_plan_fallback_preset"
# Kubernetes needs about 50 s to notice that a node is gone, and a restart of a node takes a few minutes.
SHORTEST = 10
# If there are at most so many sets of nodes, each gets a plan, so that the group also survives the loss of more nodes.
# A fallback of four out of eight nodes has 70 sets, and each is a StatefulSet per rank.
MOST_SETS = 6
_finding = Rules("_serving").finding


@dataclass(frozen=True)
class Fallback:
    """The preset that serves while a node is gone: a complete plan per set of nodes, by the name of the set.

    ``after`` is how long a node has to be gone, ``return_after`` how long all nodes have to be back, in seconds.
    """

    preset: str
    after: int
    return_after: int
    plans: Mapping[str, Plan]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data in the shape of the fact."""
        return {**vars(self), "plans": {name: plan.as_dict() for name, plan in self.plans.items()}}


def kept(config_maps: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the set of nodes that serves (empty: the planned one) and a sentence, from what the switch has kept.

    ``config_maps`` has the group's ConfigMap for that, if it has a fallback.
    """
    if not config_maps:
        return {"set": "", "text": ""}
    text = (config_maps[0].get("data") or {}).get("status", "")
    if not text:
        return {"set": "", "text": "Fallback: its switch has not started yet."}
    status = Status.parse(text)
    active = status.serving != MAIN
    if status.reason == "Planned":
        return {"set": "", "text": "Fallback: not in use; the planned preset serves."}
    since = datetime.fromtimestamp(status.since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    state = "in use" if active else "not in use"
    return {
        "set": status.serving if active else "",
        "text": f"Fallback: {state} since {since}: {status.message} [{status.reason}].",
    }


def plan_fallback(
    fabric: Mapping[str, Any] | None, profile: Profile, main: Profile, settings: Settings, after: int, return_after: int
) -> tuple[Fallback, list[Finding]]:
    """Return the fallback of the group ``main`` with ``settings``, and all findings.

    There is a plan for the loss of each node, the head's included; equal sets of remaining nodes share one. In a small
    group there is also one for every other set of nodes that can run the preset.
    """
    findings = list(_check(profile, main, settings, after, return_after))
    plans: dict[str, Plan] = {}
    if not has_errors(findings):
        chosen: dict[tuple[str, ...], Plan] = {}
        for lost in settings.nodes:
            plan, found = _without(lost, fabric, profile, settings, _name(profile, len(chosen)))
            nodes = tuple(rank.node for rank in plan.ranks)
            findings += [finding for finding in found if finding not in findings]
            if nodes and nodes not in chosen:
                chosen[nodes] = plan
        every = list(combinations(settings.nodes, profile.nodes))
        for nodes in every if len(every) <= MOST_SETS else []:
            if nodes not in chosen:
                plan, found = _on(nodes, fabric, profile, settings, _name(profile, len(chosen)))
                if not has_errors(found):
                    chosen[nodes] = plan
        plans = {_name(profile, number): plan for number, plan in enumerate(chosen.values())}
    return Fallback(profile.preset, after, return_after, plans), findings


def _name(profile: Profile, number: int) -> str:
    """Return the name of a set of nodes. Sets of one name have equally many StatefulSets, also in later plans."""
    return f"f{profile.nodes}-{number + 1}"


def _without(
    lost: str, fabric: Mapping[str, Any] | None, profile: Profile, settings: Settings, name: str
) -> tuple[Plan, list[Finding]]:
    """Return the plan on the first remaining nodes, in rank order, that can run the preset together.

    In a ring not every set of nodes can. If no set can, the findings are those of the first one.
    """
    rest = [node for node in settings.nodes if node != lost]
    tried = (_on(nodes, fabric, profile, settings, name) for nodes in combinations(rest, profile.nodes))
    first = next(tried)
    plan, found = next((one for one in chain([first], tried) if not has_errors(one[1])), first)
    return plan, [_placed(finding, lost) for finding in found]


def _on(
    nodes: tuple[str, ...], fabric: Mapping[str, Any] | None, profile: Profile, settings: Settings, name: str
) -> tuple[Plan, list[Finding]]:
    """Return the plan on these nodes. Its workloads have names of their own; its Service is that of the group."""
    taken = tuple(other for other in settings.taken if other["instance"] != settings.instance)
    own = replace(settings, instance=f"{settings.instance}-{name}", nodes=nodes, taken=taken)
    plan, found = plan_group(fabric, profile, own)
    return replace(plan, instance=settings.instance, service=Service(settings.instance, settings.port)), found


def _placed(finding: Finding, lost: str) -> Finding:
    """Return a finding about certain nodes with the node whose loss it is about; others concern every set of nodes."""
    if finding.severity != "error":
        return finding
    return replace(finding, where=", ".join(filter(None, (finding.where, f"fallback without {lost}"))))


def _check(profile: Profile, main: Profile, settings: Settings, after: int, return_after: int) -> Iterator[Finding]:
    preset, where = profile.preset, profile.place
    if profile.nodes >= len(settings.nodes):
        words: dict[str, object] = {"needed": profile.nodes, "left": len(settings.nodes) - 1}
        yield _finding("serving.fallback.nodes", preset, where, **words)
    if (profile.image, profile.sglang_version) != (main.image, main.sglang_version):
        words = {"own": profile.sglang_version, "image": profile.image}
        words |= {"version": main.sglang_version, "other": main.image}
        yield _finding("serving.fallback.image", preset, where, **words)
    for name in profile.models:
        if name in main.models and profile.revisions.get(name) != main.revisions.get(name):
            own, revision = profile.revisions.get(name), main.revisions.get(name)
            yield _finding("serving.fallback.revision", own, where, key=name, revision=revision)
    for key, seconds in (("after", after), ("return_after", return_after)):
        if seconds < SHORTEST:
            option = f"serving_plan_fallback_{key}"
            yield _finding("serving.fallback.seconds", seconds, key=option, shortest=SHORTEST)
