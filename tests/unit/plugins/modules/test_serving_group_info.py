# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test how long the module waits for a group, and the reasons that it reports."""

from pathlib import Path
from typing import Any

import kubernetes
import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._kube import group_status as status
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import TRANSPORT
from ansible_collections.gb10.cluster.plugins.modules import serving_group_info as info
from kube_samples import FakeApi
from module_runs import Step, steps_of

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


class Group(FakeApi):
    """The API with the pods of a group. With ``late``, it learns of the end of rank 1 after so many readings."""

    def __init__(self, _place: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(pods=[pod(True)], logs={"g-0-0": [""]})
        self.options: Json = {"kubeconfig": "/none", "context": "gb10", "namespace": "gb10-serving", "instance": "g"}
        self.options |= {"ranks": 1}
        self.answers: list[tuple[int, str, str]] = []
        self.command = lambda _pod, _command: self.answers.pop(0)
        self.last: Json = {}
        self.late, self.shown = 0, list[list[Json]]()
        self.patch = patch
        self.install(patch)

    def _answer(self, path: str, selector: str) -> Any:
        if path.endswith("/pods") and self.shown:
            self.pods = self.shown.pop(0)
        if self.late and len([ask for ask in self.asked if "label_selector" in ask]) >= self.late:
            self.pods, self.late = [pod(True), END], 0
        return super()._answer(path, selector)

    def shows(self) -> Json:
        asked = [" ".join(map(str, ask.values())) for ask in self.asked]
        self.asked.clear()
        lists = [f"{asked.count(one)} times {one}" if asked.count(one) > 1 else one for one in asked]
        return {"asked": sorted(set(lists))}


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


def failing(code: int) -> Json:
    return {"g-0-0": kubernetes.client.ApiException(status=code)}


def slices(server: Json, lines: list[str], extend: bool = False) -> list[Step]:
    """Return the steps of a wait for a server with these logs."""

    def step(line: str) -> Step:
        wait = {"wait_timeout": 50} | ({"extend": True} if extend else {})
        return lambda group: {"pods": [server], **logs(line), **wait, "progress": group.last.get("progress", {})}

    return [step(line) for line in lines]


SHARDS = [f"shard {number}" for number in (1, 2, 3, 4, 4, 4, 4)]


def warning(name: str) -> Json:
    about = {"kind": "Pod", "name": name, "uid": name}
    return {"involvedObject": about, "type": "Warning", "reason": "FailedScheduling", "message": f"no room for {name}"}


PENDING = pod(False)
PENDING["status"] = {"phase": "Pending", "conditions": []}
CASES: dict[str, list[Step]] = {
    "a status": [{"wait_timeout": 0}, {"pods": [pod(False)], "wait_timeout": 0}, {"pods": [], "wait_timeout": 0}],
    "a wait": [{"wait_timeout": 60}, {"shown": [[], [pod(False)], [pod(True)]], "wait_timeout": 60}],
    "a wait that is over": [{"pods": [pod(False)], "wait_timeout": 10}],
    "a wait for a group that fails": [{"shown": [[pod(False)], [pod(False, restarts=2)]], "wait_timeout": 3600}],
    # Only a failing server means that the node does not answer.
    **{
        f"status {code} for a log": [{"logs": failing(code), "restarted": True, "wait_timeout": 60}]
        for code in (400, 404, 500, 502, 0)
    },
    "it failed, then it is ready": [
        {"pods": [pod(False, restarts=2)], **logs("", "\n".join(NO_GID)), "wait_timeout": 60, **LINES},
        {"pods": [pod(True)], "wait_timeout": 60},
    ],
    "each new line starts the time again": slices(LOADING, SHARDS, extend=True),
    "a fixed time": slices(LOADING, SHARDS[:3]),
    "after a crash": slices(AGAIN, SHARDS[:4], extend=True),
    # The kubelet's probes cause lines while a warm-up hangs, and the sidecar's generations while a gate is closed.
    "requests while a gate is closed": slices(STARTED, [f"{n} Decode batch" for n in range(3)], extend=True),
    "probes": slices(LOADING, [f'[{n}] "GET /health HTTP/1.1" 503' for n in range(3)], extend=True),
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
    "pending, with warnings": [{"pods": [PENDING], "events": [warning("g-0-0"), warning("other-0")]}],
    "two nodes are silent": [
        {**EARLIER, "logs": {**failing(500), "g-1-0": failing(500)["g-0-0"]}, "wait_timeout": 60, "settle": 0}
    ],
    "the fallback": [{"fallback": "fewer"}],
    "why it hung": [{**logs("\n".join([*HANG, "watching g-0-0"])), "wait_timeout": 0}],
    "why it hung is no part of a wait": [{**logs("\n".join(HANG)), "wait_timeout": 60}],
    "it never hung": [{**logs("watching g-0-0"), "wait_timeout": 0}],
    "a log that may not be read": [{"logs": failing(403), "wait_timeout": 0}],
}
test_each_step_of_a_wait = steps_of(serving_group_info=(info, Group, CASES))
