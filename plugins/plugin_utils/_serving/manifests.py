# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A serving plan as Kubernetes objects: access to the group, its supervisor, and all others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import (
    APP_INSTANCE,
    COMPONENT,
    FALLBACK,
    GUARDED,
    INSTANCE,
    MANAGED_BY,
    MEETING,
    MODEL,
    NAME,
    NAMESPACE,
    OWNER,
    PART_OF,
    RANK,
    REVISION,
    ROLE,
    SUPERVISOR,
    SWITCH,
    VERSION,
    VF_INDEX,
)
from ansible_collections.gb10.cluster.plugins.module_utils._kube.objects import made, on_hosts, policy
from ansible_collections.gb10.cluster.plugins.module_utils._pod.fallback import MAIN

from .model import Plan, RankPlan, Rendezvous
from .plan import Fallback
from .pods import (
    CLAIMS,
    NETWORKS,
    PodOptions,
    account,
    accounts,
    claimed,
    code_volume,
    container,
    deployment,
    key_of,
    networks_annotation,
    pod_spec,
    programs_of,
    role,
    start_limit,
    tolerations,
    with_sidecar,
)
from .pods import metrics_port as evidence_port

# Access to the head of a group: Service, Ingress and NetworkPolicy.


@dataclass(frozen=True)
class Access:
    """The user's choices about access.

    ``ingress`` has ``host`` and optionally ``class``, ``tls`` (a Secret) and ``annotations``. ``allow_from`` are peers
    of a NetworkPolicy; empty admits the whole cluster.
    """

    service_type: str = "ClusterIP"
    ingress: Mapping[str, Any] = field(default_factory=dict)
    allow_from: Sequence[Mapping[str, Any]] = ()

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels of a head with its own NetworkPolicy, and of its Service."""
        return {GUARDED: "true"} if self.allow_from else {}


def service(plan: Plan, meta: Mapping[str, Any], head: Mapping[str, str], access: Access) -> dict[str, Any]:
    """Return the Service; ``head`` selects only the head's pod, since a stuck worker's /health still answers 200."""
    port = {"name": "http", "port": plan.service.port, "targetPort": "http", "protocol": "TCP"}
    own = {"labels": meta["labels"] | access.labels, "annotations": {MODEL: plan.model_path}}
    return made("Service", {**meta, **own}, {"type": access.service_type, "selector": dict(head), "ports": [port]})


PUBLISHED = ("/v1", "/generate", "/health", "/health_generate")
"""What an Ingress publishes. SGLang's other paths change weights, write profiles or empty caches, without a key."""


def ingress(meta: Mapping[str, Any], wanted: Mapping[str, Any], name: str, port: int) -> dict[str, Any]:
    """Return an Ingress to the paths that clients of a model need; ``/v1`` has the paths below it, too."""
    host = wanted["host"]
    backend = {"service": {"name": name, "port": {"number": port}}}
    paths = [{"path": path, "pathType": "Prefix", "backend": backend} for path in PUBLISHED]
    spec: dict[str, Any] = {"rules": [{"host": host, "http": {"paths": paths}}]}
    if wanted.get("class"):
        spec["ingressClassName"] = wanted["class"]
    if wanted.get("tls"):
        spec["tls"] = [{"hosts": [host], "secretName": wanted["tls"]}]
    annotations = dict(wanted.get("annotations") or {})
    return made("Ingress", {**meta, **({"annotations": annotations} if annotations else {})}, spec)


def around(plan: Plan, meta: Mapping[str, Any], head: Mapping[str, str], access: Access) -> list[dict[str, Any]]:
    """Return the Ingress and the NetworkPolicy that are wanted.

    The policy opens the server's port of the head to the given peers; group and supervisor may reach all its ports.
    """
    wanted = access.ingress
    objects = [ingress(meta, wanted, plan.service.name, plan.service.port)] if wanted.get("host") else []
    if access.allow_from:
        own = [{"podSelector": {"matchLabels": {label: plan.instance}}} for label in (INSTANCE, SUPERVISOR)]
        door = {"ports": [{"protocol": "TCP", "port": "http"}], "from": [dict(peer) for peer in access.allow_from]}
        objects.append(policy(meta, head, [{"from": own}, door]))
    return objects


# The group supervisor's objects; its RBAC permits only the pods of its group.

PROGRAM = "_pod.supervise"
LOGS = "/var/log/group"


