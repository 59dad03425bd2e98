# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what modules read of a cluster, how long they wait for its nodes and pods, and what they say meanwhile."""

from functools import partial
from pathlib import Path
from typing import Any

import kubernetes
import pytest
from ansible_collections.gb10.cluster.plugins.modules import (
    existing_cluster_info,
    node_room_info,
    node_wait,
    pods_wait,
    support_cluster_info,
)
from kube_samples import FakeApi, Response, api_of
from module_runs import Step, steps_of

Json = dict[str, Any]
RUNTIME = 'failed to get sandbox runtime: no runtime for "nvidia" is configured'
GPU = {"nvidia.com/gpu": 1}


def refused(*names: str, status: int = 403) -> Json:
    """Return the answer of an API to one who may not read all objects of these kinds."""
    error = kubernetes.client.ApiException(status=status, reason="Forbidden")
    return {"objects": {f"/api/v1/{name}": error for name in names}}


def node(gpus: str, ready: bool = True) -> Json:
    conditions = [{"type": "Ready", "status": str(ready), "message": "kubelet starts"}]
    state = {"conditions": conditions, "allocatable": {"nvidia.com/gpu": gpus, "cpu": "8"}}
    return {"metadata": {"name": "spark1", "labels": {"gb10.cluster/gpu": "true"}}, "status": state}


def pod(name: str, ready: bool = False, **container: Any) -> Json:
    status = {"phase": "Running" if ready else "Pending", "conditions": [{"type": "Ready", "status": str(ready)}]}
    container = container or {"state": {"waiting": {"reason": "ContainerCreating"}}}
    return {
        "metadata": {"name": name, "uid": name},
        "spec": {"nodeName": "spark1"},
        "status": status | {"containerStatuses": [container]},
    }


def event(name: str, reason: str, message: str, kind: str = "Warning") -> Json:
    about = {"kind": "Pod", "name": name, "uid": name}
    return {"involvedObject": about, "type": kind, "reason": reason, "message": message}


class Restarting(FakeApi):
    """A node that is ready at the third reading, and its device plugin at the fifth. The second one may fail."""

    def __init__(self, _place: Path, patch: pytest.MonkeyPatch, **options: Any) -> None:
        super().__init__(events=[event("gb10-gpu-plugin-x", "FailedCreatePodSandBox", RUNTIME)])
        self.options = {"kubeconfig": "/k", "context": "gb10", **options}
        self.looks, self.breaks = 0, "timeout" in options
        self.install(patch)

    def _answer(self, path: str, selector: str) -> Any:
        if path.endswith("/nodes"):
            self.looks += 1
            if self.breaks and self.looks == 2:
                return kubernetes.client.ApiException(status=500, reason="connection refused")
            others = {"metadata": {"name": "control"}, "status": node("0")["status"]}
            self.nodes = [node("1" if self.looks > 4 else "0", ready=self.looks > 2), others]
        return super()._answer(path, selector)

    def shows(self) -> Json:
        return {"looks": self.looks, "nodes": []}


def of(*names: str, **more: Any) -> Step:
    """Return options with names of nodes, since the API has its nodes under the name of this option."""

    def step(api: FakeApi) -> Json:
        vars(api)["options"]["nodes"] = [*names]
        return more

    return step


TWO = {"resources": {"nvidia.com/gpu": 2}, "timeout": 20}
NODE_WAITS: dict[str, list[Step]] = {
    "until it is ready": [of("spark1")],
    "until labelled nodes have devices": [{"label": "gb10.cluster/gpu=true", "resources": GPU}],
    "too few devices": [of("spark1", **TWO), {**TWO, "events": []}],
    "a node that never comes": [of("gone", progress={"waited": waited}) for waited in (30, 50)],
    "no time": [of("gone", timeout=0, events=[])],
    "not ready, and too few devices": [of("spark1", **TWO | {"timeout": 0, "events": []})],
    "one is absent, and one has too few devices": [of("spark1", "gone", **TWO, events=[])],
    "no API": [{"breaks": True, "looks": 1, "timeout": 0}],
}
ROOM_WAITS: dict[str, list[Step]] = {
    "nothing wanted": [{"wait_timeout": 60}],
    "ready": [{"wanted": {"spark1": {}}, "wait_timeout": 60}],
    "with its devices": [{"wanted": {"spark1": GPU}, "wait_timeout": wait} for wait in (60, 0, 1)],
    "absent": [{"wanted": {"spark2": {}}, "wait_timeout": 10}],
}
CONTAINERS = [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]
HOLDER = {
    "metadata": {"namespace": "gb10-serving", "name": "one-0-0"},
    "spec": {"nodeName": "spark1", "containers": CONTAINERS},
}
FULL = {"nodes": [node("1")], "pods": [HOLDER]}
WANTED = {"optional": True, "wanted": {"spark1": GPU}}
ROOMS: dict[str, list[Step]] = {
    # Devices that pods hold do not prolong the wait.
    "a pod has the GPU": [{**FULL, "wanted": {"spark1": GPU}, "wait_timeout": 60}, {"nodes": [node("1.5")]}],
    "nodes and pods may not be read": [{**FULL, **refused("nodes", "pods"), **WANTED}, {}],
    "pods may not be read": [{**FULL, **refused("pods"), **WANTED}, {}],
}


