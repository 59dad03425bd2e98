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


def daemon(name: str, *images: str) -> dict[str, Any]:
    return {
        "namespace": "system",
        "name": name,
        "images": list(images),
        "directories": [],
        "wanted": 2,
        "ready": 2,
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
            daemon("rdma-shared-dp-ds", "rdma"),
        ],
        "runtime_classes": ["nvidia"],
        "storage_classes": [{"name": "fast", "default": True}, {"name": "slow", "default": False}],
        "ingress_classes": [],
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
        "GPUs: NVIDIA's GPU operator",
        "Multus: DaemonSet system/kube-multus-ds, 2 of 2 pods ready",
        "RDMA devices: DaemonSet system/rdma-shared-dp-ds, 2 of 2 pods ready",
        "Default StorageClass: fast",
        "Ingress classes: none",
        "Prometheus operator: yes",
    ]


@pytest.mark.parametrize(
    ("changes", "want", "missing"),
    [
        ({"nodes": cluster()["nodes"][:1]}, {}, ["node.absent"]),
        ({"nodes": [n | {"trouble": "no CNI"} for n in cluster()["nodes"]]}, {}, ["node.not-ready"] * 2),
        ({"nodes": [n | {"offers": GPU} for n in cluster()["nodes"]]}, {}, ["resource.missing"] * 2),
        ({"runtime_classes": ["runc"]}, {}, ["runtime.missing"]),
        ({"runtime_classes": []}, {"runtime_class": ""}, []),
        ({"groups": ["apps"]}, {}, ["multus.missing"]),
        ({"groups": ["apps"]}, {"networks": False}, []),
        ({"daemon_sets": [daemon("calico-node")]}, {}, ["multus.stopped"]),
        ({"daemon_sets": [daemon("kube-multus-ds")]}, {}, ["policies.unknown"]),
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
    found = cluster(
        nodes=[], daemon_sets=[], runtime_classes=[], namespace={"exists": False, "level": ""}, unread=secret
    )
    report = judge(found, wanted())
    assert report.findings == []
    assert report.used == ["Kubernetes v1.34.2 (kubeadm)", "GPUs: NVIDIA's GPU operator", "Prometheus operator: yes"]
    assert len(report.unknown) == len(secret)
    assert "The kubeconfig may not read runtime classes, so they were not checked." in report.unknown


def test_the_directory_of_multus_is_named() -> None:
    multus = daemon("kube-multus-ds", "multus:v4") | {"directories": ["/etc/cni/net.d", "/opt/cni/bin"]}
    said = judge(cluster(daemon_sets=[multus]), wanted()).used
    assert "Multus: DaemonSet system/kube-multus-ds, 2 of 2 pods ready, CNI configuration in /etc/cni/net.d" in said