def logs_volume(plan: Plan, log_dir: str) -> dict[str, Any]:
    """Return the volume for logs: a directory below ``log_dir`` on the head's node, or one of the supervisor's pod.

    A pod's own directory is lost with the next revision of the group. If Pod Security forbids directories of the
    node, a claim is no replacement: it would have to outlive its group, and its volume would never be deleted.
    """
    if not log_dir or plan.rdma_mode in CLAIMS:
        return {"emptyDir": {"sizeLimit": "64Mi"}}
    return {"hostPath": {"path": f"{log_dir}/{plan.namespace}/{plan.instance}", "type": "Directory"}}


def live_port(plan: Plan) -> int:
    """Return the port of the supervisor's page for the kubelet: the fourth one after the server's."""
    return plan.service.port + 4


def _live(name: str, port: int) -> dict[str, Any]:
    """Return a container's port, and the probe by which the kubelet restarts a program whose rounds have ended."""
    probe = {"httpGet": {"path": "/live", "port": name}, "timeoutSeconds": 5, "periodSeconds": 30}
    return {"ports": [{"name": name, "containerPort": port, "protocol": "TCP"}], "livenessProbe": probe}


def supervising(plan: Plan, options: PodOptions, groups: Sequence[Plan]) -> dict[str, Any]:
    """Return the container that supervises the pods of ``groups``."""
    arguments = ["--namespace", plan.namespace]
    arguments += [word for one in groups for word in ("--pods", ",".join(rank.pod for rank in one.ranks))]
    arguments += ["--port", str(plan.service.port)]
    stuck_after = options.stuck_after or max(one.stuck_after for one in groups)
    arguments += ["--stuck-after", str(stuck_after)] if stuck_after else []
    start = max(start_limit(one, options) for one in groups)
    arguments += ["--first-step-timeout", str(options.first_step_timeout), "--start-timeout", str(start)]
    arguments += ["--logs", LOGS, "--evidence-port", str(evidence_port(plan)), "--live-port", str(live_port(plan))]
    made = container("supervisor", PROGRAM, arguments, plan, options) | _live("live", live_port(plan))
    made["volumeMounts"].append({"name": "logs", "mountPath": LOGS})
    return made


