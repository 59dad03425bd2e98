# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what a support bundle has of a cluster, also of one that belongs to somebody else."""

from typing import Any, cast

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import Cluster, ClusterError
from ansible_collections.gb10.cluster.plugins.modules import support_cluster_info as cluster


def pod(namespace: str, name: str, instance: str = "") -> dict[str, Any]:
    labels = {"gb10.cluster/instance": instance} if instance else {}
    state = {"containerStatuses": [{"name": "main", "restartCount": 0}]}
    return {"metadata": {"namespace": namespace, "name": name, "labels": labels}, "status": state}


PODS = [
    pod("models", "glm-0", "glm"),
    pod("kube-system", "coredns"),
    pod("nvidia-network-operator", "kube-multus-ds-x"),
    pod("gpu-operator", "nvidia-device-plugin-daemonset-x"),
    pod("shop", "database"),
]


class Fake:
    """A cluster whose user may list all pods, or only those of one namespace."""

    def __init__(self, status: int) -> None:
        self._status = status

    def nodes(self) -> list[dict[str, Any]]:
        if self._status:
            raise ClusterError("can't list the nodes", self._status)
        return []

    def all_pods(self) -> list[dict[str, Any]]:
        if self._status:
            raise ClusterError("can't list the pods", self._status)
        return PODS

    def pods(self, namespace: str, _selector: str) -> list[dict[str, Any]]:
        return [one for one in PODS if one["metadata"]["namespace"] == namespace]

    def events(self, namespace: str) -> list[dict[str, Any]]:
        return [{"message": namespace}]

    def log_end(self, _space: str, name: str, *_rest: Any) -> list[str]:
        return [f"log of {name}"]


def logs(status: int) -> tuple[list[str], dict[str, str]]:
    found, missing = cluster.gather(cast(Cluster, Fake(status)), 10000, "models")
    return [name.split()[2] for name in found if name.startswith("log ")], missing


def test_the_logs_of_multus_and_of_device_plugins_are_found_wherever_an_operator_runs_them() -> None:
    assert logs(0) == (["glm-0", "coredns", "kube-multus-ds-x", "nvidia-device-plugin-daemonset-x"], {})


def test_a_user_with_rights_in_one_namespace_gets_the_pods_there() -> None:
    found, missing = logs(403)
    assert found == ["glm-0"]
    assert missing == {"nodes": "can't list the nodes", "pods of other namespaces": "can't list the pods"}


@pytest.mark.parametrize("status", [0, 403])
def test_the_events_are_those_of_the_namespaces_with_such_pods(status: int) -> None:
    found, _missing = cluster.gather(cast(Cluster, Fake(status)), 10000, "models")
    spaces = [name.split()[1] for name in found if name.startswith("events ")]
    assert spaces == (["models"] if status else ["gpu-operator", "kube-system", "models", "nvidia-network-operator"])


def test_an_api_that_does_not_answer_is_no_missing_right() -> None:
    found, missing = logs(500)
    assert (found, missing["pods"]) == ([], "can't list the pods")
