# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pod of one rank: volumes, security, probes, networks and sidecar."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from math import ceil
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.terms import AnswersGate, RdmaMode, TransportGate
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import NAMESPACE, SIDECAR, TRANSPORT
from ansible_collections.gb10.cluster.plugins.module_utils._kube.objects import RBAC, Owner, made, on_hosts
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.live import LOG_DIR
from ansible_collections.gb10.cluster.plugins.module_utils._pod.api import POD_ADDRESSES

from .model import Plan, RankPlan, staged_path

# The volumes of a rank: memory, scripts, home, and the node's models and cache.

CACHE = "/opt/gb10-cache"
# A release ignores the variables that it does not know. HOME's .cache is not used: models that SGLang downloads itself
# are there too. SGLang sets DeepGEMM's own variable from SGLANG_DG_CACHE_DIR. SGLang's own kernels
# ignore SGLANG_CACHE_DIR (kernels/jit/utils/compile/cache.py of 0.5.20 and 0.5.23). Extensions that torch compiles are
# not kept: a process that is killed while it compiles leaves a lock there, and the next one would wait for ever.
_VARIABLES = {
    "TRITON_CACHE_DIR": "triton",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TVM_FFI_CACHE_DIR": "tvm-ffi",
    "CUTE_DSL_CACHE_DIR": "cute-dsl",
    "SGLANG_DG_CACHE_DIR": "deep-gemm",
    "SGLANG_CACHE_DIR": "sglang",
    "SGLANG_JIT_CACHE_DIR": "sglang-jit",
    "TILELANG_CACHE_DIR": "tilelang",
    "CUDA_CACHE_PATH": "cuda",
}


def cache_env() -> dict[str, str]:
    """Return the variables that make all compilers of a rank use the mounted directory."""
    return {variable: f"{CACHE}/{name}" for variable, name in _VARIABLES.items()}


def cache_key(plan: Plan, arch: str, digest: str) -> str:
    """Return the name of a group's directory: compiled kernels fit only one image, release and architecture.

    ``digest`` is what the nodes report for the image. The name of an imported image has none, and its tag may stand for
    another image tomorrow. A server that runs as an ordinary user cannot write files of root, so it gets a directory of
    its own.
    """
    image = plan.image if "@" in plan.image else f"{plan.image} {digest}"
    material = f"{image} {plan.sglang_version} {arch} {plan.rdma_mode == 'restricted'}"
    return f"{plan.sglang_version}-{arch or 'any'}-{hashlib.sha256(material.encode()).hexdigest()[:12]}"


FILES = "/opt/gb10"
PATCHES = "/opt/gb10-patches"
HOME = "/home/sglang"
# As much as all compiled kernels of a node may have (sglang_cache_limit_gb), for a group without a directory for them.
HOME_LIMIT = "16Gi"
# Pod Security forbids hostPath in these modes, but allows a claim that is bound to a local PersistentVolume.
CLAIMS: tuple[RdmaMode, ...] = ("restricted", "none")
# No provisioner of the cluster handles this class, so claims bind only to the volumes below.
CLASS = "gb10-node-directory"


def home_of(rdma_mode: RdmaMode) -> str:
    """Return the home directory of the server; images have none for a user other than root."""
    return HOME if rdma_mode == "restricted" else "/root"


