# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The group supervisor's objects; its RBAC permits only the pods of its group. Private to the collection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import SUPERVISOR

from .model import Plan
from .pods import SECURITY, PodOptions
from .volumes import CLAIMS, FILES

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


def supervisor(
    plan: Plan, options: PodOptions, labels: Mapping[str, str], annotations: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return service account, role, binding and deployment of the supervisor of a group.

    ``annotations`` change with the revision of the group, so that the supervisor restarts with it.
    """
    name, namespace = f"{plan.instance}-supervisor", plan.namespace
    meta = {"name": name, "namespace": namespace, "labels": dict(labels)}
    pods = [entry.pod for entry in plan.ranks]
    group = "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta, "automountServiceAccountToken": False},
        {
            "apiVersion": f"{group}/v1",
            "kind": "Role",
            "metadata": meta,
            "rules": [
                {"apiGroups": [""], "resources": ["pods"], "resourceNames": pods, "verbs": ["get", "delete"]},
                {"apiGroups": [""], "resources": ["pods/log"], "resourceNames": pods, "verbs": ["get"]},
            ],
        },
        {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        },
        _deployment(plan, options, meta, annotations, pods),
    ]


def _deployment(
    plan: Plan,
    options: PodOptions,
    meta: Mapping[str, Any],
    annotations: Mapping[str, str],
    pods: list[str],
) -> dict[str, Any]:
    own = supervisor_labels(plan)
    command = ["python3", f"{FILES}/group_supervisor.py", "--namespace", plan.namespace, "--pods", ",".join(pods)]
    command += ["--port", str(plan.service.port), "--stuck-after", str(options.stuck_after)]
    command += ["--first-step-timeout", str(options.first_step_timeout), "--logs", LOGS]
    spec = {
        # The head's node already has the image, and without that node there is no group to supervise.
        "nodeSelector": {"kubernetes.io/hostname": plan.ranks[0].node},
        "serviceAccountName": meta["name"],
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"fsGroup": 1000},
        "containers": [
            {
                "name": "supervisor",
                "image": plan.image,
                "imagePullPolicy": options.pull_policy,
                "command": command,
                "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
                "securityContext": SECURITY["restricted"] | {"readOnlyRootFilesystem": True},
                "volumeMounts": [
                    {"name": "files", "mountPath": FILES, "readOnly": True},
                    {"name": "logs", "mountPath": LOGS},
                ],
            }
        ],
        "volumes": [
            {"name": "files", "configMap": {"name": f"{plan.instance}-files"}},
            {"name": "logs", **logs_volume(plan, options.log_dir)},
        ],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": dict(meta),
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": own},
            "template": {
                "metadata": {"labels": {**meta["labels"], **own}, "annotations": dict(annotations)},
                "spec": spec,
            },
        },
    }
