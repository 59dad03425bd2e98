# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that what a cluster of others lacks is named; of its parts, only what differs from a complete cluster."""

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.filter import serving
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.obstacles import Wanted, judge
from stored import compare, said, say_words

GPU_OF_EXISTING = {"nvidia.com/gpu": 1}
PLUGINS = "/var/lib/kubelet/device-plugins"


def daemon(name: str, *images: str, mounts: tuple[str, ...] = (), wanted: int = 2, ready: int = 2) -> dict[str, Any]:
    return {
        "namespace": "system",
        "name": name,
        "images": list(images),
        "directories": list(mounts),
        "wanted": wanted,
        "ready": ready,
    }


def cluster(**changes: Any) -> dict[str, Any]:
    """Return a complete kubeadm cluster, changed as asked."""
    room = {
        "trouble": "",
        "cordoned": False,
        "offers": {**GPU_OF_EXISTING, "rdma/hca": 63},
        "holders": [],
        "disk": "",
        "arch": "arm64",
    }
    return {
        "version": "v1.34.2",
        "distribution": "kubeadm",
        "groups": ["apps", "k8s.cni.cncf.io", "monitoring.coreos.com", "nvidia.com"],
        "nodes": [{"node": f"spark{n}", "host": f"spark{n}", **room} for n in (1, 2)],
        "daemon_sets": [
            daemon("kube-multus-ds", "multus:v4"),
            daemon("calico-node", "calico"),
            daemon(
                "rdma-shared-dp-ds", "nvcr.io/nvidia/mellanox/k8s-rdma-shared-dev-plugin", mounts=("/var/lib/kubelet/",)
            ),
        ],
        "runtime_classes": ["nvidia"],
        "storage_classes": [{"name": "fast", "default": True}, {"name": "slow", "default": False}],
        "ingress_classes": [],
        "cluster_policies": [{"name": "cluster-policy", "state": "ready"}],
        "nic_cluster_policies": [{"name": "nic-cluster-policy", "state": "notReady"}],
        "sriov_policies": [],
        "device_classes": [],
        "namespace": {"exists": True, "level": "privileged"},
        "unread": [],
    } | changes


def wanted(**changes: Any) -> Wanted:
    values: dict[str, Any] = {
        "namespace": "models",
        "rdma_mode": "ipc_lock",
        "nodes": ["spark1", "spark2"],
        "resources": {host: {**GPU_OF_EXISTING, "rdma/hca": 1} for host in ("spark1", "spark2")},
        "runtime_class": "nvidia",
        "cni": {"spark1": [], "spark2": []},
        "kubeconfig": "/k",
        "context": "c",
    }
    return Wanted(**(values | changes))


def test_everything_missing_is_named_at_once_and_only_errors_refuse() -> None:
    found = cluster(groups=[], runtime_classes=[], namespace={"exists": False, "level": ""})
    report = serving.existing_cluster(
        found, {"namespace": "models", "rdma_mode": "none", "nodes": [], "runtime_class": "nvidia"}
    )
    for words in (
        "no RuntimeClass of this name",
        "Ask the owner of the cluster for Multus",
        "run: kubectl create namespace models",
    ):
        assert words in str(report["findings"])
    remarks = serving.existing_cluster(
        cluster(daemon_sets=[]), {"namespace": "models", "rdma_mode": "none", "nodes": []}
    )
    assert "error" not in {one["severity"] for one in remarks["findings"]}


def nodes_with(**changes: Any) -> list[dict[str, Any]]:
    """Return three nodes; the second and the third are changed."""
    first, second = cluster()["nodes"]
    return [first, second | changes, second | {"node": "third", "host": "spark3"} | changes]


