# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The group supervisor's objects; its RBAC permits only the pods of its group. Private to the collection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import SUPERVISOR

from .model import Plan
from .pods import PodOptions, start_limit, tolerations
from .programs import account, container, deployment, role
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


def supervising(plan: Plan, options: PodOptions, groups: Sequence[Plan]) -> dict[str, Any]:
    """Return the container that supervises the pods of ``groups``."""
    arguments = ["--namespace", plan.namespace]
    arguments += [word for one in groups for word in ("--pods", ",".join(rank.pod for rank in one.ranks))]
    arguments += ["--port", str(plan.service.port), "--stuck-after", str(options.stuck_after)]
    start = max(start_limit(one, options) for one in groups)
    arguments += ["--first-step-timeout", str(options.first_step_timeout), "--start-timeout", str(start)]
    arguments += ["--logs", LOGS]
    made = container("supervisor", PROGRAM, arguments, plan, options)
    made["volumeMounts"].append({"name": "logs", "mountPath": LOGS})
    return made


def pod_rules(pods: Sequence[str]) -> list[dict[str, Any]]:
    """Return what the supervisor of these pods may do."""
    return [
        {"apiGroups": [""], "resources": ["pods"], "resourceNames": list(pods), "verbs": ["get", "delete"]},
        {"apiGroups": [""], "resources": ["pods/log"], "resourceNames": list(pods), "verbs": ["get"]},
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
    meta = {"name": name, "namespace": plan.namespace, "labels": dict(labels)}
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