def daemon(generation: int = 1, **status: int) -> Json:
    return {"metadata": {"name": "d", "generation": generation}, "status": {"observedGeneration": 1, **status}}


DONE = {"desiredNumberScheduled": 2, "numberReady": 2, "updatedNumberScheduled": 2}
# Of an older generation, not ready everywhere, not updated everywhere, without nodes, and done.
DAEMONS = [
    daemon(2, **DONE),
    daemon(**DONE | {"numberReady": 1}),
    daemon(**DONE | {"updatedNumberScheduled": 1}),
    daemon(),
    daemon(**DONE),
]
POD_WAITS: dict[str, list[Step]] = {
    "two are ready": [{"pods": [pod("a", ready=True), pod("b", ready=True)], "count": count} for count in (2, 3)],
    "a slice": [{"pods": [pod("a")], "events": [event("a", "Pulling", "Pulling image x", "Normal")], "timeout": 60}],
    "a failure": [{"pods": [pod("a")], "events": [event("a", "FailedCreatePodSandBox", RUNTIME)]}],
    "a DaemonSet": [
        {"pods": [pod("a", ready=True)], "daemon_sets": {"d": each}, "daemon_set": "d"} for each in DAEMONS
    ],
    "an API that refuses": [{"pods": kubernetes.client.ApiException(status=403, reason="Forbidden")}],
}


def multus(name: str) -> Json:
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
    "/apis/apps/v1/daemonsets": listed("DaemonSet", multus("kube-multus-ds")),
    "/apis/sriovnetwork.openshift.io/v1/sriovnetworknodepolicies": listed("SriovNetworkNodePolicy"),
    CLASSES: listed("RuntimeClass", {"metadata": {"name": "nvidia"}}),
    "/apis/storage.k8s.io/v1/storageclasses": listed("StorageClass", STORAGE),
    "/apis/networking.k8s.io/v1/ingressclasses": listed("IngressClass"),
    NODES: listed("Node", KUBEADM),
    POLICIES: listed("ClusterPolicy", {"metadata": {"name": "cluster-policy"}, "status": {"state": "ready"}}),
    NICS: listed("NicClusterPolicy", {"metadata": {"name": "nic-cluster-policy"}}),
    SPACE: {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}},
}


class Existing(FakeApi):
    """A cluster with answers by path; the requests for the paths of ``refused`` are answered with this status."""

    def __init__(self, _place: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.options = {"kubeconfig": "/k", "context": "theirs", "namespace": "models"}
        self.refused: dict[str, int] = {}
        self.__dict__.update(ANSWERS)
        self.install(patch)

    def request(self, method: str, path: str, **options: Any) -> Response:
        errors = {path: kubernetes.client.ApiException(status=code, reason="No") for path, code in self.refused.items()}
        self.objects = {path: answer for path, answer in vars(self).items() if path.startswith("/")} | errors
        return super().request(method, path, **options)


OLD = {"metadata": {"name": "old", "annotations": {"storageclass.beta.kubernetes.io/is-default-class": "true"}}}
POLICY_SPECS: tuple[Json, ...] = ({"numVfs": 4}, {"numVfs": 4, "externallyManaged": True}, {"numVfs": 0}, {})
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
CLUSTERS: dict[str, list[Step]] = {
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


def member(namespace: str, name: str, instance: str = "") -> Json:
    labels = {"gb10.cluster/instance": instance} if instance else {}
    state = {"containerStatuses": [{"name": "main", "restartCount": int(name == "glm-0")}]}
    return {"metadata": {"namespace": namespace, "name": name, "labels": labels}, "status": state}


PODS = [
    member("models", "glm-0", "glm"),
    member("kube-system", "coredns"),
    member("nvidia-network-operator", "kube-multus-ds-x"),
    member("gpu-operator", "nvidia-device-plugin-daemonset-x"),
    member("shop", "database"),
]


class Supported(FakeApi):
    """A cluster whose user may list all pods, or only those of one namespace."""

    def __init__(self, _place: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(pods=PODS)
        self.options = {"kubeconfig": "/k", "context": "gb10", "namespace": "models"}
        self.install(patch)

    def request(self, method: str, path: str, **options: Any) -> Response:
        space = path.partition("/namespaces/")[2].split("/")[0]
        self.pods = [one for one in PODS if space in ("", one["metadata"]["namespace"])]
        self.events = [{"message": space}]
        query = dict(options.get("query_params", []))
        self.logs = {one["metadata"]["name"]: [f"log of {space}: {query}"] for one in PODS}
        return super().request(method, path, **options)


BUNDLES: dict[str, list[Step]] = {
    # The logs of Multus and of device plugins are found wherever an operator runs them.
    "all may be read": [{}],
    "rights in one namespace": [refused("nodes", "pods")],
    "an error is no missing right": [refused("nodes", "pods", status=500)],
}
test_each_step = steps_of(
    clock=True,
    node_wait=(node_wait, partial(Restarting, timeout=60), NODE_WAITS),
    node_room_waits=(node_room_info, Restarting, ROOM_WAITS),
    node_room_info=(node_room_info, api_of, ROOMS),
    pods_wait=(pods_wait, partial(api_of, namespace="kube-system", label_selector="a=b", timeout=20), POD_WAITS),
    existing_cluster_info=(existing_cluster_info, Existing, CLUSTERS),
    support_cluster_info=(support_cluster_info, Supported, BUNDLES),
)
