# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the module reports about a cluster, and about what it may not read."""

from typing import Any

import kubernetes
import pytest
from ansible_collections.gb10.cluster.plugins.modules import existing_cluster_info as module
from ansible_collections.gb10.cluster.plugins.modules import existing_cluster_info as survey
from kube_samples import FakeApi
from module_runs import run_module

Json = dict[str, Any]
OPTIONS = {"kubeconfig": "/k", "context": "theirs", "namespace": "models"}


def daemon(name: str) -> Json:
    spec = {"containers": [{"image": "multus:v4", "env": [{"name": "TOKEN", "value": "x"}]}]}
    volumes = [{"name": "cni", "hostPath": {"path": "/etc/cni/net.d"}}, {"name": "tmp", "emptyDir": {}}]
    status = {"desiredNumberScheduled": 2, "numberReady": 1}
    meta = {"namespace": "kube-system", "name": name}
    return {"metadata": meta, "spec": {"template": {"spec": {**spec, "volumes": volumes}}}, "status": status}


STORAGE = {"metadata": {"name": "fast", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}}
KUBEADM = {"metadata": {"name": "spark1", "annotations": {"kubeadm.alpha.kubernetes.io/cri-socket": "unix:///run"}}}
NODES, CLASSES = "/api/v1/nodes", "/apis/node.k8s.io/v1/runtimeclasses"
SPACE = "/api/v1/namespaces/models"


def listed(kind: str, *items: Json) -> Json:
    return {"kind": f"{kind}List", "apiVersion": "v1", "items": list(items)}


GROUPS = ["apps", "k8s.cni.cncf.io", "mellanox.com", "networking.k8s.io", "node.k8s.io", "nvidia.com", "storage.k8s.io"]
POLICIES, NICS = "/apis/nvidia.com/v1/clusterpolicies", "/apis/mellanox.com/v1alpha1/nicclusterpolicies"
ANSWERS: dict[str, Json] = {
    "/version": {"gitVersion": "v1.34.2"},
    "/apis": {"groups": [{"name": name} for name in GROUPS]},
    "/apis/apps/v1/daemonsets": listed("DaemonSet", daemon("kube-multus-ds")),
    CLASSES: listed("RuntimeClass", {"metadata": {"name": "nvidia"}}),
    "/apis/storage.k8s.io/v1/storageclasses": listed("StorageClass", STORAGE),
    "/apis/networking.k8s.io/v1/ingressclasses": listed("IngressClass"),
    NODES: listed("Node", KUBEADM),
    POLICIES: listed("ClusterPolicy", {"metadata": {"name": "cluster-policy"}, "status": {"state": "ready"}}),
    NICS: listed("NicClusterPolicy", {"metadata": {"name": "nic-cluster-policy"}}),
    SPACE: {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}},
}


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], refused: dict[str, int]
) -> tuple[int, Json]:
    """Run the module; the requests for the paths of ``refused`` are answered with this status."""
    errors = {path: kubernetes.client.ApiException(status=code, reason="No") for path, code in refused.items()}
    FakeApi(objects=ANSWERS | errors).install(monkeypatch)
    result = run_module(module, capsys, **OPTIONS)
    monkeypatch.undo()
    return result


def test_the_parts_of_a_cluster_are_reported_without_secrets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = run(monkeypatch, capsys, {})
    assert (status, found["version"], found["distribution"], found["unread"]) == (0, "v1.34.2", "kubeadm", [])
    assert found["groups"] == GROUPS
    assert found["cluster_policies"] == [{"name": "cluster-policy", "state": "ready"}]
    assert found["nic_cluster_policies"] == [{"name": "nic-cluster-policy", "state": "unknown"}]
    assert found["sriov_policies"] == []
    (multus,) = found["daemon_sets"]
    assert multus == {
        "namespace": "kube-system", "name": "kube-multus-ds", "images": ["multus:v4"],
        "directories": ["/etc/cni/net.d"], "wanted": 2, "ready": 1,
    }  # fmt: skip
    assert found["runtime_classes"] == ["nvidia"]
    assert found["storage_classes"] == [{"name": "fast", "default": True}]
    assert found["namespace"] == {"exists": True, "level": "baseline"}


def test_what_may_not_be_read_is_named_and_what_is_absent_is_empty(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = run(monkeypatch, capsys, {NODES: 403, CLASSES: 403, SPACE: 404, POLICIES: 404, NICS: 403})
    assert (status, found["unread"]) == (0, ["nodes", "runtime_classes", "nic_cluster_policies"])
    assert (found["nodes"], found["cluster_policies"]) == ([], [])
    assert found["namespace"] == {"exists": False, "level": ""}
    status, failed = run(monkeypatch, capsys, {"/version": 500})
    assert (status, "can't read the version of the API server (500: No)" in failed["msg"]) == (1, True)


@pytest.mark.parametrize(
    ("version", "node", "name"),
    [
        ("v1.36.4+k3s1", {}, "K3s"),
        ("v1.36.4+rke2r1", {}, "RKE2"),
        ("v1.36.4+k0s.0", {}, "k0s"),
        ("v1.36.4", {"labels": {"microk8s.io/cluster": "true"}}, "MicroK8s"),
        ("v1.33.1-eks-7f9249a", {}, "EKS"),
        ("v1.31.0", {"labels": {"node.openshift.io/os_id": "rhel"}}, "OpenShift"),
        ("v1.31.0", {"labels": {"kubernetes.azure.com/cluster": "MC_x"}}, "AKS"),
        ("v1.36.1", {"labels": {"node.kubernetes.io/exclude-from-external-load-balancers": ""}}, "kubeadm"),
        ("v1.31.0", {}, ""),
    ],
)
def test_distributions_are_recognised(version: str, node: Json, name: str) -> None:
    assert survey.distribution(version, [{"metadata": {"name": "a", **node}}]) == name


@pytest.mark.parametrize(
    ("spec", "creates"),
    [({"numVfs": 4}, True), ({"numVfs": 4, "externallyManaged": True}, False), ({"numVfs": 0}, False), ({}, False)],
)
def test_policies_by_which_the_sriov_operator_creates_vfs_are_known(spec: Json, creates: bool) -> None:
    assert survey.sriov_policy({"metadata": {"name": "theirs"}, "spec": spec}) == {"name": "theirs", "creates": creates}


def test_a_default_class_of_the_old_annotation_counts() -> None:
    old = {"metadata": {"name": "old", "annotations": {"storageclass.beta.kubernetes.io/is-default-class": "true"}}}
    assert survey.storage_class(old) == {"name": "old", "default": True}
