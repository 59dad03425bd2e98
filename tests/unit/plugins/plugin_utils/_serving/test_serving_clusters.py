# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that what a cluster of others lacks is named with a remedy for its owner."""

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.filter import serving
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.obstacles import Wanted, judge
from stored import compare, said, say_words

GPU_OF_EXISTING = {"nvidia.com/gpu": 1}
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
        ({"nodes": [n | {"offers": GPU_OF_EXISTING} for n in cluster()["nodes"]]}, {}, ["resource.missing"] * 2),
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
    for words in (
        "no RuntimeClass of this name",
        "Ask the owner of the cluster for Multus",
        "kubectl create namespace models",
    ):
        assert words in str(report["findings"])
    remarks = serving.existing_cluster(
        cluster(daemon_sets=[]), {"namespace": "models", "rdma_mode": "none", "nodes": []}
    )
    assert "error" not in {one["severity"] for one in remarks["findings"]}


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


CLAIMS = [{"name": "gpu.nvidia.com", "resource": ""}, {"name": "vf", "resource": ""}]


def test_a_cluster_that_has_only_claims_is_told_what_is_missing() -> None:
    bare = [n | {"offers": {"rdma/hca": 63}} for n in cluster()["nodes"]]
    said = judge(cluster(nodes=bare, device_classes=CLAIMS), wanted()).findings
    assert [f.rule for f in said] == ["existing.resource.missing"] * 2
    assert "only by ResourceClaims (DeviceClasses gpu.nvidia.com, vf)" in said[0].reason
    assert "a DeviceClass with extendedResourceName nvidia.com/gpu" in said[0].remedy
    offered = [{"name": "gpu.nvidia.com", "resource": "nvidia.com/gpu"}]
    assert rules(cluster(nodes=bare, device_classes=offered)) == []


@pytest.mark.parametrize(
    ("offers", "rule", "words"),
    [
        ({"rdma/hca": 63}, "mode.stricter", "set gb10_rdma_resource to it, and gb10_rdma_mode to restricted"),
        ({"example.com/rdma_shared": 1}, "mode.stricter", "The nodes offer example.com/rdma_shared"),
        ({"nvidia.com/hostdev": 4}, "mode.privileged", "ask the owner"),
        ({"rdma/hca": 0}, "mode.privileged", "a shared RDMA device plugin"),
    ],
)
def test_the_strictest_mode_that_the_devices_allow_is_proposed(offers: dict[str, int], rule: str, words: str) -> None:
    nodes = [n | {"offers": {**GPU_OF_EXISTING, **offers}} for n in cluster()["nodes"]]
    want = wanted(rdma_mode="privileged", resources=dict.fromkeys(("spark1", "spark2"), GPU_OF_EXISTING))
    (finding,) = judge(cluster(nodes=nodes), want).findings
    assert (finding.rule, finding.severity) == (f"existing.{rule}", "info")
    assert words.lower() in finding.remedy.lower()
    assert "must not set securityContext.privileged=true" in finding.reason


def nodes_with(**changes: Any) -> list[dict[str, Any]]:
    """Return three nodes; the second and the third are changed."""
    first, second = cluster()["nodes"]
    return [first, second | changes, second | {"node": "third", "host": "spark3"} | changes]


THREE = {"nodes": ["spark1", "spark2", "spark3"], "cni": {}}
THREE_ASK = THREE | {"resources": {f"spark{n}": {**GPU_OF_EXISTING, "rdma/hca": 64, "x": 1} for n in (2, 3)}}
TWICE = [
    *(daemon(name, "nvidia", mounts=("/x", f"{PLUGINS}/")) for name in ("b-gpu", "a-gpu")),
    *(daemon(name, mounts=("/etc", "/etc/cni/net.d", "/run/net.d")) for name in ("multus-b", "multus-a")),
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
    compare("serving_clusters", {name: [*r.used, *r.unknown, *said(r.findings)] for name, r in found.items()})