def pod_rules(pods: Sequence[str]) -> list[dict[str, Any]]:
    """Return what the supervisor of these pods may do."""
    return [
        {"apiGroups": [""], "resources": ["pods"], "resourceNames": list(pods), "verbs": ["get", "delete"]},
        {"apiGroups": [""], "resources": ["pods/log"], "resourceNames": list(pods), "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    ]


def supervisor(
    plan: Plan,
    options: PodOptions,
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    code: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Return service account, role, binding and deployment of the supervisor of a group.

    ``annotations`` change with the revision of the group, so that the supervisor restarts with it; ``code`` is the
    volume with the programs.
    """
    name = f"{plan.instance}-supervisor"
    meta = {"name": name, "namespace": plan.namespace, "labels": {**labels, COMPONENT: "supervisor"}}
    spec = {
        # The head's node already has the image, and without that node there is no group to supervise.
        "nodeSelector": {"kubernetes.io/hostname": plan.ranks[0].node},
        **tolerations(options.tolerations),
        "containers": [supervising(plan, options, [plan])],
        "volumes": [dict(code), {"name": "logs", **logs_volume(plan, options.log_dir)}],
    }
    return [
        account(meta),
        *role(meta, pod_rules([entry.pod for entry in plan.ranks]), name, plan.namespace),
        deployment(meta, {SUPERVISOR: plan.instance}, annotations, spec),
    ]


SWITCH_PROGRAM = "_pod.fallback"
# The node of the switch itself may be the one that is lost. Kubernetes then starts it elsewhere this soon.
_TOLERATED = 10


def metrics_port(plan: Plan) -> int:
    """Return the port of the switch's metrics: the third one after the server's."""
    return plan.service.port + 3


def settings(plan: Plan, fallback: Fallback) -> str:
    """Return the settings of the switch as JSON; their keys are the fields of its Settings."""
    plans = {MAIN: plan, **fallback.plans}
    choices = [
        {
            "name": name,
            "preset": one.preset,
            "nodes": [rank.node for rank in one.ranks],
            "sets": [rank.name for rank in one.ranks],
        }
        for name, one in plans.items()
    ]
    own = {"instance": plan.instance, "namespace": plan.namespace, "metrics_port": metrics_port(plan)}
    return json.dumps({**own, "choices": choices, "after": fallback.after, "return_after": fallback.return_after})


def switch(
    plan: Plan, fallback: Fallback, options: PodOptions, labels: Mapping[str, str], code: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the switch's status, program, account, permissions and Deployment; ``code`` is its program by path.

    The status has no data here, so that a later deployment keeps what the switch wrote.
    """
    name = f"{plan.instance}-fallback"
    meta = {"name": name, "namespace": plan.namespace, "labels": {**labels, COMPONENT: "fallback", FALLBACK: SWITCH}}
    program = {**meta, "name": f"{name}-code"}
    data = {key_of(path): text for path, text in code.items()}
    return [
        made("ConfigMap", meta),
        made("ConfigMap", program, data=data),
        account(meta),
        *_rights(plan, fallback, meta),
        _deployment(plan, fallback, options, meta, code),
    ]


def _rights(plan: Plan, fallback: Fallback, meta: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what the switch may do: read nodes; scale the group's StatefulSets and delete their pods; tell about it.

    Nodes have no namespace, and a Role for all of them can be used to list them with one request.
    """
    ranks = [rank for one in (plan, *fallback.plans.values()) for rank in one.ranks]
    sets = [rank.name for rank in ranks]
    wide = {"name": f"{plan.namespace}-{meta['name']}", "labels": {**meta["labels"], NAMESPACE: plan.namespace}}
    scale = {"apiGroups": ["apps"], "resources": ["statefulsets/scale"], "resourceNames": sets}
    status = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [meta["name"]]}
    rules = [
        *pod_rules([rank.pod for rank in ranks]),
        scale | {"verbs": ["get", "patch"]},
        status | {"verbs": ["get", "patch"]},
    ]
    nodes = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]
    return [
        *role(meta, rules, meta["name"], plan.namespace),
        *role(wide, nodes, meta["name"], plan.namespace, "ClusterRole"),
    ]


def _deployment(
    plan: Plan, fallback: Fallback, options: PodOptions, meta: Mapping[str, Any], code: Mapping[str, str]
) -> dict[str, Any]:
    containers = [
        container("switch", SWITCH_PROGRAM, ["--settings", settings(plan, fallback)], plan, options)
        | _live("fallback", metrics_port(plan))
    ]
    # The fallback's ranks have a supervisor here: the group's own one may be on the lost node.
    containers += [supervising(plan, options, list(fallback.plans.values()))] if options.supervisor else []
    # The nodes of the group already have the image.
    there = on_hosts(rank.node for rank in plan.ranks)
    lost = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TOLERATED}
    spec = {
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [there]}}
        },
        "tolerations": [
            *({"key": f"node.kubernetes.io/{what}", **lost} for what in ("not-ready", "unreachable")),
            *options.tolerations,
        ],
        "containers": containers,
        "volumes": [
            code_volume("code", f"{meta['name']}-code", code),
            {"name": "logs", "emptyDir": {"sizeLimit": "64Mi"}},
        ],
    }
    # A pod does not notice that a ConfigMap has changed.
    revision = hashlib.sha256(json.dumps(dict(code), sort_keys=True).encode()).hexdigest()[:16]
    return deployment(meta, {INSTANCE: plan.instance, FALLBACK: SWITCH}, {REVISION: revision}, spec)


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
    return made("Service", _meta(plan, f"{plan.instance}-pods"), spec)


_RANK = {COMPONENT: "rank"}


def _stateful_set(
    entry: RankPlan, plan: Plan, pod: Mapping[str, Any], revision: str, own: Mapping[str, str]
) -> dict[str, Any]:
    meta = _meta(plan, entry.name) | {"labels": labels(plan) | dict(own), "annotations": {REVISION: revision}}
    annotations = {REVISION: revision}
    if entry.networks:
        annotations[NETWORKS] = networks_annotation(entry)
        # Who uses networks of others holds no VF of the fabric plan.
        if all(network.ips for network in entry.networks):
            annotations[VF_INDEX] = str(plan.vf_index)
    selected = {INSTANCE: plan.instance} | {key: value for key, value in own.items() if key in (RANK, FALLBACK)}
    spec = {
        # The switch starts the fallback, and only the switch.
        "replicas": 0 if FALLBACK in own else 1,
        "serviceName": f"{plan.instance}-pods",
        "podManagementPolicy": "Parallel",
        # A rolling update would mix new ranks with old ones; the group is replaced as a whole instead.
        "updateStrategy": {"type": "OnDelete"},
        "selector": {"matchLabels": selected},
        "template": {
            "metadata": {"labels": labels(plan) | dict(own), "annotations": annotations},
            "spec": dict(pod),
        },
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
    objects += around(plan, meta, head, access)
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
