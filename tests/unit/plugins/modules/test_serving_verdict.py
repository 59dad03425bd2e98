# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that one pod asks the image and is deleted, and that a check that fails never counts as a refusal."""

import json
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.modules import serving_verdict
from module_runs import run_module

Capture = pytest.CaptureFixture[str]
Json = dict[str, Any]
ERROR = serving_verdict.ClusterError


class Cluster:
    """A namespace in which a pod ends as ``status`` says and logs ``lines``."""

    made: Json
    deleted: list[str]
    status: Json
    lines: list[str]
    refuses: str
    kubectl = "kubectl"

    def __init__(self, _kubeconfig: str, _context: str) -> None:
        pass

    def pods(self, _namespace: str, selector: str) -> list[Json]:
        chosen = [pod for pod in self.made.values() if f"gb10.cluster/verdict={_label(pod)}" == selector]
        for pod in chosen:
            pod["status"] = self.status
        return chosen

    def create_pod(self, _namespace: str, pod: Json) -> None:
        if self.refuses:
            raise ERROR(self.refuses, 403)
        self.made[pod["metadata"]["name"]] = pod

    def delete_pod(self, _namespace: str, name: str) -> None:
        self.deleted.append(name)
        del self.made[name]

    def events(self, _namespace: str) -> list[Json]:
        return []

    def log_end(self, *_words: Any) -> list[str]:
        return self.lines


def _label(pod: Json) -> str:
    return str(pod["metadata"]["labels"]["gb10.cluster/verdict"])


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch, simulated_clock: None) -> None:
    monkeypatch.setattr(serving_verdict, "Cluster", Cluster)
    fresh = {"made": {}, "deleted": [], "status": {"phase": "Succeeded"}, "lines": [], "refuses": ""}
    for name, value in fresh.items():
        monkeypatch.setattr(Cluster, name, value, raising=False)


def said(rank: int, kind: str, message: str = "") -> str:
    return "gb10-verdict " + json.dumps({"rank": rank, "verdict": kind, "message": message})


def ask(capsys: Capture, **more: Any) -> tuple[int, Json]:
    known: Json = {"kubeconfig": "/k", "context": "gb10", "namespace": "models", "instance": "glm", "image": "i"}
    known |= {"node": "spark1", "program": "p", "gpu": {"name": "g"}, "timeout": 60}
    known |= {"ranks": [{"rank": 0, "argv": ["--a"]}, {"rank": 1, "argv": ["--b"]}]}
    return run_module(serving_verdict, capsys, **known | more)


@pytest.mark.parametrize("kind", ["accepted", "refused", "unknown"])
def test_the_pod_s_answer_is_returned_and_the_pod_deleted(capsys: Capture, kind: str) -> None:
    Cluster.lines = [said(0, kind, "text"), said(1, kind, "text")]
    status, result = ask(capsys)
    assert (status, result["changed"], result["done"], result["verdict"]) == (0, False, True, kind)
    assert (len(Cluster.deleted), Cluster.made) == (1, {})


def test_the_verdict_on_the_first_rank_stays_with_the_plan(capsys: Capture) -> None:
    Cluster.lines = [said(0, "accepted"), said(1, "refused", "ValueError: no")]
    _status, result = ask(capsys, plan={"instance": "glm"})
    plan = result["ansible_facts"]["gb10_serving_plan"]
    assert (plan["instance"], plan["image_verdict"]["verdict"]) == ("glm", "refused")
    assert plan["image_verdict"]["message"] == "rank 1: ValueError: no"
    assert "ansible_facts" not in ask(capsys)[1]


def test_a_pod_that_admission_refuses_is_unknown_with_the_reason(capsys: Capture) -> None:
    Cluster.refuses = "can't create pod glm-verdict (403: violates PodSecurity)"
    status, result = ask(capsys)
    assert (status, result["verdict"], result["done"]) == (0, "unknown", True)
    assert "violates PodSecurity" in result["msg"]


def test_a_slow_pod_is_waited_for_in_slices_and_then_unknown_and_deleted(capsys: Capture) -> None:
    Cluster.status = {"phase": "Pending"}
    progress: Json = {}
    for _slice in range(3):
        status, result = ask(capsys, progress=progress)
        assert status == 0
        if result["done"]:
            break
        assert result["ranks"] == []
        progress = result["progress"]
    assert (result["done"], result["verdict"]) == (True, "unknown")
    assert "no answer after 60 s: pod glm-verdict-" in result["why"]
    assert (len(Cluster.deleted), Cluster.made) == (1, {})


def test_a_check_that_was_killed_is_unknown_with_its_end(capsys: Capture) -> None:
    state = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    Cluster.status = {"phase": "Failed", "containerStatuses": [{"state": state}]}
    Cluster.lines = [said(0, "accepted"), "gb10-verdict {half"]
    _status, result = ask(capsys)
    assert (result["verdict"], result["why"]) == ("unknown", "rank 1: the check ended early (OOMKilled, exit code 137)")


def test_the_pod_is_as_the_owner_of_the_cluster_wants_it(capsys: Capture) -> None:
    Cluster.status = {"phase": "Pending"}
    ask(capsys, timeout=100, owner={"image_pull_secrets": ["registry"], "pod_labels": {"team": "a"}})
    (pod,) = Cluster.made.values()
    assert (pod["spec"]["imagePullSecrets"], pod["metadata"]["labels"]["team"]) == ([{"name": "registry"}], "a")


def test_a_platform_whose_gpu_nobody_knows_is_unknown(capsys: Capture) -> None:
    _status, result = ask(capsys, gpu={})
    assert (result["verdict"], Cluster.made) == ("unknown", {})
    assert "set sglang_verdict_gpu" in result["msg"]


def test_check_mode_asks_nothing(capsys: Capture) -> None:
    _status, result = ask(capsys, _ansible_check_mode=True)
    assert (result["verdict"], Cluster.made) == ("unknown", {})