def mounts(plan: Plan, shm_size: str, cache_dir: str) -> tuple[list[Any], list[Any]]:
    """Return volumes and mounts of a rank; ``cache_dir`` is a directory of the node, empty for none."""
    name, mode = plan.instance, plan.rdma_mode
    volumes: list[dict[str, Any]] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": shm_size}},
        {"name": "files", "configMap": {"name": f"{name}-files"}},
        # A rank that logs more than this in one start is in trouble and must not fill the node's disk.
        {"name": "nccl", "emptyDir": {"sizeLimit": "1Gi"}},
    ]
    mounted: list[dict[str, Any]] = [
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "files", "mountPath": FILES, "readOnly": True},
        {"name": "nccl", "mountPath": LOG_DIR},
    ]
    if plan.needed_patches():
        volumes.append({"name": "patches", "configMap": {"name": f"{name}-patches"}})
        mounted.append({"name": "patches", "mountPath": PATCHES, "readOnly": True})
    home = home_of(mode)
    if home == HOME:
        # Only the models that a rank downloads itself are larger than this.
        downloads = bool(plan.models) and not plan.models_dir
        volumes.append({"name": "home", "emptyDir": {} if downloads else {"sizeLimit": HOME_LIMIT}})
        mounted.append({"name": "home", "mountPath": HOME})
    if plan.models_dir:
        volumes.append({"name": "models", **_directory(plan, "models", plan.models_dir, "Directory")})
        mounted.append({"name": "models", "mountPath": plan.models_dir, "readOnly": True})
    if cache_dir:
        volumes.append({"name": "cache", **_directory(plan, "cache", cache_dir, "DirectoryOrCreate")})
        mounted.append({"name": "cache", "mountPath": CACHE})
    return volumes, mounted


def _directory(plan: Plan, what: str, path: str, kind: str) -> dict[str, Any]:
    if plan.rdma_mode in CLAIMS:
        # The API does not keep a false value here, so that it would always differ from what another manager applied.
        closed = {"readOnly": True} if what == "models" else {}
        return {"persistentVolumeClaim": {"claimName": f"{plan.instance}-{what}", **closed}}
    return {"hostPath": {"path": path, "type": kind}}


def claimed(plan: Plan, labels: Mapping[str, str], cache_dir: str) -> list[dict[str, Any]]:
    """Return a volume and a claim for each directory of the nodes that pods of this mode may not mount by path.

    A volume of type local is the directory of this path on the node on which the pod runs.
    """
    if plan.rdma_mode not in CLAIMS:
        return []
    on_nodes = on_hosts(dict.fromkeys(entry.node for entry in plan.ranks))
    # The size of a local volume is not enforced; claim and volume only have to have the same one.
    size = {"storage": "1Gi"}
    # Volumes have no namespace, so a label names it.
    own = {"labels": {**labels, NAMESPACE: plan.namespace}}
    objects = []
    for what, path, access in (("models", plan.models_dir, "ReadOnlyMany"), ("cache", cache_dir, "ReadWriteMany")):
        if not path:
            continue
        claim = f"{plan.instance}-{what}"
        volume = f"{plan.namespace}-{claim}"
        shared = {"accessModes": [access], "storageClassName": CLASS, "volumeMode": "Filesystem"}
        offer = {
            "capacity": size,
            "persistentVolumeReclaimPolicy": "Retain",
            "local": {"path": path},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [on_nodes]}},
        }
        ask = {"volumeName": volume, "resources": {"requests": size}}
        # A claim that finds its volume is bound at once; one that waits for it, at the controller's next round (15 s).
        objects += [
            made("PersistentVolume", {"name": volume, **own}, {**shared, **offer}),
            made("PersistentVolumeClaim", {"name": claim, "namespace": plan.namespace, **own}, {**shared, **ask}),
        ]
    return objects


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
    open_routes: bool = False
    readiness: str = "auto"
    secrets: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    transport_gate: TransportGate = "enforce"
    answers: AnswersGate = "report"
    sysfs_root: str = "/sys"
    supervisor: bool = True
    stuck_after: int = 0
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


# They change how much the caches take, and nothing else of a load.
_CACHES = ("--mem-fraction-static", "--max-total-tokens")


def launch_key(plan: Plan) -> str:
    """Return what the memory of a load depends on, as two short hashes with a dot between them.

    The first one is of the image and the command of rank 0, the second one of these without the sizes of the caches.
    """
    argv = list(plan.ranks[0].argv)
    alike = [word for word, before in zip(argv, ["", *argv], strict=False) if not {word, before} & {*_CACHES}]
    found = (json.dumps([plan.image, plan.sglang_version, words]) for words in (argv, alike))
    return ".".join(hashlib.sha256(text.encode()).hexdigest()[:12] for text in found)


