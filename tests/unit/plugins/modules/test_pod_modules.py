# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the modules that start pods: an image is pulled once and pinned, and one pod asks an image about a group."""

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import ClusterError
from ansible_collections.gb10.cluster.plugins.modules import image_pull, serving_verdict
from module_runs import Step, steps_of

Json = dict[str, Any]
WHERE = {"kubeconfig": "/k", "context": "gb10", "namespace": "models"}


class Namespace:
    """A namespace in which a module creates and deletes pods. The text has a pod if the case asks for it."""

    kubectl = "kubectl"

    def __init__(self, patch: pytest.MonkeyPatch, module: Any) -> None:
        self.made: dict[str, Json] = {}
        self.commands: list[str] = []
        self.in_full = False
        patch.setattr(module, "Cluster", lambda _kubeconfig, _context: self)

    def status(self, pod: Json) -> Json:
        raise NotImplementedError

    def pods(self, _namespace: str, selector: str) -> list[Json]:
        key, label = selector.split("=")
        own = {name: pod for name, pod in self.made.items() if pod["metadata"]["labels"][key] == label}
        return [
            {**pod, "metadata": {**pod["metadata"], "uid": name}, "status": self.status(pod)}
            for name, pod in own.items()
        ]

    def create_pod(self, _namespace: str, pod: Json) -> None:
        name = pod["metadata"]["name"]
        self.made[name] = pod
        self.commands.append(f"create {name}")

    def delete_pod(self, _namespace: str, name: str) -> None:
        self.commands.append(f"delete {name}")
        del self.made[name]

    def events(self, _namespace: str) -> list[Json]:
        return []

    def shows(self) -> Json:
        pods = [*self.made.values()][:1] if self.in_full else []
        return {"pod": [f"{key}: {json.dumps(part)}" for pod in pods for key, part in pod.items()]}


REPO = "docker.io/lmsysorg/sglang"
TAG = f"{REPO}:v0.5.14"
OLD, NEW = "sha256:0ld", "sha256:4e3"
HELD, OTHER = [f"{REPO}@{OLD}", TAG], [f"{REPO}@{NEW}", TAG]
RECORDED = {"docker.io_lmsysorg_sglang_v0.5.14": OLD}
BOTH, FOUR = ["spark1", "spark2"], ["spark1", "spark2", "spark3", "spark4"]
TYPE = "application/vnd.docker.distribution.manifest.v2+json"
LISTED = f"""
Welcome to this host, which prints more than it should
REF TYPE DIGEST SIZE PLATFORMS LABELS
{TAG} {TYPE} sha256:m1 65.1 MiB linux/amd64 -
docker.io/other:1 {TYPE} sha256:m2 65.1 MiB linux/amd64 -
sha256:{"1" * 64} {TYPE} sha256:m1 65.1 MiB linux/amd64 -
sha256:{"2" * 64} {TYPE} sha256:m2 65.1 MiB linux/amd64 -
"""


