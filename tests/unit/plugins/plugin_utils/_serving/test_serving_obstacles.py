# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that everything that prevents pods from starting is reported per rank before anything changes."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.filter import serving
from ansible_collections.gb10.cluster.plugins.module_utils._common import plain
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import FALLBACK, INSTANCE, VF_INDEX
from ansible_collections.gb10.cluster.plugins.module_utils._kube.node_room import Room, rooms
from ansible_collections.gb10.cluster.plugins.module_utils._kube.objects import HOSTNAME
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving import obstacles as preflight
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.manifests import render
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.model import Load
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.obstacles import Wanted, judge
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.pods import PodOptions
from cluster_samples import GPU, node, pod
from serving_samples import plan

NADS = [{"metadata": {"name": f"gb10-rail{rail}-vf{vf}"}} for rail in (0, 1) for vf in (0, 1)]
NODES = [node(f"spark{number}") for number in range(1, 5)]


def obstacles(
    nodes: list[dict[str, Any]] | None = None,
    pods: list[dict[str, Any]] | None = None,
    nads: list[dict[str, Any]] | None = None,
    tolerations: Sequence[dict[str, str]] = (),
    **changes: Any,
) -> list[Finding]:
    """Return the obstacles for a group of four on these nodes with these pods."""
    found = [plain.load(Room, asdict(room)) for room in rooms(NODES if nodes is None else nodes, pods or [])]
    return preflight.obstacles(plan(**changes), NADS if nads is None else nads, found, (), tolerations)


def test_a_free_cluster_is_no_obstacle() -> None:
    assert obstacles() == []


def test_a_missing_attachment_names_rank_and_remedy() -> None:
    findings = obstacles(nads=NADS[:3], vf_index=1)
    assert [f.where for f in findings] == [f"rank {n} on spark{n + 1}" for n in range(4)]
    assert {(f.rule, f.key) for f in findings} == {("serving.nad.missing", "gb10-rail1-vf1")}


def test_a_network_of_others_is_named_if_it_is_missing_or_needs_a_resource() -> None:
    there = {"metadata": {"name": "rail0", "namespace": "rdma", "annotations": {}}}
    asked = {"networks": ({"name": "rail0", "namespace": "rdma", "resource": ""},)}
    assert obstacles(nads=[there], **asked) == []
    (finding, *_others) = obstacles(nads=NADS, **asked)
    assert "namespace rdma has no NetworkAttachmentDefinition of this name, which gb10_networks gives" in finding.reason
    there["metadata"]["annotations"] = {"k8s.v1.cni.cncf.io/resourceName": "nvidia.com/rail0"}
    found = {str(one.rule): one.remedy for one in obstacles(nads=[there], **asked)}
    assert found == {"serving.nad.resource": "Add resource: nvidia.com/rail0 to this network in gb10_networks"}
    asked["networks"][0]["resource"] = "nvidia.com/rail0"
    offers = [node(f"spark{number}", offers={GPU: "1", "nvidia.com/rail0": "1"}) for number in range(1, 5)]
    assert obstacles(offers, nads=[there], **asked) == []


def test_a_gpu_that_another_group_holds_names_the_pod_and_how_to_stop_it() -> None:
    (finding,) = obstacles(pods=[pod("spark3", "glm-4-7")])
    assert (finding.rule, finding.key, finding.where) == ("serving.node.full", GPU, "rank 2 on spark3")
    assert "pod gb10-serving/pod-on-spark3 holds 1" in finding.reason
    assert "serve_stop.yml -e instance=glm-4-7)" in finding.remedy
    (finding,) = obstacles(pods=[pod("spark3", "glm-4-7", namespace="theirs")])
    assert "serve_stop.yml -e instance=glm-4-7 -e gb10_namespace=theirs)" in finding.remedy


def test_a_gpu_that_a_stranger_holds_is_not_ours_to_stop() -> None:
    (finding,) = obstacles(pods=[pod("spark1", namespace="notebooks")])
    assert "notebooks/pod-on-spark1" in finding.reason
    assert finding.remedy.startswith("Delete what made these pods, such as a Deployment or Job")


def test_the_group_s_own_pods_make_room_for_their_successors() -> None:
    assert obstacles(pods=[pod(f"spark{number}", "gemma-4-31b-it") for number in range(1, 5)]) == []


