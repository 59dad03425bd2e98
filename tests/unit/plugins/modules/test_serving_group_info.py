# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test how long the module waits for a group, and the reasons that it reports."""

import json
from typing import Any

import kubernetes
import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gb10.cluster.plugins.module_utils._kube import group_status as status
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import Cluster
from ansible_collections.gb10.cluster.plugins.module_utils._kube.labels import TRANSPORT
from ansible_collections.gb10.cluster.plugins.modules import serving_group_info as info
from kube_samples import FakeApi

pytestmark = pytest.mark.usefixtures("simulated_clock")

# Lines of a pod whose VF has no IPv4 address, in NCCL 2.28.9's words.
NO_GID = [
    "g-1-0:1:1 [0] NCCL INFO NCCL version 2.28.9+cuda13.0",
    "g-1-0:1:1 [0] NCCL INFO NET/IB : Using [0]rocep1s0f0v0:1/RoCE [RO]; OOB net1:10.100.0.2<0>",
    "[2026-11-21 12:00:00] g-1-0:1:1 [0] misc/ibvwrap.cc:376 NCCL WARN Call to ibv_modify_qp failed with 101 Network is"
    " unreachable, on dev rocep1s0f0v0:1, curr state INIT, next state RTR, local GID index 0, local GID fe80::1, remote"
    " GID fe80::2",
]


def pod(ready: bool, restarts: int = 0) -> dict[str, Any]:
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}} if restarts else {"running": {}}
    return {
        "metadata": {"name": "g-0-0", "uid": "u", "labels": {status.RANK: "0"}},
        "spec": {"nodeName": "spark1"},
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [{"name": "sglang", "restartCount": restarts, "state": waiting}],
        },
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


def run(capsys: pytest.CaptureFixture[str], **more: Any) -> tuple[int, dict[str, Any]]:
    given = {"kubeconfig": "/none", "context": "gb10", "namespace": "gb10-serving", "instance": "g", "ranks": 1}
    with patch_module_args(given | more), pytest.raises(SystemExit) as stop:
        info.main()
    return int(stop.value.code or 0), json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("pods", "timeout", "head"),
    [
        ([pod(True)], 0, "Group g is ready."),
        ([pod(True)], 60, "Group g is ready after 0 s."),
        ([pod(False)], 0, "Group g is not ready: 0 of 1 ranks are ready."),
        ([], 0, "Group g is not ready: 0 of 1 ranks are ready."),
    ],
)
def test_a_status_that_waits_for_nothing_names_no_seconds_but_how_many_ranks_are_ready(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pods: list[dict[str, Any]],
    timeout: int,
    head: str,
) -> None:
    FakeApi(pods=pods, logs={"g-0-0": ["", ""]}).install(monkeypatch)
    assert run(capsys, wait_timeout=timeout)[1]["msg"].splitlines()[0] == head


def test_the_module_quotes_the_crashed_container_of_a_group_that_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = "\n".join(NO_GID)
    api = FakeApi(pods=[pod(False, restarts=2)], logs={"g-0-0": ["", log]})
    api.install(monkeypatch)
    code, result = run(capsys, wait_timeout=60, log_lines=1)
    assert (code, result["ready"], result["logs"]) == (1, False, {"g-0-0": [NO_GID[-1][:240]]})
    assert result["causes"][0]["id"] == "qp_unreachable"
    asked = [(ask["container"], ask["previous"]) for ask in api.asked if "previous" in ask]
    assert asked == [("sglang", "true"), ("sglang", "false"), ("transport", "false")]
    api.pods = [pod(True)]
    code, ready = run(capsys, wait_timeout=60)
    assert (code, ready["ready"], ready["logs"]) == (0, True, {})
    assert set(ready) == set(result) - {"failed"}


def loading(restarts: int = 0, started: bool = False) -> dict[str, Any]:
    """Return a pod whose server runs. Until it talks to the others, its sidecar says that nothing is proven."""
    made = pod(False, restarts)
    made["status"]["conditions"].append({"type": TRANSPORT, "status": "False", "reason": "NotProven"})
    made["status"]["containerStatuses"][0] |= {"state": {"running": {}}, "started": started}
    return made


