# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The volumes of a rank: memory, scripts, home, and the node's models and cache. Private to the collection."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.terms import RdmaMode
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import NAMESPACE
from ansible_collections.gb10.cluster.plugins.module_utils._kube.objects import made, on_hosts
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.live import LOG_DIR

from .model import Plan

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
    wanted = [("models", plan.models_dir, "ReadOnlyMany"), ("cache", cache_dir, "ReadWriteMany")]
    return [
        part for what, path, access in wanted if path for part in _volume_and_claim(plan, labels, what, path, access)
    ]


def _volume_and_claim(plan: Plan, labels: Mapping[str, str], what: str, path: str, access: str) -> list[dict[str, Any]]:
    claim, volume = f"{plan.instance}-{what}", f"{plan.namespace}-{plan.instance}-{what}"
    on_nodes = on_hosts(dict.fromkeys(entry.node for entry in plan.ranks))
    shared = {"accessModes": [access], "storageClassName": CLASS, "volumeMode": "Filesystem"}
    # The size of a local volume is not enforced; claim and volume only have to have the same one.
    size = {"storage": "1Gi"}
    # Volumes have no namespace, so a label names it.
    own = {"labels": {**labels, NAMESPACE: plan.namespace}}
    offer = {
        "capacity": size,
        "persistentVolumeReclaimPolicy": "Retain",
        "local": {"path": path},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [on_nodes]}},
    }
    ask = {"volumeName": volume, "resources": {"requests": size}}
    # A claim that finds its volume is bound at once; a claim that waits for it, at the controller's next round (15 s).
    return [
        made("PersistentVolume", {"name": volume, **own}, {**shared, **offer}),
        made("PersistentVolumeClaim", {"name": claim, "namespace": plan.namespace, **own}, {**shared, **ask}),
    ]
