# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what a support bundle has of a cluster, also of one that belongs to somebody else."""

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import ClusterError
from ansible_collections.gb10.cluster.plugins.modules import support_cluster_info
from module_runs import Step, play


def pod(namespace: str, name: str, instance: str = "") -> dict[str, Any]:
    labels = {"gb10.cluster/instance": instance} if instance else {}
    state = {"containerStatuses": [{"name": "main", "restartCount": int(name == "glm-0")}]}
    return {"metadata": {"namespace": namespace, "name": name, "labels": labels}, "status": state}


PODS = [
    pod("models", "glm-0", "glm"),
    pod("kube-system", "coredns"),
    pod("nvidia-network-operator", "kube-multus-ds-x"),
    pod("gpu-operator", "nvidia-device-plugin-daemonset-x"),
    pod("shop", "database"),
]


class Cluster:
    """A cluster whose user may list all pods, or only those of one namespace, or that answers with an error."""

    def __init__(self, _place: Path, patch: pytest.MonkeyPatch) -> None:
        self.options = {"kubeconfig": "/k", "context": "gb10", "namespace": "models"}
        self.status = 0
        patch.setattr(support_cluster_info, "Cluster", self.use)

    def use(self, _kubeconfig: str, context: str) -> "Cluster":
        if context != "gb10":
            raise ClusterError(f"can't use context {context}")
        return self

    def _refuse(self, what: str) -> None:
        if self.status:
            raise ClusterError(f"can't list the {what}", self.status)

    def nodes(self) -> list[dict[str, Any]]:
        self._refuse("nodes")
        return []

    def all_pods(self) -> list[dict[str, Any]]:
        self._refuse("pods")
        return PODS

    def pods(self, namespace: str, _selector: str) -> list[dict[str, Any]]:
        return [one for one in PODS if one["metadata"]["namespace"] == namespace]

    def events(self, namespace: str) -> list[dict[str, Any]]:
        return [{"message": namespace}]

    def log_end(self, space: str, name: str, *rest: Any) -> list[str]:
        return [f"log of {space} {name} {rest}"]


CASES: dict[str, list[Step]] = {
    # The logs of Multus and of device plugins are found wherever an operator runs them.
    "all may be read": [{}],
    "rights in one namespace": [{"status": 403}],
    "an error is no missing right": [{"status": 500}],
    "no such context": [{"context": "other"}],
}


def test_each_bundle(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    play("support_cluster_info", support_cluster_info, CASES, Cluster, capsys, tmp_path)