class Nodes(Namespace):
    """Nodes. A pod gets the image id in ``gives``; the pull does not end without one, and fails if it has a blank."""

    def __init__(self, _place: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(patch, image_pull)
        self.options = {**WHERE, "image": TAG}
        self.hosts, self.may_list = BOTH, True
        self.holds: dict[str, list[str]] = {}
        self.gives = dict.fromkeys(BOTH, f"{REPO}@{OLD}")
        self.record: dict[str, str] = {}

    def shows(self) -> Json:
        images = {pod["spec"]["containers"][0]["image"] for pod in self.made.values()}
        return {**super().shows(), "pull": sorted(images), "record": self.record}

    def status(self, pod: Json) -> Json:
        image = self.gives.get(pod["spec"]["nodeSelector"]["kubernetes.io/hostname"], "")
        waits = {"reason": "ImagePullBackOff", "message": image} if " " in image else {}
        own = {"imageID": "" if waits else image, "state": {"waiting": waits}}
        return {"phase": "Pending", "containerStatuses": [own]}

    def nodes(self) -> list[Json]:
        if not self.may_list:
            raise ClusterError("can't list the nodes (403: Forbidden)", 403)
        images = {host: [{"names": self.holds.get(host, [])}] for host in self.hosts}
        return [{"metadata": {"name": host}, "status": {"images": held}} for host, held in images.items()]

    def objects(self, _resource: str, _namespace: str, name: str) -> list[Json]:
        if name == "hidden":
            raise ClusterError("can't read v1/secrets hidden (403: Forbidden)", 403)
        return [{"metadata": {"name": name}}] if name in ("registry", "low") else []

    def config_map(self, _namespace: str, _name: str) -> dict[str, str]:
        return self.record

    def add_to_config_map(self, _namespace: str, _name: str, data: dict[str, str]) -> None:
        self.record = self.record | data

    def events(self, _namespace: str) -> list[Json]:
        about = [{"kind": "Pod", "name": name, "uid": name} for name in self.made]
        failed = {"type": "Warning", "reason": "Failed", "message": "Failed to pull image: manifest unknown"}
        return [{"involvedObject": pod, **failed} for pod in about]

    warnings = events


def listed(text: str, other: str = "") -> Json:
    return {"listings": {"spark1": text, "spark2": other or text}}


def gives(*hosts: str) -> Json:
    return {"gives": dict.fromkeys(hosts, f"{REPO}@{OLD}")}


OWNED = {"image_pull_secrets": ["registry", "hidden"], "priority_class": "low"}
LABELS = {"pod_labels": {"team": "a", "gb10.cluster/pull": "other"}}
LACKS: list[Json] = [{"image_pull_secrets": ["registry", "other", "hidden"]}, {"priority_class": "urgent"}]
UNCLEAR = {
    "nothing": listed("\n"),
    "another name": listed(LISTED.replace(TAG, f"{TAG}-other")),
    "no id": listed(LISTED.replace("1" * 64, "1")),
    "two ids": listed(f"{LISTED}sha256:{'3' * 64} x sha256:m1"),
    "two manifests": listed(f"{LISTED}{TAG} x sha256:m2"),
    "always pulled": {**listed(LISTED), "pull_policy": "Always"},
}
PULLS: dict[str, list[Json]] = {
    "first use, and again": [{}, {"holds": dict.fromkeys(BOTH, HELD[:1])}],
    "a later node pulls the recorded digest": [{"record": dict.fromkeys(RECORDED, NEW), **gives("spark1")}],
    "another digest than recorded": [{"record": RECORDED, "holds": {"spark1": HELD, "spark2": OTHER}}],
    "nodes differ on first use": [{"gives": {"spark1": f"{REPO}@{OLD}", "spark2": "sha256:1d"}}],
    "imported, and again": [{"gives": dict.fromkeys(BOTH, "sha256:1d")}, {}],
    "slices": [gives("spark1"), {"progress": {"waited": 20}}],
    "out of time": [{**gives("spark1"), "timeout": 10}],
    "digest in the name": [{"image": f"{TAG}@{OLD}"}, {"image": f"{TAG}@{NEW}"}],
    "unknown node": [{"nodes": ["spark9"]}],
    "host network": [{"in_full": True, **gives(), "host_network": True, "command": ["sh"], "pull_policy": "Never"}],
    "owner": [{"in_full": True, **gives(), "owner": OWNED | LABELS}],
    "nodes that may not be listed": [{"may_list": False, "nodes": BOTH}, {}],
    "one first": [
        {"hosts": FOUR, **gives(), "one_first": True},
        {"one_first": True},
        {**gives("spark1"), "one_first": True},
        {**gives(*FOUR), "one_first": True},
    ],
    "one first of named nodes": [{"hosts": FOUR, **gives(), "one_first": True, "nodes": ["spark3", "spark2"]}],
    "another node has it": [{"hosts": FOUR, "holds": {"spark3": HELD}, **gives(), "one_first": True}],
    "an unnamed node has it": [{"hosts": FOUR, "holds": {"spark3": HELD}, **gives(), "one_first": True, "nodes": BOTH}],
    "one has another digest": [
        {"hosts": FOUR, "record": RECORDED, "holds": {"spark1": OTHER}, **gives(), "one_first": True}
    ],
    "one first after an interrupted run": [
        {"hosts": FOUR, **gives(), "nodes": ["spark2", "spark4"]},
        {"one_first": True},
    ],
    "one first without the right to list": [
        {"may_list": False, **gives(), "one_first": True, "nodes": BOTH},
        {**gives("spark1"), "one_first": True, "nodes": BOTH},
    ],
    "the first can't pull": [{"hosts": FOUR, **gives(), "one_first": True, "timeout": 10}],
    "all at once, after check mode": [
        {"hosts": FOUR, **gives(), "check": True},
        {"one_first": True, "check": True},
        {},
    ],
    **{
        f"refused by the registry, then {second or 'nothing'}": [
            {"gives": {"spark1": "unexpected status: 401 Unauthorized", "spark2": second}, "timeout": 10}
        ]
        for second in ("unexpected status: 401 Unauthorized", "lookup r: no such host", "")
    },
    # A node that has the image would still be asked for the Secret, by the kubelet of Kubernetes 1.35.
    "the owner's objects are missing": [
        {"holds": dict.fromkeys(BOTH, HELD), "owner": owner, "check": check}
        for owner in LACKS
        for check in (True, False)
    ],
    "an object that may not be read counts as there": [{"owner": {"priority_class": "hidden"}, "check": True}],
    "listed, and another image under this name": [
        listed(LISTED),
        listed(LISTED, LISTED.replace(f"{TAG} {TYPE} sha256:m1", f"{TAG} x sha256:m2")),
    ],
    **{f"unclear listing: {name}": [step] for name, step in UNCLEAR.items()},
}


class Answers(Namespace):
    """A namespace in which a pod ends as ``phase`` says and logs ``lines``."""

    def __init__(self, _place: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(patch, serving_verdict)
        self.options = {**WHERE, "instance": "glm", "image": "i", "node": "spark1", "program": "p", "timeout": 60}
        self.options |= {"ranks": [{"rank": 0, "argv": ["--a"]}, {"rank": 1, "argv": ["--b"]}], "gpu": {"name": "g"}}
        self.phase: Json = {"phase": "Succeeded"}
        self.lines: list[str] = []
        self.refuses, self.hides = "", "(?<=glm-verdict-)[0-9a-f]+"
        self.last: Json = {}

    def status(self, _pod: Json) -> Json:
        return self.phase

    def create_pod(self, namespace: str, pod: Json) -> None:
        if self.refuses:
            raise ClusterError(self.refuses, 403)
        super().create_pod(namespace, pod)

    def log_end(self, *_words: Any) -> list[str]:
        return self.lines


def said(*kinds: str, **more: str) -> Json:
    answers = [{"rank": rank, "verdict": kind, "message": "ValueError: no"} | more for rank, kind in enumerate(kinds)]
    return {"lines": [f"gb10-verdict {json.dumps(answer)}" for answer in answers]}


def again(cluster: Answers) -> Json:
    return {"progress": cluster.last["progress"]}


PENDING = {"phase": {"phase": "Pending"}}
OOM = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]}
OWNED: Json = {"owner": {"image_pull_secrets": ["registry"], "pod_labels": {"team": "a"}}}
PLAN = {"plan": {"instance": "glm"}}
RANKS = [{"rank": 0, "argv": ["--a"], "env": {"SGLANG_A": "1", "B": "2"}}, {"rank": 1, "argv": ["--b"]}]
ANSWERS: dict[str, list[Step]] = {
    **{f"{kind} by both": [said(kind, kind)] for kind in ("accepted", "refused", "unknown")},
    "the second rank is refused": [{**said("accepted", "refused"), **PLAN}],
    "the engine": [{**said("accepted", "accepted", engine="{}"), **PLAN, "ranks": RANKS}],
    "admission refuses the pod": [{"refuses": "can't create pod glm-verdict (403: violates PodSecurity)", **PLAN}],
    "a slow pod": [PENDING, again, again],
    "the check was killed": [{"phase": OOM, "lines": [*said("accepted")["lines"], "gb10-verdict {half"]}],
    "the owner's pod": [{"in_full": True, **PENDING, **OWNED, "timeout": 100, "pull_policy": "Never"}],
    "a GPU that nobody knows": [{"gpu": {}}],
    "check mode": [{"check": True}],
}
test_each_step = steps_of(
    clock=True, image_pull=(image_pull, Nodes, PULLS), serving_verdict=(serving_verdict, Answers, ANSWERS)
)
