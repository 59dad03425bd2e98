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
    place = {"kubeconfig": "/k", "context": "c"}
    return preflight.obstacles(plan(**changes), NADS if nads is None else nads, found, (), tolerations, **place)


def test_the_first_object_of_a_group_is_the_account_by_which_it_is_found() -> None:
    objects = render(plan(), PodOptions(), {}, {})
    assert objects[0]["kind"] == "ServiceAccount"
    assert preflight.unknown_group(objects[:1], "gemma-4-31b-it", "gb10-serving") == []


def accounts(*instances: str) -> list[dict[str, Any]]:
    """Return the ServiceAccounts of groups, and one that belongs to no group."""
    found = [
        {"metadata": {"name": name, "labels": {INSTANCE: instance}}}
        for instance in instances
        for name in (instance, f"{instance}-supervisor")
    ]
    return [{"metadata": {"name": "default"}}, *found]


def rank(revision: str, **labels: str) -> dict[str, Any]:
    annotations = {"gb10.cluster/revision": revision}
    return {"kind": "StatefulSet", "metadata": {"name": "g-0", "labels": labels, "annotations": annotations}}


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


def without_room() -> list[dict[str, Any]]:
    """Return nodes of which the first has a full disk, the last a taint, and another is missing."""
    full, tainted = node("spark1"), node("spark4")
    full["status"]["conditions"].append({"type": "DiskPressure", "status": "True", "message": "has disk pressure"})
    tainted["spec"] = {"taints": [{"key": GPU, "value": "present", "effect": "NoSchedule"}]}
    return [full, node("spark3"), tainted]


THEIRS = {"name": "rail0", "namespace": "rdma"}
ASKING = {"metadata": {**THEIRS, "annotations": {"k8s.v1.cni.cncf.io/resourceName": "nvidia.com/rail0"}}}
OBSTACLES: dict[str, dict[str, Any]] = {
    "free": {},
    "nothing": {"nodes": [], "nads": [], "pods": []},
    "attachments": {"nads": [{"metadata": {"name": one["metadata"]["name"], "namespace": "o"}} for one in NADS]},
    "held twice": {"pods": [pod("spark2", "a"), pod("spark2", "b"), pod("spark2", "a"), pod("spark3")]},
    "little offered": {"nodes": [node(f"spark{n}", offers={GPU: "0"}) for n in range(1, 5)]},
    "closed": {"nodes": [node(f"spark{n}", ready="False", cordoned=n > 2) for n in range(1, 5)]},
    "own pods": {"pods": [pod(f"spark{n}", "gemma-4-31b-it") for n in range(1, 5)]},
    "pods of other namespaces": {
        "pods": [pod("spark1", "gemma-4-31b-it", namespace="a"), pod("spark2", namespace="b")]
    },
    "two GPUs": {
        "nodes": [node(f"spark{n}", offers={GPU: "2"}) for n in range(1, 5)],
        "pods": [pod("spark1", "a"), pod("spark2", "a"), pod("spark2", "b")],
    },
    "without room": {"nodes": without_room()},
    "without room, tolerated": {"nodes": without_room(), "tolerations": [{"key": GPU, "operator": "Exists"}]},
    "network of others": {"nads": [{"metadata": {**THEIRS, "annotations": {}}}], "networks": (THEIRS,)},
    "network of others, missing": {"networks": (THEIRS,)},
    "network of others, a resource": {"nads": [ASKING], "networks": (THEIRS,)},
    "network of others, their resource": {"nads": [ASKING], "networks": (THEIRS | {"resource": "nvidia.com/rail0"},)},
    "one resource": {
        "nodes": [node(f"spark{n}", offers={"rdma/a": "1k" if n < 4 else "0"}) for n in range(1, 5)],
        "rdma_mode": "restricted",
        "rdma_resources": ("rdma/a",),
    },
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
        "own memory": {"resources": {"requests": {"memory": "96Gi"}}},
        "not": {"computed": False},
    }
    found = {name: preflight.obstacles(loaded, NADS, rooms(small, []), **more) for name, more in cases.items()}
    found["unread"] = preflight.obstacles(loaded, NADS[:1], [], ("nodes",))
    applied = [{"kind": "Service", "metadata": {}}, rank("a"), rank("b", **{FALLBACK: "f"})]
    for revisions in ("a", "aa", "ab", " b", "b", "ac "):
        ranks = [{"pod": f"g-{n}", "revision": one.strip()} for n, one in enumerate(revisions)]
        found[f"replaced by {revisions!r}"] = preflight.replaced(applied, ranks[::-1], "g")
    for names, asked in (("one", "one"), ("two one", "x"), ("one", ""), ("", "one")):
        found[f"group {asked!r} of {names!r}"] = preflight.unknown_group(accounts(*names.split()), asked, "ns")
    held = [
        {"instance": name, "node": f"spark{n}", "vf_index": i} for name in ("o", "p") for n in (1, 2, 9) for i in (0, 1)
    ]
    found["taken"] = preflight.taken(loaded, held)
    found["taken, one node"] = preflight.taken(plan({"nodes": 1, "tp": 1}, nodes=("spark1",)), held)
    found["taken, networks of others"] = preflight.taken(plan(networks=(THEIRS,)), held)
    compare("serving_obstacles_at_start", {name: said(findings) for name, findings in found.items()})
