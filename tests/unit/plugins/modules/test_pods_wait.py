# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test waiting for pods: what is shown meanwhile, and what a failure says."""

from typing import Any

import kubernetes
import pytest
from ansible_collections.gb10.cluster.plugins.modules import pods_wait
from kube_samples import FakeApi
from module_runs import run_module

pytestmark = pytest.mark.usefixtures("simulated_clock")

Capture = pytest.CaptureFixture[str]
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


def wait(capsys: Capture, **options: Any) -> tuple[int, Json]:
    given = {"kubeconfig": "/k", "context": "gb10", "namespace": "kube-system", "label_selector": "a=b", "timeout": 20}
    return run_module(pods_wait, capsys, **given | options)


def test_ready_pods_end_the_wait(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeApi(pods=[pod("a", ready=True), pod("b", ready=True)]).install(monkeypatch)
    assert wait(capsys, count=2) == (0, wait(capsys, count=2)[1] | {"done": True})
    status, result = wait(capsys, count=3)
    assert (status, result["msg"].splitlines()[1]) == (1, "  2 of 3 pods are ready")


def test_a_slice_says_what_each_pod_waits_for(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeApi(pods=[pod("a")], events=[event("a", "Pulling", "Pulling image x", "Normal")]).install(monkeypatch)
    status, result = wait(capsys, timeout=60)
    assert (status, result["done"]) == (0, False)
    assert "pod a on spark1: Pending, ContainerCreating (last event Pulling: Pulling image x)" in result["msg"]


def test_a_failure_names_the_event_once_with_its_remedy(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeApi(pods=[pod("a")], events=[event("a", "FailedCreatePodSandBox", RUNTIME)]).install(monkeypatch)
    status, result = wait(capsys)
    assert status == 1
    assert result["msg"].count("no runtime for") == 1
    assert "apt-get install nvidia-container-toolkit" in result["msg"]


def test_a_daemon_set_has_to_run_its_newest_pod_everywhere(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeApi(pods=[pod("a", ready=True)])
    api.install(monkeypatch)
    done = {"desiredNumberScheduled": 2, "numberReady": 2, "updatedNumberScheduled": 2}
    for behind in (
        daemon(2, **done),
        daemon(**done | {"numberReady": 1}),
        daemon(**done | {"updatedNumberScheduled": 1}),
    ):
        api.daemon_sets["d"] = behind
        assert wait(capsys, daemon_set="d")[0] == 1
    api.daemon_sets["d"] = daemon()
    assert "0 of 0 nodes" in wait(capsys, daemon_set="d")[1]["msg"]
    api.daemon_sets["d"] = daemon(**done)
    assert wait(capsys, daemon_set="d")[0] == 0


def test_an_api_that_refuses_is_shown_in_words(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeApi(pods=kubernetes.client.ApiException(status=403, reason="Forbidden")).install(monkeypatch)
    assert "can't list the pods of namespace kube-system (403: Forbidden)" in wait(capsys)[1]["msg"]
