# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the programs beside a group have in common: their code, containers, permissions and Deployments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._kube.objects import RBAC, made

from .model import Plan
from .pods import SECURITY, PodOptions

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
