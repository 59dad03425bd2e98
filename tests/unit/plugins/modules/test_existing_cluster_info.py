# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the module reports about a cluster, and about what it may not read."""

from pathlib import Path
from typing import Any

import kubernetes
import pytest
from ansible_collections.gb10.cluster.plugins.modules import existing_cluster_info as survey
from kube_samples import FakeApi, Response
from module_runs import Step, play

Json = dict[str, Any]


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
    "/apis/sriovnetwork.openshift.io/v1/sriovnetworknodepolicies": listed("SriovNetworkNodePolicy"),
    CLASSES: listed("RuntimeClass", {"metadata": {"name": "nvidia"}}),
    "/apis/storage.k8s.io/v1/storageclasses": listed("StorageClass", STORAGE),
    "/apis/networking.k8s.io/v1/ingressclasses": listed("IngressClass"),
    NODES: listed("Node", KUBEADM),
    POLICIES: listed("ClusterPolicy", {"metadata": {"name": "cluster-policy"}, "status": {"state": "ready"}}),
    NICS: listed("NicClusterPolicy", {"metadata": {"name": "nic-cluster-policy"}}),
    SPACE: {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}},
}


class Api(FakeApi):
    """A cluster with answers by path; the requests for the paths of ``refused`` are answered with this status."""

    def __init__(self, _place: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.options = {"kubeconfig": "/k", "context": "theirs", "namespace": "models"}
        self.refused: dict[str, int] = {}
        vars(self).update(ANSWERS)
        self.install(patch)

    def request(self, method: str, path: str, **options: Any) -> Response:
        errors = {path: kubernetes.client.ApiException(status=code, reason="No") for path, code in self.refused.items()}
        self.objects = {path: answer for path, answer in vars(self).items() if path.startswith("/")} | errors
        return super().request(method, path, **options)


OLD = {"metadata": {"name": "old", "annotations": {"storageclass.beta.kubernetes.io/is-default-class": "true"}}}
POLICY_SPECS = ({"numVfs": 4}, {"numVfs": 4, "externallyManaged": True}, {"numVfs": 0}, {})
SRIOV = [{"metadata": {"name": f"p{number}"}, "spec": spec} for number, spec in enumerate(POLICY_SPECS)]
DISTRIBUTIONS: dict[str, tuple[str, Json]] = {
    "K3s": ("v1.36.4+k3s1", {}),
    "RKE2": ("v1.36.4+rke2r1", {}),
    "k0s": ("v1.36.4+k0s.0", {}),
    "MicroK8s": ("v1.36.4", {"labels": {"microk8s.io/cluster": "true"}}),
    "EKS": ("v1.33.1-eks-7f9249a", {}),
    "OpenShift": ("v1.31.0", {"labels": {"node.openshift.io/os_id": "rhel"}}),
    "AKS": ("v1.31.0", {"labels": {"kubernetes.azure.com/cluster": "MC_x"}}),
    "kubeadm by a label": ("v1.36.1", {"labels": {"node.kubernetes.io/exclude-from-external-load-balancers": ""}}),
    "unknown": ("v1.31.0", {}),
}
CASES: dict[str, list[Step]] = {
    "all may be read": [{}],
    "some may not be read, and some are absent": [
        {"refused": {NODES: 403, CLASSES: 403, SPACE: 404, POLICIES: 404, NICS: 403}}
    ],
    "the version can't be read": [{"refused": {"/version": 500}}],
    "policies and an old class": [
        {
            "/apis": {"groups": [{"name": name} for name in (*GROUPS, "sriovnetwork.openshift.io")]},
            "/apis/sriovnetwork.openshift.io/v1/sriovnetworknodepolicies": listed("SriovNetworkNodePolicy", *SRIOV),
            "/apis/storage.k8s.io/v1/storageclasses": listed("StorageClass", OLD),
        }
    ],
    **{
        name: [{"/version": {"gitVersion": version}, NODES: listed("Node", {"metadata": {"name": "a", **meta}})}]
        for name, (version, meta) in DISTRIBUTIONS.items()
    },
}


def test_each_cluster(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    play("existing_cluster_info", survey, CASES, Api, capsys, tmp_path)
