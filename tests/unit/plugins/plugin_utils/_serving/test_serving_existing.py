# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what an existing cluster is said to lack."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.filter import serving
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.existing import Wanted, judge

GPU = {"nvidia.com/gpu": 1}
CNI = ("host-device", "static")
TAINT = {"key": "nvidia.com/gpu", "value": "", "effect": "NoSchedule"}


PLUGINS = "/var/lib/kubelet/device-plugins"


def daemon(name: str, *images: str, mounts: tuple[str, ...] = (), wanted: int = 2, ready: int = 2) -> dict[str, Any]:
    return {
        "namespace": "system",
        "name": name,
        "images": list(images),
        "directories": list(mounts),
        "wanted": wanted,
        "ready": ready,
        "ours": False,
    }


def cluster(**changes: Any) -> dict[str, Any]:
    """Return a complete kubeadm cluster, changed as asked."""
    room = {
        "trouble": "",
        "cordoned": False,
        "offers": {**GPU, "rdma/hca": 63},
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
        "namespace": {"exists": True, "level": "privileged"},
        "unread": [],
    } | changes


def wanted(**changes: Any) -> Wanted:
    values: dict[str, Any] = {
        "namespace": "models",
        "rdma_mode": "ipc_lock",
        "nodes": ["spark1", "spark2"],
        "resources": {host: {**GPU, "rdma/hca": 1} for host in ("spark1", "spark2")},
        "runtime_class": "nvidia",
        "cni": {"spark1": [], "spark2": []},
    }
    return Wanted(**(values | changes))


def rules(found: dict[str, Any], want: Wanted | None = None) -> list[str]:
    return [finding.rule.removeprefix("existing.") for finding in judge(found, want or wanted()).findings]


def test_a_complete_cluster_lacks_nothing_and_its_parts_are_named() -> None:
    report = judge(cluster(), wanted())
    assert (report.findings, report.unknown) == ([], [])
    assert report.used == [
        "Kubernetes v1.34.2 (kubeadm) with 2 nodes",
        "GPUs: NVIDIA's GPU operator, ClusterPolicy cluster-policy is ready",
        "Multus: DaemonSet system/kube-multus-ds, 2 of 2 pods ready",
        "RDMA devices: DaemonSet system/rdma-shared-dp-ds, 2 of 2 pods ready",
        "Network: NVIDIA's network operator, NicClusterPolicy nic-cluster-policy is notReady",
        "Default StorageClass: fast",
        "Ingress classes: none",
        "Prometheus operator: yes",
    ]


@pytest.mark.parametrize(
    ("changes", "want", "missing"),
    [
        ({"nodes": cluster()["nodes"][:1]}, {}, ["node.absent"]),
        ({"nodes": [n | {"trouble": "no CNI"} for n in cluster()["nodes"]]}, {}, ["serving.node.not_ready"] * 2),
        ({"nodes": [n | {"cordoned": True} for n in cluster()["nodes"]]}, {}, ["serving.node.cordoned"] * 2),
        ({"nodes": [n | {"taints": [TAINT]} for n in cluster()["nodes"]]}, {}, ["serving.node.tainted"] * 2),
        (
            {"nodes": [n | {"taints": [TAINT]} for n in cluster()["nodes"]]},
            {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]},
            [],
        ),
        ({"nodes": [n | {"offers": GPU} for n in cluster()["nodes"]]}, {}, ["resource.missing"] * 2),
        ({"runtime_classes": ["runc"]}, {}, ["runtime.missing"]),
        ({"runtime_classes": []}, {"runtime_class": ""}, []),
        ({"groups": ["apps"]}, {}, ["multus.missing"]),
        ({"groups": ["apps"]}, {"networks": False}, []),
        ({"daemon_sets": [daemon("calico-node")]}, {}, ["multus.stopped"]),
        ({"daemon_sets": [daemon("kube-multus-ds", ready=0), daemon("anetd", "cilium")]}, {}, ["multus.stopped"]),
        ({"daemon_sets": [daemon("kube-multus-ds")]}, {}, ["policies.unknown"]),
        ({"sriov_policies": [{"name": "theirs", "creates": True}]}, {}, ["sriov.managed"]),
        ({"sriov_policies": [{"name": "theirs", "creates": False}]}, {}, []),
        ({"groups": ["k8s.cni.cncf.io", "security.openshift.io"]}, {}, ["namespace.openshift"]),
        ({}, {"cni": {"spark1": ["static"], "spark2": []}}, ["cni.missing"]),
        ({"namespace": {"exists": False, "level": ""}}, {}, ["namespace.missing"]),
        ({"namespace": {"exists": True, "level": "restricted"}}, {}, ["namespace.level"]),
        ({"namespace": {"exists": True, "level": "restricted"}}, {"rdma_mode": "restricted"}, []),
        ({"namespace": {"exists": True, "level": "baseline"}}, {"rdma_mode": "none"}, []),
        ({"namespace": {"exists": True, "level": ""}}, {}, []),
    ],
)
def test_what_is_missing_is_named(changes: dict[str, Any], want: dict[str, Any], missing: list[str]) -> None:
    assert rules(cluster(**changes), wanted(**want)) == missing


