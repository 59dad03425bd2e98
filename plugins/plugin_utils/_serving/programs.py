# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the programs beside a group have in common: their code, containers, permissions and Deployments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .model import Plan
from .pods import SECURITY, PodOptions

# The directory of their code in a pod.
CODE = "/opt/gb10-programs"
_RBAC = "rbac.authorization.k8s.io"


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
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta, "automountServiceAccountToken": False}


def role(
    meta: Mapping[str, Any], rules: list[dict[str, Any]], user: str, namespace: str, kind: str = "Role"
) -> list[dict[str, Any]]:
    """Return a Role or ClusterRole, and its binding to the service account ``user`` of ``namespace``."""
    return [
        {"apiVersion": f"{_RBAC}/v1", "kind": kind, "metadata": dict(meta), "rules": rules},
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": f"{kind}Binding",
            "metadata": dict(meta),
            "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": meta["name"]},
            "subjects": [{"kind": "ServiceAccount", "name": user, "namespace": namespace}],
        },
    ]


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
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": dict(meta),
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": dict(own)},
            "template": {"metadata": template, "spec": {**general, **spec}},
        },
    }