@pytest.mark.parametrize("extend", [True, False])
def test_a_start_that_goes_on_is_waited_for_beyond_the_limit(
    extend: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each new line starts the time again; the same line does not."""
    api = FakeApi(pods=[loading()])
    api.install(monkeypatch)
    ended = slices(capsys, api, [f"shard {number}" for number in (1, 2, 3, 4, 4, 4, 4)], extend)
    assert ended == ([False] * 6 + [True] if extend else [False, False, True])


def slices(capsys: pytest.CaptureFixture[str], api: FakeApi, logs: list[str], extend: bool = True) -> list[bool]:
    """Return for each slice of a wait, with these logs of the running server, whether it failed."""
    ended: list[bool] = []
    progress: dict[str, Any] = {}
    for number, log in enumerate(logs):
        api.asked.clear()
        api.logs = {"g-0-0": [log]}
        code, result = run(capsys, wait_timeout=50, extend=extend, progress=progress)
        progress = result.get("progress", {})
        ended.append(bool(code))
        if code:
            break
        assert f"    log: {log}" in result["msg"], number
        assert [ask["previous"] for ask in api.asked if "previous" in ask] == ["false"]
    return ended


def test_a_start_after_a_crash_is_waited_for_by_its_own_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api = FakeApi(pods=[loading(restarts=1)])
    api.install(monkeypatch)
    assert slices(capsys, api, [f"shard {number}" for number in range(7)]) == [False] * 7


@pytest.mark.parametrize("started", [True, False])
def test_requests_are_no_progress(
    started: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kubelet's probes cause lines while a warm-up hangs, and the sidecar's generations while a gate is closed."""
    api = FakeApi(pods=[loading(started=started)])
    api.install(monkeypatch)
    lines = [f"{n} Decode batch" if started else f'[{n}] "GET /health HTTP/1.1" 503' for n in range(7)]
    assert slices(capsys, api, lines) == [False, False, True]


def test_an_api_that_does_not_answer_fails_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    code, result = run(capsys)
    assert (code, result["ranks"]) == (1, [])
    assert result["msg"].startswith("can't use context gb10 of kubeconfig /none")


def test_a_command_runs_in_the_head_of_a_group_that_is_ready_and_of_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [(0, '{"tp_size": 2}\n', ""), (1, "", "not ready: HTTP 401\n")]
    api = FakeApi(pods=[pod(True)], command=lambda _pod, _command: answers.pop(0))
    api.install(monkeypatch)
    code, result = run(capsys, head_command=["get", "/server_info"])
    assert (code, result["head_output"]) == (0, '{"tp_size": 2}\n')
    assert api.asked[-1] == {"pod": "g-0-0", "container": "sglang", "command": ["get", "/server_info"]}
    code, result = run(capsys, head_command=["get", "/server_info"])
    assert code == 1
    assert "g-0-0 is ready, but get /server_info ended with status 1 in it: not ready: HTTP 401" in result["msg"]
    assert "kubectl --kubeconfig /none --context gb10 -n gb10-serving logs g-0-0 -c sglang" in result["msg"]
    api.pods, api.logs = [pod(False)], {"g-0-0": [""]}
    api.asked.clear()
    assert run(capsys, head_command=["get"])[1]["head_output"] == ""
    assert not [ask for ask in api.asked if "command" in ask]


def test_a_status_shows_the_log_of_the_container_that_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a restart, the log of the container before it says nothing about the present."""
    api = FakeApi(pods=[loading(restarts=1)], logs={"g-0-0": ["now"]})
    api.install(monkeypatch)
    assert run(capsys)[1]["logs"] == {"g-0-0": ["now"]}
    assert {ask["previous"] for ask in api.asked if ask.get("container") == "sglang"} == {"false"}


@pytest.mark.parametrize("settle", [0, 15])
def test_a_cell_s_dead_rank_is_quoted_also_where_the_api_server_learns_of_it_late(
    settle: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kubelet has started the next process already; the worker's end is known, the head counts as ready."""
    head, worker = pod(True), pod(False)
    worker["metadata"] = {"name": "g-1-0", "uid": "v", "labels": {status.RANK: "1"}}
    worker["status"]["containerStatuses"][0]["state"] = {"terminated": {"exitCode": 1}}
    unaware = [head, pod(True) | {"metadata": worker["metadata"]}]

    class Late(FakeApi):
        def _answer(self, path: str, selector: str) -> Any:
            listed = len([ask for ask in self.asked if "label_selector" in ask])
            self.pods = [head, worker] if listed > (2 if settle else 0) else unaware
            return super()._answer(path, selector)

    started, died = "[12:00:01] Load weight begin.", "CUDA error: an illegal instruction was encountered"
    Late(logs={"g-0-0": [started, died, ""], "g-1-0": ["", "the head is gone", ""]}).install(monkeypatch)
    monkeypatch.setattr(info.Members, "answers", lambda _members, _rank: True)
    _code, result = run(capsys, ranks=2, restarted=True, settle=settle, log_lines=1)
    assert result["logs"] == {"g-0-0": [died, started], "g-1-0": ["the head is gone"]}


HANG = [
    "[2026-11-29 03:00:00] why the group hung: rank 0: old",
    "[2026-11-29 04:00:00] why the group hung: rank 1: new",
]


@pytest.mark.parametrize(
    ("log", "timeout", "told"),
    [
        ([*HANG, "watching g-0-0"], 0, "[2026-11-29 04:00:00] rank 1: new"),
        (HANG, 60, ""),
        (["watching g-0-0"], 0, ""),
        (kubernetes.client.ApiException(status=403), 0, ""),
    ],
)
def test_a_status_tells_why_the_group_hung_last(
    log: Any, timeout: int, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api = FakeApi(pods=[pod(True)], logs={"g-0-0": log if isinstance(log, Exception) else ["\n".join(log)]})
    api.install(monkeypatch)
    result = run(capsys, wait_timeout=timeout)[1]
    assert result["last_hang"] == told
    assert ("Last hang: " in result["msg"]) is bool(told)
    asked = [ask for ask in api.asked if ask.get("label_selector") == "gb10.cluster/supervisor=g"]
    assert bool(asked) is (timeout == 0)
