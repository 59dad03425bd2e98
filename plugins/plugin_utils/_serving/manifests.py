# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A serving plan as Kubernetes objects. Private to the collection."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import (
    APP_INSTANCE,
    COMPONENT,
    FALLBACK,
    INSTANCE,
    MANAGED_BY,
    MEETING,
    NAME,
    OWNER,
    PART_OF,
    RANK,
    REVISION,
    ROLE,
    VERSION,
    VF_INDEX,
)
from ansible_collections.gb10.cluster.plugins.module_utils._kube.objects import made

from .access import Access, around, service
from .fallback import Fallback
from .model import Plan, RankPlan, Rendezvous
from .pods import NETWORKS, PodOptions, code_volume, key_of, networks_annotation, pod_spec
from .sidecar import accounts, programs_of, with_sidecar
from .supervisor import supervisor, supervisor_labels, switch
from .volumes import claimed


def labels(plan: Plan) -> dict[str, str]:
    """Return the labels that every object of a group carries."""
    return {
        NAME: "sglang",
        # The parts of a group, such as its ranks and its supervisor, have names of their own instead.
        COMPONENT: "group",
        APP_INSTANCE: plan.instance,
        PART_OF: OWNER,
        VERSION: plan.sglang_version,
        MANAGED_BY: OWNER,
        INSTANCE: plan.instance,
    }


def _meta(plan: Plan, name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "namespace": plan.namespace, "labels": labels(plan), **more}


def _config_map(plan: Plan, name: str, files: Mapping[str, str]) -> dict[str, Any]:
    return made("ConfigMap", _meta(plan, name), data=dict(files))


def _meeting(
    plan: Plan, meet: Rendezvous, head: Mapping[str, str], more: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the headless Service that gives the head's pod a name before it is ready."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": dict(head),
        "ports": [{"name": "rendezvous", "port": meet.port, "targetPort": meet.port, "protocol": "TCP"}],
    }
    return made("Service", _meta(plan, meet.service) | {"labels": labels(plan) | dict(more or {})}, spec)


def _names(plan: Plan) -> dict[str, Any]:
    """Return the headless Service that every StatefulSet has to have; it gives each rank's pod a name."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {INSTANCE: plan.instance, **_RANK}}
    return made("Service", _meta(plan, _names_of(plan)), spec)


def _names_of(plan: Plan) -> str:
    return f"{plan.instance}-pods"


_RANK = {COMPONENT: "rank"}


def _template(
    entry: RankPlan, plan: Plan, spec: Mapping[str, Any], revision: str, own: Mapping[str, str]
) -> dict[str, Any]:
    annotations = {REVISION: revision}
    if entry.networks:
        annotations[NETWORKS] = networks_annotation(entry)
        annotations[VF_INDEX] = str(plan.vf_index)
    return {"metadata": {"labels": labels(plan) | dict(own), "annotations": annotations}, "spec": dict(spec)}


def _stateful_set(
    entry: RankPlan, plan: Plan, pod: Mapping[str, Any], revision: str, own: Mapping[str, str]
) -> dict[str, Any]:
    meta = _meta(plan, entry.name) | {"labels": labels(plan) | dict(own), "annotations": {REVISION: revision}}
    selected = {INSTANCE: plan.instance} | {key: value for key, value in own.items() if key in (RANK, FALLBACK)}
    spec = {
        # The switch starts the fallback, and only the switch.
        "replicas": 0 if FALLBACK in own else 1,
        "serviceName": _names_of(plan),
        "podManagementPolicy": "Parallel",
        # A rolling update would mix new ranks with old ones; the group is replaced as a whole instead.
        "updateStrategy": {"type": "OnDelete"},
        "selector": {"matchLabels": selected},
        "template": _template(entry, plan, pod, revision, own),
    }
    return made("StatefulSet", meta, spec)


def _budget(plan: Plan) -> dict[str, Any]:
    """Return the budget by which an eviction of a rank is refused: the loss of one ends all.

    A drain then waits until the group is stopped. Ranks that are not ready serve nobody, so they may be evicted.
    """
    ranks = {"matchLabels": {INSTANCE: plan.instance}, "matchExpressions": [{"key": RANK, "operator": "Exists"}]}
    spec = {"maxUnavailable": 0, "selector": ranks, "unhealthyPodEvictionPolicy": "AlwaysAllow"}
    return made("PodDisruptionBudget", _meta(plan, plan.instance), spec)


def workloads(plan: Plan, specs: list[dict[str, Any]], revision: str, more: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return one StatefulSet per rank; every pod gets the labels ``more``."""
    return [
        _stateful_set(entry, plan, spec, revision, {RANK: str(entry.rank), ROLE: entry.role, **_RANK, **more})
        for entry, spec in zip(plan.ranks, specs, strict=True)
    ]


