# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test how long the module waits for a group, and the reasons that it reports."""

from pathlib import Path
from typing import Any

import kubernetes
import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._kube import group_status as status
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import Cluster
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import TRANSPORT
from ansible_collections.gb10.cluster.plugins.modules import serving_group_info as info
from kube_samples import FakeApi
from module_runs import Step, play

pytestmark = pytest.mark.usefixtures("simulated_clock")
Json = dict[str, Any]

# Lines of a pod whose VF has no IPv4 address, in NCCL 2.28.9's words.
NO_GID = [
    "g-1-0:1:1 [0] NCCL INFO NCCL version 2.28.9+cuda13.0",
    "g-1-0:1:1 [0] NCCL INFO NET/IB : Using [0]rocep1s0f0v0:1/RoCE [RO]; OOB net1:10.100.0.2<0>",
    "[2026-11-21 12:00:00] g-1-0:1:1 [0] misc/ibvwrap.cc:376 NCCL WARN Call to ibv_modify_qp failed with 101 Network is"
    " unreachable, on dev rocep1s0f0v0:1, curr state INIT, next state RTR, local GID index 0, local GID fe80::1, remote"
    " GID fe80::2",
]


def pod(ready: bool, restarts: int = 0, started: bool | None = None, rank: int = 0) -> Json:
    """Return a rank. If ``started`` is given, its server runs and its sidecar has proven nothing yet."""
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}} if restarts and started is None else {"running": {}}
    container: Json = {"name": "sglang", "restartCount": restarts, "state": waiting}
    conditions = [{"type": "Ready", "status": str(ready)}]
    if started is not None:
        container["started"] = started
        conditions.append({"type": TRANSPORT, "status": "False", "reason": "NotProven"})
    return {
        "metadata": {"name": f"g-{rank}-0", "uid": f"u{rank}", "labels": {status.RANK: str(rank)}},
        "spec": {"nodeName": f"spark{rank + 1}"},
        "status": {"phase": "Running", "conditions": conditions, "containerStatuses": [container]},
    }


class Members:
    """Returns the given lists of pods one after the other, and repeats the last one."""

    def __init__(self, *shown: list[dict[str, Any]]) -> None:
        self.shown = list(shown)
        self.looks = 0

    def group(self, ranks: int) -> status.Group:
        self.looks += 1
        pods = self.shown.pop(0) if len(self.shown) > 1 else self.shown[0]
        return status.read_group(pods, [], ranks)


def test_a_rank_whose_node_does_not_answer_is_lost_though_it_counts_as_ready() -> None:
    class Silent(Members):
        def answers(self, rank: status.Rank) -> bool:
            return rank.node != "spark1"

    group = info.with_lost(Silent(), status.read_group([pod(True)], [], 1))
    assert not group.ready
    assert group.ranks[0].lost
    assert group.lines() == ["rank 0: pod g-0-0 on spark1: its node does not answer"]


@pytest.mark.parametrize(("code", "answers"), [(400, True), (404, True), (500, False), (502, False), (0, False)])
def test_only_a_failing_server_means_that_the_node_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, code: int, answers: bool
) -> None:
    FakeApi(logs={"g-0-0": kubernetes.client.ApiException(status=code)}).install(monkeypatch)
    members = info.Members(Cluster(None, None), "gb10-serving", "g")
    assert members.answers(status.read_group([pod(True)], [], 1).ranks[0]) is answers


@pytest.mark.parametrize(
    ("shown", "limit", "ready", "hopeless", "looks"),
    [
        ([[], [pod(False)], [pod(True)]], 60, True, False, 3),
        ([[pod(False)], [pod(False, restarts=2)]], 3600, False, True, 2),
        # After 0, 0.125, 0.375, 0.875, 1.875, 3.875, 5.875, 7.875, 9.875 and 10 seconds.
        ([[pod(False)]], 10, False, False, 10),
        ([[pod(False)]], 0, False, False, 1),
    ],
    ids=["ready", "failed", "late", "no limit"],
)
def test_it_waits_until_the_group_is_ready_or_has_failed_or_the_time_is_over(
    shown: list[Any], limit: int, ready: bool, hopeless: bool, looks: int
) -> None:
    cluster = Members(*shown)
    group = info.wait(cluster, 1, limit, {})
    assert (group.ready, group.hopeless, cluster.looks) == (ready, hopeless, looks)


def test_the_message_names_rank_cause_and_remedy() -> None:
    rank = status.Rank(1, "g-1-0", "spark2", "Running", False, False, 2, "", "crashed with exit code 1", True)
    causes = info.nccl_causes(rank, NO_GID)
    assert [cause["id"] for cause in causes] == ["qp_unreachable"]
    text = info.report(
        status.Group([rank]), {"g-1-0": NO_GID[-1:]}, causes, "Group g is not ready after 5 s.", [], "kubectl"
    )
    assert "rank 1: pod g-1-0 on spark2: crashed with exit code 1, restarted 2 time(s)" in text
    assert "Probable cause: rank 1 on spark2: " in text
    assert "IPv4" in text
    assert info.nccl_causes(rank, ["hello"]) == []