def test_everything_missing_is_named_at_once_and_only_errors_refuse() -> None:
    found = cluster(groups=[], runtime_classes=[], namespace={"exists": False, "level": ""})
    report = serving.existing_cluster(
        found, {"namespace": "models", "rdma_mode": "none", "nodes": [], "runtime_class": "nvidia"}
    )
    assert report["ok"] is False
    for words in (
        "no RuntimeClass of this name",
        "Ask the owner of the cluster for Multus",
        "kubectl create namespace models",
    ):
        assert words in report["text"]
    remarks = cluster(daemon_sets=[])
    assert serving.existing_cluster(remarks, {"namespace": "models", "rdma_mode": "none", "nodes": []})["ok"] is True


def test_what_may_not_be_read_is_said_and_not_judged() -> None:
    secret = ["nodes", "daemon_sets", "runtime_classes", "storage_classes", "ingress_classes", "namespace"]
    policies = ["cluster_policies", "nic_cluster_policies", "sriov_policies"]
    secret += policies
    found = cluster(
        nodes=[], daemon_sets=[], runtime_classes=[], namespace={"exists": False, "level": ""}, unread=secret
    )
    found |= {key: [] for key in policies}
    report = judge(found, wanted())
    assert report.findings == []
    assert report.used == ["Kubernetes v1.34.2 (kubeadm)", "Prometheus operator: yes"]
    assert len(report.unknown) == len(secret)
    assert "The kubeconfig may not read runtime classes, so they were not checked." in report.unknown


def test_the_directory_of_multus_is_named() -> None:
    multus = daemon("kube-multus-ds", "multus:v4") | {"directories": ["/etc/cni/net.d", "/opt/cni/bin"]}
    said = judge(cluster(daemon_sets=[multus]), wanted()).used
    assert "Multus: DaemonSet system/kube-multus-ds, 2 of 2 pods ready, CNI configuration in /etc/cni/net.d" in said


# Names, images and mounts as in the manifests of these projects.
OPERATOR = [
    daemon("nvidia-device-plugin-daemonset", "nvcr.io/nvidia/k8s-device-plugin:v0.17.4", mounts=(PLUGINS,)),
    daemon("gpu-feature-discovery", "nvcr.io/nvidia/k8s-device-plugin:v0.17.4", mounts=("/sys",)),
    daemon(
        "nvidia-device-plugin-mps-control-daemon",
        "nvcr.io/nvidia/k8s-device-plugin:v0.17.4",
        mounts=("/run/nvidia/mps",),
    ),
    daemon("nvidia-container-toolkit-daemonset", "nvcr.io/nvidia/k8s/container-toolkit:v1.17.8", mounts=("/",)),
]
NETWORK = [
    daemon("kube-multus-ds", "nvcr.io/nvidia/mellanox/multus-cni:v25.7", mounts=("/etc/cni/net.d", "/opt/cni/bin")),
    daemon("sriov-device-plugin", "nvcr.io/nvidia/mellanox/sriov-network-device-plugin:v25.7", mounts=(PLUGINS,)),
    daemon("kube-sriov-cni-ds", "ghcr.io/k8snetworkplumbingwg/sriov-cni", mounts=("/opt/cni/bin",)),
    daemon(
        "sriov-network-config-daemon", "nvcr.io/nvidia/mellanox/sriov-network-operator-config-daemon", mounts=("/",)
    ),
    daemon("rke2-multus-rke2-whereabouts", "rancher/hardened-whereabouts", mounts=("/etc/cni/net.d",)),
    daemon("csi-driver", "example/csi", mounts=("/var/lib/kubelet",)),
]


