# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test which devices a node offers and which pods hold them."""

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._kube.node_room import (
    Holder,
    amount,
    rooms,
    untolerated,
)
from cluster_samples import GPU, node, pod


@pytest.mark.parametrize(
    ("quantity", "number"),
    [("0", 0), ("63", 63), (4, 4), ("1k", 1000), ("2M", 2_000_000), ("1Ki", 1024), ("1Gi", 2**30)],
)
def test_quantities_are_read_as_the_api_writes_them(quantity: str | int, number: int) -> None:
    assert amount(GPU, quantity) == number


@pytest.mark.parametrize("quantity", ["", "1500m", "-1", "1.5", "1ki", "x"])
def test_what_is_no_number_of_devices_is_an_error(quantity: str) -> None:
    with pytest.raises(ValueError, match="not an amount"):
        amount(GPU, quantity)


@pytest.mark.parametrize(
    ("name", "quantity", "number"),
    [
        ("cpu", "20", 20_000),
        ("cpu", "500m", 500),
        ("cpu", 1.5, 1500),
        ("memory", "125Gi", 125 * 2**30),
        ("memory", "1e3", 1000),
        ("memory", "1E3", 1000),
        ("memory", "1Ei", 2**60),
        ("cpu", "250000u", 250),
        ("cpu", "500000000n", 500),
        ("memory", "128974848", 128_974_848),
        ("memory", "1500m", 1),
    ],
)
def test_amounts_are_read_as_owners_write_them(name: str, quantity: str | int, number: int) -> None:
    assert amount(name, quantity) == number


def test_what_is_left_of_a_node_counts_the_requests_of_all_pods_but_those_of_groups() -> None:
    asked = [{"name": "a", "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}}}, {"name": "b"}]
    of_group = pod("spark1", "one", containers=asked)
    ended = pod("spark1", containers=asked) | {"status": {"phase": "Succeeded"}}
    offered = node("spark1", offers={"memory": "121Gi"})
    (room,) = rooms([offered], [pod("spark1", containers=asked), of_group, ended, pod("spark2", containers=asked)])
    assert room.left == {"cpu": 18_500, "memory": 120 * 2**30}


def test_a_node_offers_devices_and_nothing_else() -> None:
    offered = {"cpu": "20", "memory": "121Gi", "hugepages-1Gi": "0", "pods": "110", "rdma/gb10": "1k"}
    (room,) = rooms([node("spark1", offers=offered)], [])
    assert room.offers == {GPU: 1, "rdma/gb10": 1000}
    assert (room.node, room.host, room.trouble, room.cordoned, room.holders) == ("spark1", "spark1", "", False, [])


def test_a_node_is_known_by_its_hostname_too() -> None:
    renamed = node("node-a")
    renamed["metadata"]["labels"]["kubernetes.io/hostname"] = "spark1"
    assert [(room.node, room.host) for room in rooms([renamed], [])] == [("node-a", "spark1")]


def test_a_node_that_takes_no_pods_has_a_reason() -> None:
    silent = node("spark3")
    del silent["status"]["conditions"]
    found = rooms([silent, node("spark2", cordoned=True), node("spark1", ready="Unknown")], [])
    assert [(room.node, room.trouble, room.cordoned) for room in found] == [
        ("spark1", "kubelet stopped posting", False),
        ("spark2", "", True),
        ("spark3", "its kubelet never reported", False),
    ]


def test_a_node_with_a_full_disk_says_so_although_it_is_ready() -> None:
    full = node("spark1")
    full["status"]["conditions"].append(
        {"type": "DiskPressure", "status": "True", "message": "kubelet has disk pressure"}
    )
    full["status"]["conditions"].append({"type": "MemoryPressure", "status": "False"})
    assert [(room.trouble, room.disk) for room in rooms([full], [])] == [("", "kubelet has disk pressure")]


def test_pods_hold_what_all_their_containers_take() -> None:
    two = pod("spark1", "one")
    two["spec"]["containers"] *= 2
    (room,) = rooms([node("spark1")], [two])
    assert room.holders == [Holder("gb10-serving", "pod-on-spark1", "one", {GPU: 2})]


def test_init_containers_take_theirs_one_after_the_other() -> None:
    def takes(count: int) -> dict[str, Any]:
        return {"name": f"takes-{count}", "resources": {"limits": {GPU: str(count)}}}

    greedy = pod("spark1", containers=[takes(1), takes(1)], initContainers=[takes(3), takes(1)])
    modest = pod("spark1", containers=[takes(1), takes(1)], initContainers=[takes(1)])
    assert [holder.resources for holder in rooms([node("spark1")], [greedy, modest])[0].holders] == [{GPU: 3}, {GPU: 2}]


@pytest.mark.parametrize(
    "change",
    [
        {"status": {"phase": "Succeeded"}},
        {"status": {"phase": "Failed"}},
        {"metadata": {"name": "p", "namespace": "ns", "deletionTimestamp": "2026-11-22T00:00:00Z"}},
        {"spec": {"nodeName": "spark1", "containers": [{"name": "no-device"}]}},
        {"spec": {"containers": [{"name": "pending", "resources": {"limits": {GPU: "1"}}}]}},
    ],
    ids=["succeeded", "failed", "leaving", "without device", "without node"],
)
def test_these_pods_hold_no_device(change: dict[str, Any]) -> None:
    assert rooms([node("spark1")], [pod("spark1") | change])[0].holders == []


@pytest.mark.parametrize(
    ("toleration", "left"),
    [
        ({"operator": "Exists"}, []),
        ({"key": "a", "operator": "Exists"}, ["b:NoExecute"]),
        ({"key": "a", "value": "x"}, ["b:NoExecute"]),
        ({"key": "a", "value": "y"}, ["a=x:NoSchedule", "b:NoExecute"]),
        ({"key": "b", "operator": "Exists", "effect": "NoSchedule"}, ["a=x:NoSchedule", "b:NoExecute"]),
        ({"operator": "Exists", "effect": "NoExecute"}, ["a=x:NoSchedule"]),
    ],
)
def test_tolerations_match_taints_as_in_kubernetes(toleration: dict[str, str], left: list[str]) -> None:
    one = node("spark1")
    one["spec"] = {
        "taints": [
            {"key": "a", "value": "x", "effect": "NoSchedule"},
            {"key": "b", "effect": "NoExecute"},
            {"key": "c", "effect": "PreferNoSchedule"},
            {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
        ]
    }
    (room,) = rooms([one], [])
    assert [str(taint) for taint in untolerated(room, [{"key": "c", "operator": "Exists"}, toleration])] == left
