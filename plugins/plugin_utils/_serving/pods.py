# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pod of one rank: security, probes, volumes, networks. Private to the collection."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from math import ceil
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.terms import AnswersGate, RdmaMode, TransportGate
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version
from ansible_collections.gb10.cluster.plugins.module_utils._in_pod.pages import POD_ADDRESSES
from ansible_collections.gb10.cluster.plugins.module_utils._kube.objects import RBAC, Owner, made
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.live import LOG_DIR

from .model import Plan, RankPlan
from .profile import staged_path
from .volumes import CACHE, FILES, HOME, PATCHES, cache_env, home_of, mounts

NETWORKS = "k8s.v1.cni.cncf.io/networks"

# Each mode has all permissions that the Pod Security level of its namespace admits (measured with Kubernetes 1.36).
SECURITY: dict[RdmaMode, dict[str, Any]] = {
    "privileged": {"privileged": True},
    "ipc_lock": {
        # A process of another user would not get the capability: its CapEff stays 0.
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        # Without NET_RAW a pod on the fabric cannot send packets in the name of another address.
        "capabilities": {"add": ["IPC_LOCK"], "drop": ["NET_RAW"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    "restricted": {
        "runAsUser": 1000,
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    "none": {"allowPrivilegeEscalation": False, "seccompProfile": {"type": "RuntimeDefault"}},
}

_READY_SINCE = "0.5.20"
# 18 MB/s: slower than a hard disk or a link of 1 Gb/s, so a load that goes on is not ended.
LOAD_SECONDS_PER_GIB = 60
# A rank that downloads its model begins again when it is ended. A home's line takes hours for a large model.
DOWNLOAD_SECONDS = 86400
# A week: with a supervisor, which sees whether a start makes progress, the kubelet is only the last resort.
SUPERVISED_SECONDS = 604800


@dataclass(frozen=True)
class PodOptions:
    """The user's choices for the pods: the options of role sglang with the names of the fields.

    Times are in seconds, sizes as Kubernetes writes them. ``cache_dir`` is a directory of the node that keeps compiled
    kernels of this image over restarts, ``log_dir`` one for the last logs of groups that were restarted; empty means
    none. ``secrets`` maps a variable to ``(Secret, key)``.
    """

    startup_timeout: int = 3600
    grace_period: int = 60
    shm_size: str = "16Gi"
    pull_policy: str = "IfNotPresent"
    runtime_class: str = ""
    cache_dir: str = ""
    log_dir: str = ""
    host_ipc: bool = False
    open_routes: bool = False
    readiness: str = "auto"
    secrets: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    transport_gate: TransportGate = "enforce"
    answers: AnswersGate = "report"
    sysfs_root: str = "/sys"
    supervisor: bool = True
    stuck_after: int = 120
    first_step_timeout: int = 1800
    memory_timeout: int = 300
    memory_guard: bool = True
    memory_guard_percent: Sequence[float] = (5, 3.5)
    memory_guard_pressure: float = 20
    resources: Mapping[str, Any] = field(default_factory=dict)
    requests: bool = True
    disruption_budget: bool = True
    tolerations: Sequence[Mapping[str, Any]] = ()
    owner: Owner = field(default_factory=Owner)


def tolerations(wanted: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the tolerations as a part of a pod's spec; without any, nothing, so that pods stay as they are."""
    return {"tolerations": list(wanted)} if wanted else {}


def networks_annotation(entry: RankPlan) -> str:
    """Return the Multus annotation of a rank: each NAD with the pod's interface name and static address."""
    return json.dumps([network.as_annotation() for network in entry.networks], separators=(",", ":"))


def start_limit(plan: Plan, options: PodOptions) -> int:
    """Return the seconds that a rank may start without progress: one that loads or downloads more may take longer.

    Weights of an unknown size are at most as large as the server's share of the memory.
    """
    weights = plan.load.weights or plan.load.fraction * plan.load.most if plan.load else 0
    load = DOWNLOAD_SECONDS if plan.models and not plan.models_dir else 0
    return int(options.startup_timeout + weights * LOAD_SECONDS_PER_GIB + load)


def probes(entry: RankPlan, plan: Plan, options: PodOptions) -> dict[str, Any]:
    """Return startup and readiness probe of a rank; there is no liveness probe, the group supervisor acts instead.

    A healthy head's /health takes 1.00 s and a stuck one answers 503
    after 20.0 s (measured with SGLang 0.5.20), so a probe must wait longer than that to hear the answer. A worker's
    /health is a dummy that starts when its scheduler is up: it shows a successful start but no later failure.
    """
    health = {"httpGet": {"path": "/health", "port": "http"}, "timeoutSeconds": 25, "periodSeconds": 10}
    limit = SUPERVISED_SECONDS if options.supervisor else start_limit(plan, options)
    # More often than later probes: until a startup probe succeeds, a loaded rank does not serve.
    startup = health | {"periodSeconds": 5, "failureThreshold": max(1, limit // 5)}
    if entry.role == "worker":
        return {"startupProbe": startup, "readinessProbe": health | {"failureThreshold": 3}}
    kind = options.readiness
    if kind == "auto":
        kind = "ready" if Version.parse(plan.sglang_version).within(_READY_SINCE, None) else "generate"
    if kind == "ready":
        ready: dict[str, Any] = {"httpGet": {"path": "/ready", "port": "http"}, "timeoutSeconds": 5, "periodSeconds": 5}
    else:
        command = ["python3", f"{FILES}/generate_probe.py", "--port", str(plan.service.port), "--timeout", "20"]
        ready = {"exec": {"command": command}, "timeoutSeconds": 25, "periodSeconds": 30}
    return {"startupProbe": startup, "readinessProbe": ready | {"failureThreshold": 2}}


def launch_key(plan: Plan) -> str:
    """Return what the memory of a load depends on, as a short hash: the image and the command of rank 0."""
    material = json.dumps([plan.image, plan.sglang_version, plan.ranks[0].argv])
    return hashlib.sha256(material.encode()).hexdigest()[:12]


def _watch(plan: Plan, options: PodOptions) -> str:
    """Return the options of watch_load.py.

    What a load took stays on the node in the directory of compiled kernels, if there is one.
    """
    stop = options.memory_guard_percent[1] if options.memory_guard else 0
    words = [f"--port {plan.service.port} --stop {stop:g} --key {launch_key(plan)}"]
    words += [f"--kept {CACHE}/load-{plan.namespace}-{plan.instance}.json"] if options.cache_dir else []
    return " ".join(words)


def command(entry: RankPlan, plan: Plan, options: PodOptions) -> list[str]:
    """Return the command of the container: the server behind its door, after the memory check and the patch hooks."""
    steps = [word for name in plan.needed_patches() for word in ("--patch", f"{PATCHES}/{name}.py")]
    if plan.load:
        if options.memory_timeout:
            figures = (*astuple(plan.load), options.memory_timeout)
            steps += ["--memory", *map(str, figures), "--shares", str(plan.expect.ranks)]
        steps.append(f"--watch-load={_watch(plan, options)}")
        local = [*plan.paths, *(staged_path(name, plan.models_dir) for name in plan.models if plan.models_dir)]
        steps += [word for path in local for word in ("--model", path)]
    server = entry.argv if options.open_routes else ("python3", f"{FILES}/front_door.py", *entry.argv[2:])
    return ["python3", f"{FILES}/start_rank.py", "--nccl-logs", LOG_DIR, "--witness", *steps, "--", *server]


def own_addresses() -> dict[str, Any]:
    """Return the variable with which the programs of a pod tell its own network from its VFs."""
    field = {"apiVersion": "v1", "fieldPath": "status.podIPs"}
    return {"name": POD_ADDRESSES, "valueFrom": {"fieldRef": field}}


# What keeps a CPU of its own busy in a rank that serves: scheduler and NCCL's proxy; in the head tokenizer and
# detokenizer too. A guess from their number, not measured.
_CPUS = {"head": 4, "worker": 2}


def requests(entry: RankPlan, plan: Plan, resources: Mapping[str, Any], computed: bool = True) -> dict[str, str]:
    """Return what a rank requests of its node; ``resources`` are the owner's, which override what is ``computed``.

    Where GPU and CPU share one memory, weights and caches take it from the node: SGLang's share of the most that the
    plan expects to be available. Elsewhere nobody knows the memory that a rank needs outside its GPUs.
    """
    found: dict[str, Any] = {"cpu": _CPUS[entry.role]} if computed else {}
    if computed and plan.load:
        found["memory"] = f"{ceil(plan.load.fraction * plan.load.most)}Gi"
    return {name: str(of) for name, of in {**found, **resources.get("requests", {})}.items()}


def _as_text(kind: str, amounts: Any) -> Any:
    """Return quantities as text, as controllers store them: a number would be reported as a change at every run."""
    return {name: str(of) for name, of in amounts.items()} if kind in {"limits", "requests"} else amounts


def pod_spec(entry: RankPlan, plan: Plan, options: PodOptions) -> dict[str, Any]:
    """Return the pod of a rank, pinned to its node because it uses the addresses of that node."""
    volumes, mounted = mounts(plan, options.shm_size, options.cache_dir)
    own = {"HOME": HOME} if home_of(plan.rdma_mode) == HOME else {}
    own |= cache_env() if options.cache_dir else {}
    env: list[dict[str, Any]] = [{"name": key, "value": value} for key, value in {**own, **entry.env}.items()]
    env += [] if options.open_routes else [own_addresses()]
    env += [
        {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
        for variable, (secret, key) in sorted(options.secrets.items())
    ]
    limits = {**entry.limits, **options.resources.get("limits", {})}
    asked = requests(entry, plan, options.resources, options.requests)
    resources = {**options.resources, **({"requests": asked} if asked else {}), "limits": limits}
    container = {
        "name": "sglang",
        "image": plan.image,
        "imagePullPolicy": options.pull_policy,
        "command": command(entry, plan, options),
        "env": env,
        "ports": [{"name": "http", "containerPort": plan.service.port, "protocol": "TCP"}],
        "resources": {kind: _as_text(kind, of) for kind, of in resources.items()},
        "securityContext": SECURITY[plan.rdma_mode],
        # The kubelet then reports the end of the log with a crash, which distinguishes two failures.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounted,
        **probes(entry, plan, options),
    }
    spec: dict[str, Any] = {
        "nodeSelector": {"kubernetes.io/hostname": entry.node},
        "serviceAccountName": entry.name,
        "automountServiceAccountToken": False,
        # SGLANG_PORT of a Service called "sglang" would be read by SGLang as its own setting.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": options.grace_period,
        "containers": [container],
        "volumes": volumes,
    }
    if options.runtime_class:
        spec["runtimeClassName"] = options.runtime_class
    spec |= tolerations(options.tolerations)
    if options.host_ipc:
        spec["hostIPC"] = True
    return spec


# The directory of their code in a pod.
CODE = "/opt/gb10-programs"


def key_of(path: str) -> str:
    """Return the key of a file in the ConfigMap, whose keys can't contain slashes."""
    return path.replace("/", "-")


def code_volume(volume: str, config_map: str, code: Mapping[str, str]) -> dict[str, Any]:
    """Return the volume with the files ``code``, by path, of a ConfigMap."""
    items = [{"key": key_of(path), "path": path} for path in code]
    return {"name": volume, "configMap": {"name": config_map, "items": items}}


def container(
    name: str, program: str, arguments: Sequence[str], plan: Plan, options: PodOptions, code: str = "code"
) -> dict[str, Any]:
    """Return the container of a program, which needs no privilege; ``code`` is the volume with its files."""
    return {
        "name": name,
        "image": plan.image,
        "imagePullPolicy": options.pull_policy,
        "command": ["python3", "-m", f"gb10.{program}", *arguments],
        # NVIDIA's container runtime gives an image's container all GPUs unless this variable forbids it.
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}, {"name": "PYTHONPATH", "value": CODE}],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
        "securityContext": SECURITY["restricted"] | {"readOnlyRootFilesystem": True},
        "volumeMounts": [{"name": code, "mountPath": CODE, "readOnly": True}],
    }


def account(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return a service account, whose token is mounted only where a pod asks for it."""
    return made("ServiceAccount", meta, automountServiceAccountToken=False)


def role(
    meta: Mapping[str, Any], rules: list[dict[str, Any]], user: str, namespace: str, kind: str = "Role"
) -> list[dict[str, Any]]:
    """Return a Role or ClusterRole, and its binding to the service account ``user`` of ``namespace``."""
    of = {"apiGroup": RBAC, "kind": kind, "name": meta["name"]}
    subjects = [{"kind": "ServiceAccount", "name": user, "namespace": namespace}]
    return [made(kind, meta, rules=rules), made(f"{kind}Binding", meta, roleRef=of, subjects=subjects)]


def deployment(
    meta: Mapping[str, Any], own: Mapping[str, str], annotations: Mapping[str, str], spec: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a Deployment of one pod with the service account of its name.

    ``own`` are the labels that select the pod, ``spec`` has its containers, its volumes and the nodes for it.
    """
    general = {
        "serviceAccountName": meta["name"],
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"fsGroup": 1000},
    }
    template = {"labels": {**meta["labels"], **own}, "annotations": dict(annotations)}
    return made(
        "Deployment",
        meta,
        {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": dict(own)},
            "template": {"metadata": template, "spec": {**general, **spec}},
        },
    )
