# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What keeps a group's pods from starting is told before anything is changed, rank by rank."""

from __future__ import annotations

from typing import Any

import pytest
from module_utils import _serving_preflight as preflight
from module_utils._findings import Finding
from module_utils._serving_manifests import INSTANCE
from module_utils._serving_plan import build
from serving_samples import fabric, profile, settings

GPU = "nvidia.com/gpu"
NADS = [{"metadata": {"name": f"gb10-rail{rail}-vf{vf}"}} for rail in (0, 1) for vf in (0, 1)]


def node(
    name: str, ready: str = "True", cordoned: bool = False, offers: dict[str, str] | None = None
) -> dict[str, Any]:
    """Return a node as the API shows it, with one GPU unless ``offers`` says otherwise."""
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {"unschedulable": True} if cordoned else {},
        "status": {
            "allocatable": {"cpu": "20", GPU: "1", **(offers or {})},
            "conditions": [{"type": "Ready", "status": ready, "message": "kubelet stopped posting"}],
        },
    }


def pod(on: str, instance: str = "", namespace: str = "gb10-serving", **changes: Any) -> dict[str, Any]:
    """Return a pod that holds a GPU of a node; ``changes`` go into its spec."""
    container = {"name": "sglang", "resources": {"limits": {GPU: "1"}}}
    return {
        "metadata": {
            "name": f"pod-on-{on}",
            "namespace": namespace,
            "labels": {INSTANCE: instance} if instance else {},
        },
        "spec": {"nodeName": on, "containers": [container, {"name": "beside"}], **changes},
        "status": {"phase": "Running"},
    }


NODES = [node(f"spark{number}") for number in range(1, 5)]


def plan(**changes: Any) -> dict[str, Any]:
    """Return the plan of a group on all four nodes."""
    return build(fabric(), profile(), settings(**changes))


def obstacles(
    nodes: list[dict[str, Any]] | None = None, pods: list[dict[str, Any]] | None = None, **changes: Any
) -> list[Finding]:
    """Return what keeps the group from starting among these nodes and pods."""
    return preflight.obstacles(plan(**changes), NADS, NODES if nodes is None else nodes, pods or [])


def test_a_free_cluster_is_no_obstacle() -> None:
    assert obstacles() == []


def test_a_missing_attachment_names_rank_and_remedy() -> None:
    findings = preflight.obstacles(plan(vf_index=1), NADS[:3], NODES, [])
    assert [f.where for f in findings] == [f"rank {n} on spark{n + 1}" for n in range(4)]
    assert {(f.rule, f.key) for f in findings} == {("serving.nad.missing", "gb10-rail1-vf1")}


def test_a_gpu_that_another_group_holds_names_the_pod_and_how_to_stop_it() -> None:
    (finding,) = obstacles(pods=[pod("spark3", "glm-4-7")])
    assert (finding.rule, finding.key, finding.where) == ("serving.node.full", GPU, "rank 2 on spark3")
    assert "pod gb10-serving/pod-on-spark3 holds 1" in finding.reason
    assert "serve_stop.yml -e instance=glm-4-7" in finding.remedy


def test_a_gpu_that_a_stranger_holds_is_not_ours_to_stop() -> None:
    (finding,) = obstacles(pods=[pod("spark1", namespace="notebooks")])
    assert "notebooks/pod-on-spark1" in finding.reason
    assert "serve_stop" not in finding.remedy


def test_the_group_s_own_pods_make_room_for_their_successors() -> None:
    assert obstacles(pods=[pod(f"spark{number}", "gemma-4-31b-it") for number in range(1, 5)]) == []


def test_the_same_instance_elsewhere_is_another_group() -> None:
    assert len(obstacles(pods=[pod("spark1", "gemma-4-31b-it", namespace="staging")])) == 1


@pytest.mark.parametrize(
    ("metadata", "status"),
    [({}, {"phase": "Succeeded"}), ({}, {"phase": "Failed"}), ({"deletionTimestamp": "2026-11-22T00:00:00Z"}, {})],
    ids=["ended", "failed", "leaving"],
)
def test_pods_that_end_hold_nothing(metadata: dict[str, str], status: dict[str, str]) -> None:
    gone = pod("spark1", "glm-4-7")
    gone["metadata"] |= metadata
    gone["status"] |= status
    assert obstacles(pods=[gone]) == []


def test_a_pod_without_a_node_holds_nothing() -> None:
    pending = pod("spark1", "glm-4-7")
    del pending["spec"]["nodeName"]
    assert obstacles(pods=[pending]) == []


def test_shared_gpus_have_room_for_two() -> None:
    shared = [node(f"spark{number}", offers={GPU: "2"}) for number in range(1, 5)]
    assert obstacles(shared, [pod("spark1", "one")]) == []
    assert len(obstacles(shared, [pod("spark1", "one"), pod("spark1", "two")])) == 1


def test_what_an_init_container_takes_counts_too() -> None:
    init = {"name": "stage", "resources": {"limits": {GPU: "1"}}}
    assert len(obstacles(pods=[pod("spark1", "one", containers=[{"name": "main"}], initContainers=[init])])) == 1


def test_a_node_that_offers_none_is_told_which_playbook_brings_it() -> None:
    bare = [*NODES[:3], {**node("spark4"), "status": {"conditions": [{"type": "Ready", "status": "True"}]}}]
    (finding,) = obstacles(bare)
    assert finding.where == "rank 3 on spark4"
    assert "offers 0 of it" in finding.reason
    assert "device plugins" in finding.remedy


def test_rdma_devices_are_looked_for_as_gpus_are() -> None:
    findings = obstacles(rdma_mode="restricted", rdma_resources=("rdma/hca_gb10",))
    assert {(f.rule, f.key) for f in findings} == {("serving.node.full", "rdma/hca_gb10")}
    offering = [node(f"spark{number}", offers={"rdma/hca_gb10": "63"}) for number in range(1, 5)]
    assert obstacles(offering, rdma_mode="restricted", rdma_resources=("rdma/hca_gb10",)) == []


def test_all_that_is_wrong_is_told_at_once() -> None:
    nodes = [node("spark1", ready="Unknown"), node("spark2", cordoned=True), node("spark3")]
    findings = obstacles(nodes, [pod("spark3", "one")])
    assert [(f.where, f.rule) for f in findings] == [
        ("rank 0 on spark1", "serving.node.not-ready"),
        ("rank 1 on spark2", "serving.node.cordoned"),
        ("rank 2 on spark3", "serving.node.full"),
        ("rank 3 on spark4", "serving.node.absent"),
    ]
    assert "kubelet stopped posting" in findings[0].reason
    assert "kubectl uncordon spark2" in findings[1].remedy
    assert "serving_plan_nodes" in findings[3].remedy


def test_a_node_that_never_reported_is_not_ready() -> None:
    silent = {**node("spark1"), "status": {"allocatable": {GPU: "1"}}}
    (finding,) = obstacles([silent, *NODES[1:]])
    assert "it never reported" in finding.reason