def test_the_same_instance_elsewhere_is_another_group() -> None:
    assert len(obstacles(pods=[pod("spark1", "gemma-4-31b-it", namespace="staging")])) == 1


def test_shared_gpus_have_room_for_two() -> None:
    shared = [node(f"spark{number}", offers={GPU: "2"}) for number in range(1, 5)]
    assert obstacles(shared, [pod("spark1", "one")]) == []
    assert len(obstacles(shared, [pod("spark1", "one"), pod("spark1", "two")])) == 1


def test_a_missing_resource_is_reported_with_the_playbook_that_installs_it() -> None:
    (finding,) = obstacles([*NODES[:3], node("spark4", offers={GPU: "0"})])
    assert finding.where == "rank 3 on spark4"
    assert "offers 0 and" in finding.reason
    assert "device plugins" in finding.remedy


def test_rdma_devices_are_looked_for_as_gpus_are() -> None:
    restricted = {"rdma_mode": "restricted", "rdma_resources": ("rdma/gb10",)}
    assert {(f.rule, f.key) for f in obstacles(**restricted)} == {("serving.node.full", "rdma/gb10")}
    offering = [node(f"spark{number}", offers={"rdma/gb10": "1k"}) for number in range(1, 5)]
    assert obstacles(offering, **restricted) == []


def test_a_full_disk_is_named_with_the_remedy() -> None:
    full = node("spark2")
    full["status"]["conditions"].append(
        {"type": "DiskPressure", "status": "True", "message": "kubelet has disk pressure"}
    )
    (finding,) = obstacles([node("spark1"), full, node("spark3"), node("spark4")])
    assert (finding.where, finding.rule) == ("rank 1 on spark2", "serving.node.disk")
    assert "kubelet has disk pressure" in finding.reason
    assert "Free space" in finding.remedy


def test_all_obstacles_are_reported_at_once() -> None:
    nodes = [node("spark1", ready="Unknown"), node("spark2", cordoned=True), node("spark3")]
    findings = obstacles(nodes, [pod("spark3", "one")])
    assert [(f.where, f.rule) for f in findings] == [
        ("rank 0 on spark1", "serving.node.not_ready"),
        ("rank 1 on spark2", "serving.node.cordoned"),
        ("rank 2 on spark3", "serving.node.full"),
        ("rank 3 on spark4", "serving.node.absent"),
    ]
    assert "kubelet stopped posting" in findings[0].reason
    assert "kubectl uncordon spark2" in findings[1].remedy
    assert "serving_plan_nodes" in findings[3].remedy


def test_a_taint_is_an_obstacle_unless_the_pods_tolerate_it() -> None:
    tainted = node("spark4")
    tainted["spec"] = {"taints": [{"key": GPU, "value": "present", "effect": "NoSchedule"}]}
    (finding,) = obstacles([*NODES[:3], tainted])
    assert (finding.rule, finding.where) == ("serving.node.tainted", "rank 3 on spark4")
    assert "nvidia.com/gpu=present:NoSchedule" in finding.reason
    assert "sglang_tolerations: [{key: nvidia.com/gpu, operator: Exists}]" in finding.remedy
    assert obstacles([*NODES[:3], tainted], tolerations=[{"key": GPU, "operator": "Exists"}]) == []


def test_a_rank_that_requests_more_than_the_node_has_left_is_named_and_can_request_less() -> None:
    def found(**options: Any) -> list[Finding]:
        nodes = [node(f"spark{number}", offers={"memory": "96Gi", "cpu": "3500m"}) for number in range(1, 5)]
        other = {"name": "x", "resources": {"requests": {"memory": "4Gi"}}}
        known = rooms(nodes, [pod("spark4", containers=[other])])
        of = plan({"load": Load(80, 0.85, 103, 109.2)})
        return preflight.obstacles(of, NADS, known, **options)

    cpu, memory = (one for one in found() if one.rule == "serving.node.requests")
    assert ("mem_fraction_static" in cpu.remedy, "mem_fraction_static" in memory.remedy) == (False, True)
    assert (cpu.where, cpu.reason.split(", ")[0]) == ("rank 0 on spark1", "the rank requests 4 CPUs")
    assert memory.where == "rank 3 on spark4"
    assert memory.reason.startswith("the rank requests 93 GiB of memory, and")
    assert memory.reason.endswith("leave 92.0 of the node")
    assert found(computed=False) == found(resources={"requests": {"cpu": 1, "memory": "8Gi"}}) == []


