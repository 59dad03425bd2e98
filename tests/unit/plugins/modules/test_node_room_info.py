# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the module reports about pods that hold devices."""

from pathlib import Path
from typing import Any

import kubernetes
import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._kube.node_room import Holder, Room
from ansible_collections.gb10.cluster.plugins.modules import node_room_info
from kube_samples import api_of
from module_runs import Step, play

pytestmark = pytest.mark.usefixtures("simulated_clock")

GPU = {"nvidia.com/gpu": 1}


class Cluster:
    """A node that is ready at the third reading, and its device plugin at the fifth."""

    def __init__(self) -> None:
        self.looks = 0

    unread: tuple[str, ...] = ()

    def rooms(self) -> list[Room]:
        self.looks += 1
        trouble = "" if self.looks > 2 else "kubelet stopped posting"
        return [Room("node-a", "spark1", trouble, False, GPU if self.looks > 4 else {}, [])]


@pytest.mark.parametrize(
    ("wanted", "timeout", "looks"),
    [
        ({}, 60, 1),
        ({"spark1": {}}, 60, 3),
        ({"spark1": GPU}, 60, 5),
        ({"spark1": GPU}, 0, 1),
        ({"spark1": GPU}, 0.5, 4),
        ({"spark2": {}}, 10, 8),
    ],
    ids=["nothing wanted", "ready", "with its devices", "no time", "too little time", "absent"],
)
def test_it_waits_for_nodes_that_restart(wanted: dict[str, dict[str, int]], timeout: float, looks: int) -> None:
    cluster = Cluster()
    node_room_info.wait(cluster, wanted, timeout)
    assert cluster.looks == looks


def test_devices_that_pods_hold_do_not_prolong_the_wait() -> None:
    class Full(Cluster):
        def rooms(self) -> list[Room]:
            self.looks += 1
            return [Room("spark1", "spark1", "", True, GPU, [Holder("gb10-serving", "one-0-0", "one", GPU)])]

    cluster = Full()
    node_room_info.wait(cluster, {"spark1": GPU}, 60)
    assert cluster.looks == 1


def node(gpus: str) -> dict[str, Any]:
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"nvidia.com/gpu": gpus, "cpu": "8"}}
    return {"metadata": {"name": "spark1"}, "status": ready}


def holder() -> dict[str, Any]:
    containers = [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    meta = {"namespace": "gb10-serving", "name": "one-0-0"}
    return {"metadata": meta, "spec": {"nodeName": "spark1", "containers": containers}}


def refused(*names: str) -> dict[str, Any]:
    error = kubernetes.client.ApiException(status=403, reason="Forbidden")
    return {"objects": {f"/api/v1/{name}": error for name in names}}


FULL = {"nodes": [node("1")], "pods": [holder()]}
WANTED = {"optional": True, "wanted": {"spark1": GPU}}
CASES: dict[str, list[Step]] = {
    "a pod has the GPU": [FULL, {"nodes": [node("1.5")]}],
    "nodes and pods may not be read": [{**FULL, **refused("nodes", "pods"), **WANTED}, {}],
    "pods may not be read": [{**FULL, **refused("pods"), **WANTED}, {}],
}


def test_each_reading(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    play("node_room_info", node_room_info, CASES, api_of, capsys, tmp_path)