THREE = {"nodes": ["spark1", "spark2", "spark3"], "cni": {}}
THREE_ASK = THREE | {"resources": {f"spark{n}": {**GPU_OF_EXISTING, "rdma/hca": 64, "x": 1} for n in (2, 3)}}
# Names, images and mounts as in the manifests of these projects.
PARTS = [
    daemon("nvidia-device-plugin-daemonset", "nvcr.io/nvidia/k8s-device-plugin:v0.17.4", mounts=(PLUGINS,)),
    daemon("gpu-feature-discovery", "nvcr.io/nvidia/k8s-device-plugin:v0.17.4", mounts=("/sys",)),
    daemon(
        "nvidia-device-plugin-mps-control-daemon",
        "nvcr.io/nvidia/k8s-device-plugin:v0.17.4",
        mounts=("/run/nvidia/mps",),
    ),
    daemon("nvidia-container-toolkit-daemonset", "nvcr.io/nvidia/k8s/container-toolkit:v1.17.8", mounts=("/",)),
    daemon("kube-multus-ds", "nvcr.io/nvidia/mellanox/multus-cni:v25.7", mounts=("/etc/cni/net.d", "/opt/cni/bin")),
    daemon("sriov-device-plugin", "nvcr.io/nvidia/mellanox/sriov-network-device-plugin:v25.7", mounts=(PLUGINS,)),
    daemon("kube-sriov-cni-ds", "ghcr.io/k8snetworkplumbingwg/sriov-cni", mounts=("/opt/cni/bin",)),
    daemon(
        "sriov-network-config-daemon", "nvcr.io/nvidia/mellanox/sriov-network-operator-config-daemon", mounts=("/",)
    ),
    daemon("rke2-multus-rke2-whereabouts", "rancher/hardened-whereabouts", mounts=("/etc/cni/net.d",)),
    daemon("nvidia-gpu-device-plugin-large-cos", "gke.gcr.io/nvidia-gpu-device-plugin", mounts=(PLUGINS,)),
    daemon("multus", "quay.io/openshift-release-dev/ocp"),
    daemon("multus-additional-cni-plugins", "quay.io/x"),
    daemon("csi-driver", "example/csi", mounts=("/var/lib/kubelet",)),
]
TWICE = [
    *(daemon(name, "nvidia", mounts=("/x", f"{PLUGINS}/")) for name in ("b-gpu", "a-gpu")),
    *(
        daemon(name, mounts=("/etc", "/etc/cni/net.d", "/run/net.d"), ready=n)
        for name, n in (("multus-b", 0), ("multus-a", 2))
    ),
    *(daemon(name, mounts=(PLUGINS,), ready=n) for n, name in enumerate(("rdma-nvidia", "SRIOV-gpu"))),
]
TAINTS = [{"key": key, "value": value, "effect": "NoSchedule"} for key, value in (("a", ""), ("b", "c"))]
UNREAD = ["nodes", "daemon_sets", "runtime_classes", "storage_classes", "ingress_classes", "namespace"]
CLUSTERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "complete": ({}, {}),
    "K3s, not over SSH": ({"distribution": "K3s", "daemon_sets": []}, {"ssh": False}),
    "no kind": ({"distribution": ""}, {"ssh": False, "networks": False}),
    "no node": ({"nodes": [], "namespace": {"exists": False, "level": ""}}, THREE | {"rdma_mode": "restricted"}),
    "closed nodes": ({"nodes": nodes_with(trouble="t", disk="d", cordoned=True, taints=TAINTS)}, THREE),
    "tolerated": (
        {"nodes": nodes_with(taints=[{"key": "nvidia.com/gpu", "value": "", "effect": "NoSchedule"}])},
        THREE | {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]},
    ),
    "parts of these projects": ({"daemon_sets": PARTS}, {}),
    **{
        f"privileged, {offers}": (
            {"nodes": [n | {"offers": {**GPU_OF_EXISTING, **offers}} for n in nodes_with()]},
            {"rdma_mode": "privileged", "resources": dict.fromkeys(("spark1", "spark2"), GPU_OF_EXISTING)},
        )
        for offers in ({"example.com/rdma_shared": 1}, {"nvidia.com/hostdev": 4}, {"rdma/hca": 0})
    },
    "VFs of NVIDIA": ({"nodes": nodes_with(offers={"nvidia.com/hostdev": 4})}, THREE_ASK),
    "few devices": ({"nodes": nodes_with(offers={"rdma/hca": 63, "nvidia.com/gpu": 0})}, THREE_ASK),
    "other GPUs": ({"nodes": nodes_with(offers={"nvidia.com/mig-1g": 1, "rdma/hca": 64, "x": 1})}, THREE_ASK),
    "GPUs by claim": (
        {
            "nodes": nodes_with(offers={"rdma/hca": 64, "x": 1}),
            "device_classes": [{"name": "b", "resource": ""}, {"name": "a", "resource": ""}],
        },
        THREE_ASK,
    ),
    "devices by claim": (
        {
            "nodes": nodes_with(offers={"rdma/hca": 64}),
            "device_classes": [{"name": n, "resource": r} for n, r in (("b", "x"), ("a", "nvidia.com/gpu"))],
        },
        THREE_ASK,
    ),
    "no other parts": ({"groups": [], "runtime_classes": [], "daemon_sets": []}, {}),
    "other runtime classes": ({"runtime_classes": ["b", "a"], "unread": ["daemon_sets"]}, {}),
    "parts twice": ({"daemon_sets": TWICE}, {}),
    "parts of nothing": ({"daemon_sets": [one | {"wanted": 0, "ready": 0} for one in TWICE]}, {}),
    "policies": (
        {"sriov_policies": [{"name": name, "creates": name != "b"} for name in "cba"], "storage_classes": []},
        {},
    ),
    "policies of theirs": ({"sriov_policies": [{"name": "a", "creates": True}]}, {"theirs": True}),
    "operators twice": (
        {key: [{"name": n, "state": "ready"} for n in "ba"] for key in ("cluster_policies", "nic_cluster_policies")}
        | {"ingress_classes": ["b", "a"], "storage_classes": [{"name": n, "default": True} for n in "ba"]},
        {},
    ),
    "plugins": ({}, {"cni": {"spark1": [], "spark2": ["b", "a"], "spark3": ["c"]}}),
    **{
        f"level {level} for {mode}": ({"namespace": {"exists": True, "level": level}}, {"rdma_mode": mode})
        for level in ("", "privileged", "baseline", "restricted")
        for mode in ("privileged", "ipc_lock", "restricted", "none")
    },
    "OpenShift": ({"groups": ["k8s.cni.cncf.io", "security.openshift.io"]}, {"rdma_mode": "restricted"}),
    "OpenShift, ipc_lock": ({"groups": ["k8s.cni.cncf.io", "security.openshift.io"]}, {}),
    "OpenShift, restricted": (
        {
            "groups": ["k8s.cni.cncf.io", "security.openshift.io"],
            "namespace": {"exists": True, "level": "restricted"},
        },
        {"rdma_mode": "restricted"},
    ),
    "privileged without networks": ({}, {"rdma_mode": "privileged", "networks": False}),
    "two shared devices": (
        {"nodes": [n | {"offers": {"rdma/b": 1, "rdma/a": 2, "x/hca": 1}} for n in nodes_with()]},
        {"rdma_mode": "privileged", "resources": {}},
    ),
    "a shared device of one node": (
        {"nodes": nodes_with(offers={"rdma/a": 1})},
        {"rdma_mode": "privileged", "resources": {}},
    ),
    "nothing read": ({"unread": [*UNREAD]}, {"rdma_mode": "privileged"}),
    "nothing read, not over SSH": ({"unread": [*UNREAD], "nodes": []}, {"ssh": False, "rdma_mode": "privileged"}),
}


def test_reports_about_clusters_are_those_that_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    say_words(monkeypatch)
    found = {name: judge(cluster(**changes), wanted(**want)) for name, (changes, want) in CLUSTERS.items()}
    usual = [line for line in found["complete"][0] if line.startswith("used: ")]
    stored = {}
    for name, (lines, findings) in found.items():
        told = [line.removeprefix("used: ") for line in lines if name == "complete" or line not in usual]
        missing = [f"without {line.removeprefix('used: ')}" for line in usual if line not in lines]
        stored[name] = [*missing, *told, *said(findings)]
    compare("serving_clusters", stored)
