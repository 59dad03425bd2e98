# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The group supervisor's objects; its RBAC permits only the pods of its group. Private to the collection."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._fallback.state import MAIN
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import (
    COMPONENT,
    FALLBACK,
    INSTANCE,
    NAMESPACE,
    REVISION,
    SUPERVISOR,
    SWITCH,
)
from ansible_collections.gb10.cluster.plugins.module_utils._kube.objects import made, on_hosts

from .fallback import Fallback
from .model import Plan
from .pods import PodOptions, account, code_volume, container, deployment, key_of, role, start_limit, tolerations
from .sidecar import metrics_port as evidence_port
from .volumes import CLAIMS

PROGRAM = "_supervisor.supervise"
LOGS = "/var/log/group"


def logs_volume(plan: Plan, log_dir: str) -> dict[str, Any]:
    """Return the volume for logs: a directory below ``log_dir`` on the head's node, or one of the supervisor's pod.

    A pod's own directory is lost with the next revision of the group. If Pod Security forbids directories of the
    node, a claim is no replacement: it would have to outlive its group, and its volume would never be deleted.
    """
    if not log_dir or plan.rdma_mode in CLAIMS:
        return {"emptyDir": {"sizeLimit": "64Mi"}}
    return {"hostPath": {"path": f"{log_dir}/{plan.namespace}/{plan.instance}", "type": "Directory"}}


def supervisor_labels(plan: Plan) -> dict[str, str]:
    """Return the labels that select the pod of a group's supervisor."""
    return {SUPERVISOR: plan.instance}


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
    arguments += ["--port", str(plan.service.port), "--stuck-after", str(options.stuck_after)]
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
        deployment(meta, supervisor_labels(plan), annotations, spec),
    ]


SWITCH_PROGRAM = "_fallback.switch"
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


def _containers(plan: Plan, fallback: Fallback, options: PodOptions) -> list[dict[str, Any]]:
    """Return the switch, and a supervisor for the fallback's ranks: the group's own one may be on the lost node."""
    main = container("switch", SWITCH_PROGRAM, ["--settings", settings(plan, fallback)], plan, options)
    main |= _live("fallback", metrics_port(plan))
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
