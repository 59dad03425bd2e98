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
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.pods import PodOptions
from cluster_samples import GPU, node, pod
from serving_samples import plan
from stored import compare, said, say_words

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


OBSTACLES: dict[str, dict[str, Any]] = {
    "free": {},
    "nothing": {"nodes": [], "nads": [], "pods": []},
    "attachments": {"nads": [{"metadata": {"name": one["metadata"]["name"], "namespace": "o"}} for one in NADS]},
    "held twice": {"pods": [pod("spark2", "a"), pod("spark2", "b"), pod("spark2", "a"), pod("spark3")]},
    "little offered": {"nodes": [node(f"spark{n}", offers={GPU: "0"}) for n in range(1, 5)]},
    "closed": {"nodes": [node(f"spark{n}", ready="False", cordoned=n > 2) for n in range(1, 5)]},
    "two resources": {"rdma_mode": "restricted", "rdma_resources": ("rdma/a", "rdma/b")},
}


def test_obstacles_are_those_that_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    say_words(monkeypatch)
    compare("serving_obstacles", {name: said(obstacles(**changes)) for name, changes in OBSTACLES.items()})
    small = [node(f"spark{number}", offers={"memory": "93Gi", "cpu": "3"}) for number in range(1, 5)]
    loaded = plan({"load": Load(80, 0.85, 103, 109.2)})
    cases: dict[str, dict[str, Any]] = {
        "computed": {},
        "own": {"resources": {"requests": {"cpu": 5}}},
        "not": {"computed": False},
    }
    found = {name: preflight.obstacles(loaded, NADS, rooms(small, []), **more) for name, more in cases.items()}
    found["unread"] = preflight.obstacles(loaded, NADS[:1], [], ("nodes",))
    ranks = [{"pod": f"g-{n}", "revision": revision} for n, revision in ((2, ""), (1, "c"), (0, "a"))]
    found["replaced"] = preflight.replaced([rank("b"), rank("a"), rank("x", **{FALLBACK: "f"})], ranks, "g")
    held = [
        {"instance": name, "node": f"spark{n}", "vf_index": i} for name in ("o", "p") for n in (1, 2, 9) for i in (0, 1)
    ]
    found["taken"] = preflight.taken(loaded, held)
    found["taken, one node"] = preflight.taken(plan({"nodes": 1, "tp": 1}, nodes=("spark1",)), held)
    compare("serving_obstacles_at_start", {name: said(findings) for name, findings in found.items()})
