# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test waiting for nodes that are ready at once, later or never; the reason is readable text."""

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import ClusterError
from ansible_collections.gb10.cluster.plugins.modules import node_wait
from module_runs import Step, play

EVENT = {
    "involvedObject": {"kind": "Pod", "name": "gb10-gpu-plugin-x"},
    "reason": "FailedCreatePodSandBox",
    "message": 'no runtime for "nvidia" is configured',
}
GPU = "nvidia.com/gpu"


class Cluster:
    """A cluster whose only node is ready at the third reading and offers its GPU at the fifth."""

    def __init__(self, _place: Path, patch: pytest.MonkeyPatch) -> None:
        self.options = {"kubeconfig": "/k", "context": "gb10", "timeout": 60}
        self.looks, self.events = 0, [EVENT]
        patch.setattr(node_wait, "Cluster", self.use)

    def use(self, _kubeconfig: str, context: str) -> "Cluster":
        if context != "gb10":
            raise ClusterError(f"can't use context {context}")
        return self

    def nodes(self) -> list[dict[str, Any]]:
        self.looks += 1
        if self.looks == 2:
            raise ClusterError("can't list the nodes: connection refused")
        ready = {"type": "Ready", "status": str(self.looks > 2), "message": "kubelet starts"}
        offers = {GPU: "1"} if self.looks > 4 else {}
        labels = {"gb10.cluster/gpu": "true"}
        return [
            {"metadata": {"name": "a", "labels": labels}, "status": {"conditions": [ready], "allocatable": offers}},
            {"metadata": {"name": "control"}, "status": {"conditions": [ready]}},
        ]

    def warnings(self, namespace: str) -> list[dict[str, Any]]:
        return self.events if namespace == "kube-system" else []

    def shows(self) -> dict[str, Any]:
        return {"looks": self.looks}


CASES: dict[str, list[Step]] = {
    "until it is ready": [{"nodes": ["a"]}],
    "until labelled nodes have devices": [{"label": "gb10.cluster/gpu=true", "resources": {GPU: 1}}],
    "too few devices": [
        {"nodes": ["a"], "resources": {GPU: 2}, "timeout": 20, "events": events} for events in ([EVENT], [])
    ],
    "a node that never comes": [{"nodes": ["gone"], "progress": {"waited": waited}} for waited in (30, 50)],
    "no time": [{"nodes": ["gone"], "timeout": 0, "events": []}],
    "no such context": [{"context": "other"}],
}


@pytest.mark.usefixtures("simulated_clock")
def test_each_wait(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    play("node_wait", node_wait, CASES, Cluster, capsys, tmp_path)
