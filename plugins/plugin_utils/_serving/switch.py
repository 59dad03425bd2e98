# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The objects of the program that moves a group to its fallback and back. Private to the collection."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._fallback.state import MAIN
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import (
    FALLBACK,
    INSTANCE,
    NAMESPACE,
    REVISION,
    SWITCH,
)

from .fallback import Fallback
from .model import Plan
from .pods import SECURITY, PodOptions
from .sidecar import key_of
from .supervisor import LOGS
from .volumes import FILES

PROGRAM = "_fallback.switch"
_CODE = "/opt/gb10-fallback"
_RBAC = "rbac.authorization.k8s.io"
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
    own = {**labels, FALLBACK: SWITCH}
    meta = {"name": name, "namespace": plan.namespace, "labels": own}
    program = {**meta, "name": f"{name}-code"}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta},
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": program,
            "data": {key_of(path): text for path, text in code.items()},
        },
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta, "automountServiceAccountToken": False},
        *_rights(plan, fallback, meta),
        _deployment(plan, fallback, options, meta, code),
    ]


def _rights(plan: Plan, fallback: Fallback, meta: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what the switch may do: read nodes; scale the group's StatefulSets and delete their pods; tell about it.

    Nodes have no namespace, and a Role for all of them can be used to list them with one request.
    """
    ranks = [rank for one in (plan, *fallback.plans.values()) for rank in one.ranks]
    pods, sets = [rank.pod for rank in ranks], [rank.name for rank in ranks]
    subject = {"kind": "ServiceAccount", "name": meta["name"], "namespace": plan.namespace}
    wide = {
        "name": f"{plan.namespace}-{meta['name']}",
        "labels": {**meta["labels"], NAMESPACE: plan.namespace},
    }
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "resourceNames": pods, "verbs": ["get", "delete"]},
        {"apiGroups": [""], "resources": ["pods/log"], "resourceNames": pods, "verbs": ["get"]},
        {
            "apiGroups": ["apps"],
            "resources": ["statefulsets/scale"],
            "resourceNames": sets,
            "verbs": ["get", "patch"],
        },
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [meta["name"]], "verbs": ["get", "patch"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    ]
    nodes = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]
    return [
        {"apiVersion": f"{_RBAC}/v1", "kind": "Role", "metadata": dict(meta), "rules": rules},
        _binding("Role", meta, subject),
        {"apiVersion": f"{_RBAC}/v1", "kind": "ClusterRole", "metadata": wide, "rules": nodes},
        _binding("ClusterRole", wide, subject),
    ]


def _binding(kind: str, meta: Mapping[str, Any], subject: Mapping[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": f"{kind}Binding",
        "metadata": dict(meta),
        "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": meta["name"]},
        "subjects": [dict(subject)],
    }


def _container(
    name: str, plan: Plan, options: PodOptions, command: list[str], mounts: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "name": name,
        "image": plan.image,
        "imagePullPolicy": options.pull_policy,
        "command": command,
        # NVIDIA's container runtime gives an image's container all GPUs unless this variable forbids it.
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}, {"name": "PYTHONPATH", "value": _CODE}],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
        "securityContext": SECURITY["restricted"] | {"readOnlyRootFilesystem": True},
        "volumeMounts": mounts,
    }


def _containers(plan: Plan, fallback: Fallback, options: PodOptions) -> list[dict[str, Any]]:
    """Return the switch, and a supervisor for the fallback's ranks: the group's own one may be on the lost node."""
    command = ["python3", "-m", f"gb10.{PROGRAM}", "--settings", settings(plan, fallback)]
    mounts = [{"name": "code", "mountPath": _CODE, "readOnly": True}]
    main = _container("switch", plan, options, command, mounts)
    main["ports"] = [{"name": "fallback", "containerPort": metrics_port(plan), "protocol": "TCP"}]
    several = [one for one in fallback.plans.values() if len(one.ranks) > 1]
    if not (options.supervisor and several):
        return [main]
    command = ["python3", f"{FILES}/group_supervisor.py", "--namespace", plan.namespace]
    command += [word for one in several for word in ("--pods", ",".join(rank.pod for rank in one.ranks))]
    command += ["--port", str(plan.service.port), "--stuck-after", str(options.stuck_after)]
    command += ["--first-step-timeout", str(options.first_step_timeout), "--logs", LOGS]
    mounts = [{"name": "files", "mountPath": FILES, "readOnly": True}, {"name": "logs", "mountPath": LOGS}]
    return [main, _container("supervisor", plan, options, command, mounts)]


def _revision(code: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(code), sort_keys=True).encode()).hexdigest()[:16]


def _deployment(
    plan: Plan, fallback: Fallback, options: PodOptions, meta: Mapping[str, Any], code: Mapping[str, str]
) -> dict[str, Any]:
    nodes = [rank.node for rank in plan.ranks]
    # The nodes of the group already have the image.
    there = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": nodes}]}
    lost = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TOLERATED}
    items = [{"key": key_of(path), "path": path} for path in code]
    spec = {
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [there]}}
        },
        "tolerations": [{"key": f"node.kubernetes.io/{what}", **lost} for what in ("not-ready", "unreachable")],
        "serviceAccountName": meta["name"],
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"fsGroup": 1000},
        "containers": _containers(plan, fallback, options),
        "volumes": [
            {"name": "code", "configMap": {"name": f"{meta['name']}-code", "items": items}},
            {"name": "files", "configMap": {"name": f"{plan.instance}-files"}},
            {"name": "logs", "emptyDir": {"sizeLimit": "64Mi"}},
        ],
    }
    own = {INSTANCE: plan.instance, FALLBACK: SWITCH}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": dict(meta),
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": own},
            "template": {
                # A pod does not notice that a ConfigMap has changed.
                "metadata": {"labels": dict(meta["labels"]), "annotations": {REVISION: _revision(code)}},
                "spec": spec,
            },
        },
    }
