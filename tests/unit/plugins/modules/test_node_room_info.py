# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the module reports about pods that hold devices."""

from pathlib import Path
from typing import Any

import kubernetes
import pytest
from ansible_collections.gb10.cluster.plugins.modules import node_room_info
from kube_samples import FakeApi, api_of
from module_runs import Step, play

pytestmark = pytest.mark.usefixtures("simulated_clock")

GPU = {"nvidia.com/gpu": 1}


class Restarting(FakeApi):
    """A node that is ready at the third reading, and its device plugin at the fifth."""

    def __init__(self, _place: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.options = {"kubeconfig": "/k", "context": "gb10"}
        self.looks = 0
        self.install(patch)

    def _answer(self, path: str, selector: str) -> Any:
        if path.endswith("/nodes"):
            self.looks += 1
            self.nodes = [node("1" if self.looks > 4 else "0", ready=self.looks > 2)]
        return super()._answer(path, selector)

    def shows(self) -> dict[str, Any]:
        return {"looks": self.looks, "nodes": []}


def node(gpus: str, ready: bool = True) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": str(ready), "message": "kubelet starts"}]
    state = {"conditions": conditions, "allocatable": {"nvidia.com/gpu": gpus, "cpu": "8"}}
    return {"metadata": {"name": "spark1"}, "status": state}


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
    # Devices that pods hold do not prolong the wait.
    "a pod has the GPU": [{**FULL, "wanted": {"spark1": GPU}, "wait_timeout": 60}, {"nodes": [node("1.5")]}],
    "nodes and pods may not be read": [{**FULL, **refused("nodes", "pods"), **WANTED}, {}],
    "pods may not be read": [{**FULL, **refused("pods"), **WANTED}, {}],
}


WAITS: dict[str, list[Step]] = {
    "nothing wanted": [{"wait_timeout": 60}],
    "ready": [{"wanted": {"spark1": {}}, "wait_timeout": 60}],
    "with its devices": [{"wanted": {"spark1": GPU}, "wait_timeout": 60}],
    "no time": [{"wanted": {"spark1": GPU}, "wait_timeout": 0}],
    "too little time": [{"wanted": {"spark1": GPU}, "wait_timeout": 1}],
    "absent": [{"wanted": {"spark2": {}}, "wait_timeout": 10}],
}


def test_each_wait(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    play("node_room_waits", node_room_info, WAITS, Restarting, capsys, tmp_path)


def test_each_reading(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    play("node_room_info", node_room_info, CASES, api_of, capsys, tmp_path)