def _watch(plan: Plan, options: PodOptions) -> str:
    """Return the options of watch_load.py.

    What a load took stays on the node in the directory of compiled kernels, if there is one.
    """
    stop = options.memory_guard_percent[1] if options.memory_guard else 0
    words = [f"--port {plan.service.port} --stop {stop:g} --key {launch_key(plan)}"]
    words += [f"--swap {plan.swap_gib:g}"] if plan.swap_gib else []
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
    if plan.transport == "roce" and any(not network.ips for network in entry.networks):
        steps += ["--rails", ",".join(network.interface for network in entry.networks), "--sysfs", options.sysfs_root]
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
    # Quantities are text, as controllers store them: a number would be reported as a change at every run.
    limits = {name: str(of) for name, of in {**entry.limits, **options.resources.get("limits", {})}.items()}
    asked = requests(entry, plan, options.resources, options.requests)
    resources = {**options.resources, **({"requests": asked} if asked else {}), "limits": limits}
    container = {
        "name": "sglang",
        "image": plan.image,
        "imagePullPolicy": options.pull_policy,
        "command": command(entry, plan, options),
        "env": env,
        "ports": [{"name": "http", "containerPort": plan.service.port, "protocol": "TCP"}],
        "resources": resources,
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


# The container beside a rank's server that reads NCCL's files and keeps the gate.

PROGRAM = "_pod.sidecar"
_CODE, _ACCOUNT, _STATE = "transport-code", "/var/run/secrets/gb10", "/var/lib/gb10"


def programs_of(plan: Plan) -> str:
    """Return the name of the ConfigMap with the programs of a group: the sidecar and the supervisor."""
    return f"{plan.instance}-programs"


def gated(plan: Plan, options: PodOptions) -> bool:
    """Tell whether the ranks of a group keep the gate; those of one node use no network that could be proven."""
    return options.transport_gate != "off" and len(plan.ranks) > 1


def watched(plan: Plan, options: PodOptions) -> bool:
    """Tell whether the sidecars of a group have a task: the transport, the memory of their nodes, enforced answers."""
    return gated(plan, options) or bool(_memory(plan, options)) or options.answers == "enforce"


def metrics_port(plan: Plan) -> int:
    """Return the port of the sidecar's metrics in each pod: the second one after the server's."""
    return plan.service.port + 2


def _gate(entry: RankPlan, plan: Plan, options: PodOptions) -> str:
    """Return the settings of a rank's gate as JSON; their keys are the fields of the sidecar's Gate."""
    expect = plan.expect
    return json.dumps(
        {
            "instance": plan.instance,
            "rank": entry.rank,
            "pods": [rank.pod for rank in plan.ranks],
            "rails": [
                {"device": one.rdma_device, "interface": one.interface, "address": one.ip, "mtu": plan.mtu}
                for one in entry.networks
            ],
            "expect": {
                "networks": list(expect.networks),
                "ranks": expect.ranks // len(plan.ranks),
                "nodes": expect.nodes,
                "min_devices": expect.min_devices,
                "complete": True,
                "gdr": expect.gdr or None,
            }
            if gated(plan, options)
            else None,
            "rdma": plan.transport == "roce",
            "port": plan.service.port,
            "metrics_port": metrics_port(plan),
            "sysfs_root": options.sysfs_root,
            "memory": _memory(plan, options),
            "answers": options.answers if entry.rank == 0 else "off",
        }
    )


def _memory(plan: Plan, options: PodOptions) -> dict[str, float]:
    """Return the limits of the node's memory. Nobody could stop the group without the supervisor."""
    if not (options.memory_guard and options.supervisor):
        return {}
    warn, stop = options.memory_guard_percent
    limits = {"warn": warn, "stop": stop, "full": options.memory_guard_pressure}
    return limits | ({"swap": plan.swap_gib} if plan.swap_gib else {})


def _probe(path: str, **limits: int) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": "transport"}, "timeoutSeconds": 5, **limits}


def with_sidecar(
    spec: dict[str, Any], entry: RankPlan, plan: Plan, options: PodOptions, code: Mapping[str, str]
) -> dict[str, Any]:
    """Return a rank's pod with the sidecar as its last container; ``code`` is its program, by path.

    NCCL's files are read here and not in the server's container, because a server that fails at its start can't be
    asked for the reason. The sidecar needs no privilege in any RDMA mode, and only it has a token of the API.
    """
    arguments = ["--nccl-logs", LOG_DIR]
    env: list[dict[str, Any]] = []
    mounted = [
        {"name": "files", "mountPath": FILES, "readOnly": True},
        {"name": "nccl", "mountPath": LOG_DIR, "readOnly": True},
    ]
    volumes = [code_volume(_CODE, programs_of(plan), code)]
    more: dict[str, Any] = {"resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}}}
    gates: dict[str, Any] = {}
    if watched(plan, options):
        arguments += ["--gate", _gate(entry, plan, options), "--state", _STATE]
        env += [
            {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
            for name, path in (("POD_NAMESPACE", "metadata.namespace"), ("POD_UID", "metadata.uid"))
        ]
        env.append(own_addresses())
        mounted.append({"name": "transport-account", "mountPath": _ACCOUNT, "readOnly": True})
        mounted.append({"name": "transport-state", "mountPath": _STATE})
        certificate = {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
        token = {"path": "token", "expirationSeconds": 3600}
        sources = [{"serviceAccountToken": token}, {"configMap": certificate}]
        volumes.append({"name": "transport-account", "projected": {"sources": sources}})
        # What was counted outlives a start of this container.
        volumes.append({"name": "transport-state", "emptyDir": {"sizeLimit": "1Mi"}})
        more["ports"] = [{"name": "transport", "containerPort": metrics_port(plan), "protocol": "TCP"}]
        # A sidecar that hangs can't take its condition back, so the kubelet restarts it. It may ignore SIGTERM.
        live = _probe("/live", periodSeconds=10, failureThreshold=6, terminationGracePeriodSeconds=5)
        more["livenessProbe"] = live
        proves = gated(plan, options) and options.transport_gate == "enforce"
        if proves or (options.answers == "enforce" and entry.rank == 0):
            more["readinessProbe"] = _probe("/ready", periodSeconds=5, failureThreshold=3)
        if proves:
            gates = {"readinessGates": [{"conditionType": TRANSPORT}]}
    made = container(SIDECAR, PROGRAM, arguments, plan, options, _CODE) | more
    made["env"] += env
    made["volumeMounts"] += mounted
    return spec | {
        "containers": [*spec["containers"], made],
        "volumes": [*spec["volumes"], *volumes],
        **gates,
    }


def accounts(plan: Plan, options: PodOptions, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the service account of each rank, and what its sidecar may do.

    That is to read the pods of the group, to write the status of its own pod, and to create events. With one account
    for all ranks, whoever breaks into one pod could say that the others have proven their transport.
    """
    own = [{"name": entry.name, "namespace": plan.namespace, "labels": dict(labels)} for entry in plan.ranks]
    objects = [account(meta) for meta in own]
    for entry, meta in zip(plan.ranks, own, strict=True) if watched(plan, options) else ():
        rules = [
            {"apiGroups": [""], "resources": ["pods"], "resourceNames": [e.pod for e in plan.ranks], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["pods/status"], "resourceNames": [entry.pod], "verbs": ["patch"]},
            {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
        ]
        objects += role(meta, rules, entry.name, plan.namespace)
    return objects
