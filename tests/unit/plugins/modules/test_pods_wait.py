# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test waiting for pods: what is shown meanwhile, and what a failure says."""

from functools import partial
from pathlib import Path
from typing import Any

import kubernetes
import pytest
from ansible_collections.gb10.cluster.plugins.modules import pods_wait
from kube_samples import api_of
from module_runs import Step, play

pytestmark = pytest.mark.usefixtures("simulated_clock")

Json = dict[str, Any]
RUNTIME = 'failed to get sandbox runtime: no runtime for "nvidia" is configured'


def pod(name: str, ready: bool = False, **container: Any) -> Json:
    status = {"phase": "Running" if ready else "Pending", "conditions": [{"type": "Ready", "status": str(ready)}]}
    container = container or {"state": {"waiting": {"reason": "ContainerCreating"}}}
    return {
        "metadata": {"name": name, "uid": name},
        "spec": {"nodeName": "spark1"},
        "status": status | {"containerStatuses": [container]},
    }


def event(name: str, reason: str, message: str, kind: str = "Warning") -> Json:
    about = {"kind": "Pod", "name": name, "uid": name}
    return {"involvedObject": about, "type": kind, "reason": reason, "message": message}


def daemon(generation: int = 1, **status: int) -> Json:
    return {"metadata": {"name": "d", "generation": generation}, "status": {"observedGeneration": 1, **status}}


DONE = {"desiredNumberScheduled": 2, "numberReady": 2, "updatedNumberScheduled": 2}
# Of an older generation, not ready everywhere, not updated everywhere, without nodes, and done.
DAEMONS = [
    daemon(2, **DONE),
    daemon(**DONE | {"numberReady": 1}),
    daemon(**DONE | {"updatedNumberScheduled": 1}),
    daemon(),
    daemon(**DONE),
]
CASES: dict[str, list[Step]] = {
    "two are ready": [{"pods": [pod("a", ready=True), pod("b", ready=True)], "count": count} for count in (2, 3)],
    "a slice": [{"pods": [pod("a")], "events": [event("a", "Pulling", "Pulling image x", "Normal")], "timeout": 60}],
    "a failure": [{"pods": [pod("a")], "events": [event("a", "FailedCreatePodSandBox", RUNTIME)]}],
    "a DaemonSet": [
        {"pods": [pod("a", ready=True)], "daemon_sets": {"d": each}, "daemon_set": "d"} for each in DAEMONS
    ],
    "an API that refuses": [{"pods": kubernetes.client.ApiException(status=403, reason="Forbidden")}],
}


def test_each_wait(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    api = partial(api_of, namespace="kube-system", label_selector="a=b", timeout=20)
    play("pods_wait", pods_wait, CASES, api, capsys, tmp_path)
