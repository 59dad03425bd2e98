# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes and pods in the format of the API."""

from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import INSTANCE

GPU = "nvidia.com/gpu"


def node(
    name: str, ready: str = "True", cordoned: bool = False, offers: dict[str, str] | None = None
) -> dict[str, Any]:
    """Return a node, with one GPU unless ``offers`` says otherwise."""
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {"unschedulable": True} if cordoned else {},
        "status": {
            "allocatable": {"cpu": "20", GPU: "1"} | (offers or {}),
            "conditions": [{"type": "Ready", "status": ready, "message": "kubelet stopped posting"}],
        },
    }


def pod(on: str, instance: str = "", namespace: str = "gb10-serving", **changes: Any) -> dict[str, Any]:
    """Return a running pod that holds a GPU of a node; ``changes`` go into its spec."""
    labels = {INSTANCE: instance} if instance else {}
    container = {"name": "sglang", "resources": {"limits": {GPU: "1"}}}
    return {
        "metadata": {"name": f"pod-on-{on}", "namespace": namespace, "labels": labels},
        "spec": {"nodeName": on, "containers": [container], **changes},
        "status": {"phase": "Running"},
    }