class Group(FakeApi):
    """The API with the pods of a group. With ``late``, it learns of the end of rank 1 after so many readings."""

    def __init__(self, _place: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(pods=[pod(True)], logs={"g-0-0": [""]})
        self.options = {"kubeconfig": "/none", "context": "gb10", "namespace": "gb10-serving", "instance": "g"}
        self.options |= {"ranks": 1}
        self.answers: list[tuple[int, str, str]] = []
        self.command = lambda _pod, _command: self.answers.pop(0)
        self.last: Json = {}
        self.late = 0
        self.patch = patch
        self.install(patch)

    def _answer(self, path: str, selector: str) -> Any:
        if self.late and len([ask for ask in self.asked if "label_selector" in ask]) >= self.late:
            self.pods, self.late = [pod(True), END], 0
        return super()._answer(path, selector)

    def shows(self) -> Json:
        asked = [" ".join(map(str, ask.values())) for ask in self.asked]
        self.asked.clear()
        return {"asked": sorted(set(asked), key=asked.index)}


END = pod(False, rank=1)
END["status"]["containerStatuses"][0]["state"] = {"terminated": {"exitCode": 1}}
LOADING, AGAIN, STARTED = pod(False, started=False), pod(False, 1, started=False), pod(False, started=True)
HANG = [
    "[2026-11-29 03:00:00] why the group hung: rank 0: old",
    "[2026-11-29 04:00:00] why the group hung: rank 1: new",
]
HEAD = {"head_command": ["get", "/server_info"]}
LINES = {"log_lines": 1}
DIED = ["[12:00:01] Load weight begin.", "CUDA error: an illegal instruction was encountered", ""]
BOTH = {"g-0-0": DIED, "g-1-0": ["", "the head is gone", ""]}
EARLIER = {"pods": [pod(True), pod(True, rank=1)], "logs": BOTH, "ranks": 2, "restarted": True}


def logs(*lines: str) -> Json:
    return {"logs": {"g-0-0": list(lines)}}


def slices(server: Json, lines: list[str], extend: bool = True) -> list[Step]:
    """Return the steps of a wait for a server with these logs."""

    def step(line: str) -> Step:
        wait = {"wait_timeout": 50, "extend": extend}
        return lambda group: {"pods": [server], **logs(line), **wait, "progress": group.last.get("progress", {})}

    return [step(line) for line in lines]


SHARDS = [f"shard {number}" for number in (1, 2, 3, 4, 4, 4, 4)]
CASES: dict[str, list[Step]] = {
    "a status": [{"wait_timeout": 0}, {"pods": [pod(False)], "wait_timeout": 0}, {"pods": [], "wait_timeout": 0}],
    "a wait": [{"wait_timeout": 60}],
    "it failed, then it is ready": [
        {"pods": [pod(False, restarts=2)], **logs("", "\n".join(NO_GID)), "wait_timeout": 60, **LINES},
        {"pods": [pod(True)], "wait_timeout": 60},
    ],
    "each new line starts the time again": slices(LOADING, SHARDS),
    "a fixed time": slices(LOADING, SHARDS[:3], extend=False),
    "after a crash": slices(AGAIN, SHARDS[:4]),
    # The kubelet's probes cause lines while a warm-up hangs, and the sidecar's generations while a gate is closed.
    "requests while a gate is closed": slices(STARTED, [f"{n} Decode batch" for n in range(3)]),
    "probes": slices(LOADING, [f'[{n}] "GET /health HTTP/1.1" 503' for n in range(3)]),
    "no API": [{"pods": kubernetes.client.ApiException(status=500, reason="No")}],
    "a command in the head": [
        {"answers": [(0, '{"tp_size": 2}\n', "")], **HEAD},
        {"answers": [(1, "", "not ready: HTTP 401\n")], **HEAD},
        {"pods": [pod(False)], **HEAD},
    ],
    # After a restart, the log of the container before it says nothing about the present.
    "the container that runs": [{"pods": [AGAIN], **logs("now")}],
    # The kubelet has started the next process already; the worker's end is known, the head counts as ready.
    **{
        f"the API learns of an end late, and {settle} s to settle": [
            lambda group: group.patch.setattr(info.Members, "answers", lambda _members, _rank: True),
            {**EARLIER, "late": late, "settle": settle, **LINES},
        ]
        for late, settle in ((1, 0), (3, 15))
    },
    "why it hung": [{**logs("\n".join([*HANG, "watching g-0-0"])), "wait_timeout": 0}],
    "why it hung is no part of a wait": [{**logs("\n".join(HANG)), "wait_timeout": 60}],
    "it never hung": [{**logs("watching g-0-0"), "wait_timeout": 0}],
    "a log that may not be read": [{"logs": {"g-0-0": kubernetes.client.ApiException(status=403)}, "wait_timeout": 0}],
}


def test_each_step_of_a_wait(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    play("serving_group_info", info, CASES, Group, capsys, tmp_path)
