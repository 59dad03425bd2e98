# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that everything that prevents pods from starting is reported per rank before anything changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._common import plain
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import FALLBACK, INSTANCE
from ansible_collections.gb10.cluster.plugins.module_utils._kube.node_room import Room, rooms
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving import obstacles as preflight
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.manifests import render
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