def accounts(*instances: str) -> list[dict[str, Any]]:
    """Return the ServiceAccounts of groups, and one that belongs to no group."""
    found = [
        {"metadata": {"name": name, "labels": {INSTANCE: instance}}}
        for instance in instances
        for name in (instance, f"{instance}-supervisor")
    ]
    return [{"metadata": {"name": "default"}}, *found]


def test_an_existing_group_is_found() -> None:
    assert preflight.unknown_group(accounts("glm-4-7", "two"), "glm-4-7", "ns") == []


@pytest.mark.parametrize(
    ("there", "asked", "said"),
    [
        (("two", "one"), "glm-4.7", "'glm-4.7': there is no such group; the groups in namespace ns are: one, two"),
        ((), "one", "instance = 'one': there is no such group; the groups in namespace ns are: none. Name"),
        (("one",), "", "instance: no group is named; the groups in namespace ns are: one. Add -e instance=NAME"),
    ],
)
def test_a_missing_group_is_refused_with_the_existing_ones(there: tuple[str, ...], asked: str, said: str) -> None:
    (found,) = preflight.unknown_group(accounts(*there), asked, "ns")
    assert said in str(found)


def test_the_first_object_of_a_group_is_the_account_by_which_it_is_found() -> None:
    objects = render(plan(), PodOptions(), {}, {})
    assert objects[0]["kind"] == "ServiceAccount"
    assert preflight.unknown_group(objects[:1], "gemma-4-31b-it", "gb10-serving") == []


def rank(revision: str, **labels: str) -> dict[str, Any]:
    template = {"metadata": {"annotations": {"gb10.cluster/revision": revision}}}
    return {"kind": "StatefulSet", "metadata": {"name": "g-0", "labels": labels}, "spec": {"template": template}}


@pytest.mark.parametrize(
    ("objects", "revisions", "named"),
    [
        ([rank("a")], ["a", "a"], ""),
        ([rank("a")], ["a", "b"], "g-1 has b)"),
        ([rank("a")], ["", "b"], "g-0 has none, g-1 has b)"),
        (
            [rank("a"), rank("b", **{FALLBACK: "f1"})],
            ["b"],
            "g-0 has b)",
        ),
        ([{"kind": "Service", "metadata": {}}, rank("a")], ["a"], ""),
    ],
    ids=["same", "one other", "all other", "the fallback's", "other kinds"],
)
def test_a_run_fails_if_another_one_has_replaced_what_it_applied(
    objects: list[dict[str, Any]], revisions: list[str], named: str
) -> None:
    """Two runs at once both ended well, and one of their configurations ran."""
    ranks = [{"pod": f"g-{number}", "revision": revision} for number, revision in enumerate(revisions)]
    found = preflight.replaced(objects, ranks, "g")
    assert [(one.rule, one.value) for one in found] == ([("serving.group.replaced", "g")] if named else [])
    assert all("applied revision a, " in str(one) and named in str(one) for one in found)


@pytest.mark.parametrize(
    ("changes", "node", "refused"),
    [
        ({}, "spark2", True),
        ({"vf_index": 1}, "spark2", False),
        ({}, "spark9", False),
        ({"instance": "other"}, "spark2", False),
    ],
    ids=["taken", "another index", "another node", "its own"],
)
def test_a_vf_that_another_run_has_taken_since_the_plan_is_refused(
    changes: dict[str, Any], node: str, refused: bool
) -> None:
    """Both runs had planned with the VFs that were free then."""
    spec = {"metadata": {"annotations": {VF_INDEX: "0"}}, "spec": {"nodeSelector": {HOSTNAME: node}}}
    other = {"metadata": {"labels": {INSTANCE: "other"}}, "spec": {"template": spec}}
    said = str(serving.serving_taken(plan(**changes).as_dict(), [other]))
    assert ("spark2" in said and "serve_stop.yml -e instance=other" in said) is refused
    assert (said != "[]") is refused


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