def named(sets: list[dict[str, Any]]) -> list[str]:
    lines = judge(cluster(daemon_sets=sets), wanted()).used
    return [line.partition(",")[0].replace("DaemonSet system/", "") for line in lines if ": DaemonSet " in line]


@pytest.mark.parametrize(
    ("sets", "names"),
    [
        (OPERATOR, ["GPUs: nvidia-device-plugin-daemonset"]),
        (NETWORK, ["Multus: kube-multus-ds", "RDMA devices: sriov-device-plugin"]),
        (
            [daemon("nvidia-gpu-device-plugin-large-cos", "gke.gcr.io/nvidia-gpu-device-plugin", mounts=(PLUGINS,))],
            ["GPUs: nvidia-gpu-device-plugin-large-cos"],
        ),
        (
            [
                daemon("multus", "quay.io/openshift-release-dev/ocp"),
                daemon("multus-additional-cni-plugins", "quay.io/x"),
            ],
            ["Multus: multus"],
        ),
    ],
)
def test_daemon_sets_are_named_by_what_they_do(sets: list[dict[str, Any]], names: list[str]) -> None:
    assert named(sets) == names


def test_two_plugins_for_gpus_and_two_multus_are_named_if_they_have_pods() -> None:
    second = daemon("nvdp-nvidia-device-plugin", "nvcr.io/nvidia/k8s-device-plugin", mounts=(PLUGINS,))
    found = cluster(daemon_sets=[*OPERATOR, second, *NETWORK, daemon("multus", "multus"), daemon("calico-node")])
    said = [f for f in judge(found, wanted()).findings if f.rule == "existing.part.twice"]
    assert [f.key for f in said] == ["GPUs", "Multus"]
    assert "system/nvdp-nvidia-device-plugin and system/nvidia-device-plugin-daemonset do the same" in said[0].reason
    assert rules(cluster(daemon_sets=[*OPERATOR, second | {"wanted": 0}, *NETWORK, daemon("calico-node")])) == []


def test_gpus_under_other_names_are_no_reason_to_ask_for_a_device_plugin() -> None:
    shared = [n | {"offers": {"nvidia.com/gpu.shared": 4, "rdma/hca": 63}} for n in cluster()["nodes"]]
    findings = judge(cluster(nodes=shared), wanted()).findings
    assert {f.key for f in findings} == {"nvidia.com/gpu"}
    assert all("Set serving_plan_gpu_resource" in f.remedy for f in findings)
    # The network operator's SR-IOV device plugin has this prefix too.
    vfs = [n | {"offers": {"nvidia.com/hostdev": 4, "rdma/hca": 63}} for n in cluster()["nodes"]]
    assert all("NVIDIA's GPU operator" in f.remedy for f in judge(cluster(nodes=vfs), wanted()).findings)


@pytest.mark.parametrize(("mode", "context"), [("restricted", "nonroot-v2"), ("ipc_lock", "privileged")])
def test_openshift_s_own_admission_is_named_with_its_command(mode: str, context: str) -> None:
    found = cluster(groups=["k8s.cni.cncf.io", "security.openshift.io"])
    (finding,) = judge(found, wanted(rdma_mode=mode)).findings
    assert f"oc adm policy add-scc-to-group {context} system:serviceaccounts:models" in finding.remedy