def revision_of(plan: Plan, specs: list[dict[str, Any]], files: Mapping[str, Any]) -> str:
    """Return a hash of everything that the pods of a group run: a change of one rank changes it for all."""
    material = json.dumps([specs, [networks_annotation(entry) for entry in plan.ranks], files], sort_keys=True)
    return hashlib.sha256(material.encode()).hexdigest()[:16]


def render(
    plan: Plan,
    options: PodOptions,
    files: Mapping[str, str],
    patches: Mapping[str, str],
    access: Access | None = None,
    programs: Mapping[str, str] | None = None,
    fallback: Fallback | None = None,
    switching: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Return all objects of a group in the order in which they can be created.

    ``files`` are the scripts that run beside the server, ``patches`` the patch hooks, both by file name; ``programs``
    are the sidecar and the supervisor by path, ``switching`` is the switch to the fallback. Secrets are not among the
    objects, because these objects can be printed.
    """
    access = access or Access()
    code = programs or {}
    specs = [with_sidecar(pod_spec(entry, plan, options), entry, plan, options, code) for entry in plan.ranks]
    meeting = plan.rendezvous is not None and bool(plan.rendezvous.service)
    own = access.labels | ({MEETING: "pod-network"} if meeting else {})
    material = {"files": dict(files), "patches": dict(patches), "programs": dict(code), **asdict(options.owner)}
    revision = revision_of(plan, specs, material | own)
    objects = [
        *accounts(plan, options, labels(plan) | _RANK),
        _config_map(plan, f"{plan.instance}-files", files),
        _config_map(plan, programs_of(plan), {key_of(path): text for path, text in code.items()}),
    ]
    if patches:
        objects.append(_config_map(plan, f"{plan.instance}-patches", patches))
    objects += claimed(plan, labels(plan), options.cache_dir)
    head = {INSTANCE: plan.instance, ROLE: "head"}
    meta = _meta(plan, plan.service.name)
    objects += [service(plan, meta, head, access), _names(plan)]
    if plan.rendezvous and plan.rendezvous.service:
        objects.append(_meeting(plan, plan.rendezvous, head))
    objects += around(plan, meta, {INSTANCE: plan.instance}, head, supervisor_labels(plan), access)
    objects += [_budget(plan)] if options.disruption_budget else []
    objects += workloads(plan, specs, revision, own)
    if options.supervisor:
        volume = code_volume("code", programs_of(plan), code)
        objects += supervisor(plan, options, labels(plan), {REVISION: revision}, volume)
    if fallback:
        for name, other in fallback.plans.items():
            objects += _waiting(name, other, options, material | own, access.labels)
        objects += switch(plan, fallback, options, labels(plan), switching or {})
    return [options.owner.on(item) for item in objects]


def _waiting(
    name: str, plan: Plan, options: PodOptions, material: Mapping[str, Any], access: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the workloads of one set of nodes of the fallback; they have no pods until the switch scales them."""
    specs = [
        with_sidecar(pod_spec(entry, plan, options), entry, plan, options, material["programs"]) for entry in plan.ranks
    ]
    meet, own = plan.rendezvous, {FALLBACK: name, **access}
    objects = accounts(plan, options, labels(plan) | {FALLBACK: name, **_RANK})
    if meet and meet.service:
        own |= {MEETING: "pod-network"}
        head = {INSTANCE: plan.instance, ROLE: "head", FALLBACK: name}
        objects.append(_meeting(plan, meet, head, {FALLBACK: name}))
    return objects + workloads(plan, specs, revision_of(plan, specs, material), own)
