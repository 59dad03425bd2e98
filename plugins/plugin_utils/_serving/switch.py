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
from ansible_collections.gb10.cluster.plugins.module_utils._kube.objects import made, on_hosts

from .fallback import Fallback
from .model import Plan
from .pods import PodOptions
from .programs import account, code_volume, container, deployment, key_of, role
from .supervisor import pod_rules, supervising

PROGRAM = "_fallback.switch"
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
    meta = {"name": name, "namespace": plan.namespace, "labels": {**labels, FALLBACK: SWITCH}}
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
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    ]
    nodes = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]
    return [
        *role(meta, rules, meta["name"], plan.namespace),
        *role(wide, nodes, meta["name"], plan.namespace, "ClusterRole"),
    ]


def _containers(plan: Plan, fallback: Fallback, options: PodOptions) -> list[dict[str, Any]]:
    """Return the switch, and a supervisor for the fallback's ranks: the group's own one may be on the lost node."""
    main = container("switch", PROGRAM, ["--settings", settings(plan, fallback)], plan, options)
    main["ports"] = [{"name": "fallback", "containerPort": metrics_port(plan), "protocol": "TCP"}]
    return [main, *([supervising(plan, options, list(fallback.plans.values()))] if options.supervisor else [])]


def _deployment(
    plan: Plan, fallback: Fallback, options: PodOptions, meta: Mapping[str, Any], code: Mapping[str, str]
) -> dict[str, Any]:
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
        "containers": _containers(plan, fallback, options),
        "volumes": [
            code_volume("code", f"{meta['name']}-code", code),
            {"name": "logs", "emptyDir": {"sizeLimit": "64Mi"}},
        ],
    }
    # A pod does not notice that a ConfigMap has changed.
    revision = hashlib.sha256(json.dumps(dict(code), sort_keys=True).encode()).hexdigest()[:16]
    return deployment(meta, {INSTANCE: plan.instance, FALLBACK: SWITCH}, {REVISION: revision}, spec)
