# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the module reports about pods that hold devices."""

import json
from typing import Any

import kubernetes
import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gb10.cluster.plugins.module_utils._kube.node_room import Holder, Room
from ansible_collections.gb10.cluster.plugins.modules import node_room_info
from kube_samples import FakeApi, pod

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


def run(capsys: pytest.CaptureFixture[str], **options: Any) -> tuple[int, dict[str, Any]]:
    with patch_module_args({"kubeconfig": "/none", "context": "gb10"} | options), pytest.raises(SystemExit) as stop:
        node_room_info.main()
    return int(stop.value.code or 0), json.loads(capsys.readouterr().out)


def test_the_module_reads_nodes_and_pods_of_the_api(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    holder = pod("one-0-0")
    holder["metadata"]["namespace"] = "gb10-serving"
    holder["spec"] = {"nodeName": "spark1", "containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"nvidia.com/gpu": "1", "cpu": "8"}}
    api = FakeApi(pods=[holder], nodes=[{"metadata": {"name": "spark1"}, "status": ready}])
    api.install(monkeypatch)
    status, result = run(capsys)
    assert (status, result["msg"]) == (0, "spark1: gb10-serving/one-0-0 holds 1 nvidia.com/gpu")
    assert result["nodes"][0]["offers"] == {"nvidia.com/gpu": 1}
    api.nodes[0]["status"]["allocatable"]["nvidia.com/gpu"] = "1.5"
    status, failed = run(capsys)
    assert (status, "1.5" in failed["msg"]) == (1, True)
    assert set(result) == set(failed) - {"failed"}


def test_an_api_that_does_not_answer_fails(capsys: pytest.CaptureFixture[str]) -> None:
    status, result = run(capsys)
    assert (status, result["nodes"]) == (1, [])
    assert result["msg"].startswith("can't use context gb10 of kubeconfig /none")


@pytest.mark.parametrize(
    ("refused", "unread", "nodes"),
    [
        (("nodes", "pods"), ["nodes", "pods"], 0),
        (("pods",), ["pods"], 1),
    ],
)
def test_what_may_not_be_read_is_named_and_fails_only_where_it_is_required(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    refused: tuple[str, ...],
    unread: list[str],
    nodes: int,
) -> None:
    api = FakeApi(nodes=[{"metadata": {"name": "spark1"}, "status": {}}])
    api.install(monkeypatch)

    for name in refused:
        api.objects[f"/api/v1/{name}"] = kubernetes.client.ApiException(status=403, reason="Forbidden")
    status, result = run(capsys, optional=True, wanted={"spark1": {"nvidia.com/gpu": 1}})
    assert (status, result["unread"], len(result["nodes"])) == (0, unread, nodes)
    assert [node_room_info.UNREAD[what] for what in unread] == result["msg"].splitlines()
    status, result = run(capsys)
    assert (status, "403: Forbidden" in result["msg"]) == (1, True)
