# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that one pod asks the image and is deleted, and that a check that fails never counts as a refusal."""

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.modules import serving_verdict
from module_runs import Step, play

Json = dict[str, Any]


class Cluster:
    """A namespace in which a pod ends as ``status`` says and logs ``lines``."""

    kubectl = "kubectl"

    def __init__(self, _place: Path, patch: pytest.MonkeyPatch) -> None:
        known: Json = {"kubeconfig": "/k", "context": "gb10", "namespace": "models", "instance": "glm", "image": "i"}
        known |= {"node": "spark1", "program": "p", "gpu": {"name": "g"}, "timeout": 60}
        self.options = known | {"ranks": [{"rank": 0, "argv": ["--a"]}, {"rank": 1, "argv": ["--b"]}]}
        self.phase: Json = {"phase": "Succeeded"}
        self.lines: list[str] = []
        self.refuses, self.in_full = "", False
        self.made: dict[str, Json] = {}
        self.commands: list[str] = []
        self.last: Json = {}
        self.hides = "(?<=glm-verdict-)[0-9a-f]+"
        patch.setattr(serving_verdict, "Cluster", lambda _kubeconfig, _context: self)

    def pods(self, _namespace: str, selector: str) -> list[Json]:
        key, label = selector.split("=")
        return [{**pod, "status": self.phase} for pod in self.made.values() if pod["metadata"]["labels"][key] == label]

    def create_pod(self, _namespace: str, pod: Json) -> None:
        if self.refuses:
            raise serving_verdict.ClusterError(self.refuses, 403)
        self.made[pod["metadata"]["name"]] = pod
        self.commands.append(f"create {pod['metadata']['name']}")

    def delete_pod(self, _namespace: str, name: str) -> None:
        self.commands.append(f"delete {name}")
        del self.made[name]

    def events(self, _namespace: str) -> list[Json]:
        return []

    def log_end(self, *_words: Any) -> list[str]:
        return self.lines

    def shows(self) -> Json:
        pods = self.made.values() if self.in_full else ()
        return {"pod": [f"{key}: {json.dumps(each)}" for pod in pods for key, each in pod.items()]}


def said(*kinds: str, **more: str) -> Json:
    answers = [{"rank": rank, "verdict": kind, "message": "ValueError: no"} | more for rank, kind in enumerate(kinds)]
    return {"lines": [f"gb10-verdict {json.dumps(answer)}" for answer in answers]}


def again(cluster: Cluster) -> Json:
    return {"progress": cluster.last["progress"]}


PENDING = {"phase": {"phase": "Pending"}}
OOM = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]}
OWNED = {"owner": {"image_pull_secrets": ["registry"], "pod_labels": {"team": "a"}}}
PLAN = {"plan": {"instance": "glm"}}
CASES: dict[str, list[Step]] = {
    **{f"{kind} by both": [said(kind, kind)] for kind in ("accepted", "refused", "unknown")},
    "the second rank is refused": [{**said("accepted", "refused"), **PLAN}],
    "admission refuses the pod": [{"refuses": "can't create pod glm-verdict (403: violates PodSecurity)", **PLAN}],
    "a slow pod": [PENDING, again, again],
    "the check was killed": [{"phase": OOM, "lines": [*said("accepted")["lines"], "gb10-verdict {half"]}],
    "the owner's pod": [{"in_full": True, **PENDING, **OWNED, "timeout": 100, "pull_policy": "Never"}],
    "a GPU that nobody knows": [{"gpu": {}}],
    "check mode": [{"check": True}],
}


@pytest.mark.usefixtures("simulated_clock")
def test_each_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    play("serving_verdict", serving_verdict, CASES, Cluster, capsys, tmp_path)
