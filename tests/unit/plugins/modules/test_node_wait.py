# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test waiting for nodes that are ready at once, later or never; the reason is readable text."""

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import ClusterError
from ansible_collections.gb10.cluster.plugins.modules import node_wait
from module_runs import run_module

Capture = pytest.CaptureFixture[str]
EVENT = {
    "involvedObject": {"kind": "Pod", "name": "gb10-gpu-plugin-x"},
    "reason": "FailedCreatePodSandBox",
    "message": 'no runtime for "nvidia" is configured',
}


class Cluster:
    """A cluster whose only node is ready at the third reading and offers its GPU at the fifth."""

    looks = 0

    def __init__(self, _kubeconfig: str, _context: str) -> None:
        Cluster.looks = 0

    def nodes(self) -> list[dict[str, Any]]:
        Cluster.looks += 1
        if Cluster.looks == 2:
            raise ClusterError("can't list the nodes: connection refused")
        ready = {"type": "Ready", "status": str(Cluster.looks > 2), "message": "kubelet starts"}
        offers = {"nvidia.com/gpu": "1"} if Cluster.looks > 4 else {}
        labels = {"gb10.cluster/gpu": "true"}
        return [
            {"metadata": {"name": "a", "labels": labels}, "status": {"conditions": [ready], "allocatable": offers}},
            {"metadata": {"name": "control"}, "status": {"conditions": [ready]}},
        ]

    def warnings(self, namespace: str) -> list[dict[str, Any]]:
        return [EVENT] if namespace == "kube-system" else []


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch, simulated_clock: None) -> None:
    monkeypatch.setattr(node_wait, "Cluster", Cluster)


def wait(capsys: Capture, **options: Any) -> tuple[int, dict[str, Any]]:
    return run_module(node_wait, capsys, **{"kubeconfig": "/k", "context": "gb10", "timeout": 60} | options)


def test_it_waits_until_the_node_is_ready(capsys: Capture) -> None:
    assert wait(capsys, nodes=["a"])[0] == 0
    assert Cluster.looks == 3


def test_it_waits_for_the_devices_of_labelled_nodes(capsys: Capture) -> None:
    status, result = wait(capsys, label="gb10.cluster/gpu=true", resources={"nvidia.com/gpu": 1})
    assert (status, Cluster.looks, result["lacking"]) == (0, 5, [])


def test_a_failure_names_the_event_and_what_to_do(capsys: Capture) -> None:
    status, result = wait(capsys, nodes=["a"], resources={"nvidia.com/gpu": 2}, timeout=20)
    assert status == 1
    assert result["msg"].splitlines() == [
        "After 20 s: a offers 1 of 2 nvidia.com/gpu.",
        'Warning event: Pod gb10-gpu-plugin-x: FailedCreatePodSandBox: no runtime for "nvidia" is configured',
        "The container runtime of the node knows no runtime nvidia. Run apt-get install nvidia-container-toolkit on"
        " the node. K3s then finds it when it starts: systemctl restart k3s or k3s-agent. For another container runtime"
        " use nvidia-ctk runtime configure, or NVIDIA's GPU operator.",
    ]


def test_a_slice_ends_within_30_seconds_and_says_what_it_waits_for(capsys: Capture) -> None:
    status, result = wait(capsys, nodes=["gone"], progress={"waited": 30})
    assert (status, result["done"], result["progress"]) == (0, False, {"waited": 50})
    assert result["msg"] == "waiting for 50 s: gone has not joined the cluster"
    assert wait(capsys, nodes=["gone"], progress=result["progress"])[0] == 1


def test_without_a_known_cause_the_journal_is_named(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "warnings", lambda _cluster, _namespace: [])
    status, result = wait(capsys, nodes=["gone"], timeout=0)
    assert (status, result["lacking"]) == (1, ["gone has not joined the cluster"])
    assert "journalctl -u k3s-agent" in result["msg"]
    # A node without devices joined long ago.
    message = wait(capsys, nodes=["a"], resources={"nvidia.com/gpu": 2}, timeout=20)[1]["msg"]
    assert message.splitlines()[-1].startswith(
        "Look at the pods of the device plugins and their logs: kubectl --kubeconfig /k "
    )


def test_a_kubeconfig_that_cannot_be_used_fails(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: str) -> Cluster:
        raise ClusterError("can't use context gb10")

    monkeypatch.setattr(node_wait, "Cluster", refuse)
    assert wait(capsys)[1]["msg"] == "can't use context gb10"
