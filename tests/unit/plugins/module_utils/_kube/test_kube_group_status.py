# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the state of a group from its pods and events: ready, still starting, or failed, with the reason."""

import time
from datetime import UTC, datetime
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._kube import group_status as status
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.manifests import render
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.pods import PodOptions
from serving_samples import plan


def pod(rank: int, ready: bool = True, **container: Any) -> dict[str, Any]:
    """Return a pod as the API shows it, its container's status changed as asked."""
    state = {"name": "sglang", "restartCount": 0, "started": ready, "state": {"running": {}}} | container
    return {
        "metadata": {
            "name": f"g-{rank}-0",
            "uid": f"uid-{rank}",
            "labels": {status.RANK: str(rank)},
            "annotations": {status.REVISION: "abc"},
        },
        "spec": {"nodeName": f"spark{rank + 1}"},
        "status": {
            "phase": "Running" if "running" in state["state"] else "Pending",
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [state],
        },
    }


def warning(rank: int, reason: str, message: str, count: int = 1) -> dict[str, Any]:
    return {
        "type": "Warning",
        "reason": reason,
        "message": message,
        "count": count,
        "involvedObject": {"uid": f"uid-{rank}"},
    }


def test_a_group_is_ready_when_every_rank_is() -> None:
    group = status.read_group([pod(1), pod(0)], [], 2)
    assert (group.ready, group.hopeless, group.missing) == (True, False, [])
    assert group.lines() == [
        "rank 0: pod g-0-0 on spark1: ready",
        "rank 1: pod g-1-0 on spark2: ready",
    ]


def test_a_missing_rank_is_named() -> None:
    group = status.read_group([pod(0)], [], 3)
    assert not group.ready
    assert group.missing == [1, 2]
    assert group.lines()[1:] == ["rank 1: no pod", "rank 2: no pod"]


def test_no_pods_are_no_group() -> None:
    assert not status.read_group([], [], 0).ready


def test_a_loading_rank_is_worth_waiting_for() -> None:
    group = status.read_group([pod(0, ready=False)], [], 1)
    assert not group.hopeless
    assert "loading" in group.lines()[0]
    pulling = warning(0, "Pulling", "Pulling image a") | {"type": "Normal"}
    (line,) = status.read_group([pod(0, ready=False)], [pulling], 1).lines()
    assert "loading (last event Pulling: Pulling image a)" in line


@pytest.mark.parametrize(("restarts", "hopeless"), [(1, False), (2, True), (5, True)])
def test_a_third_crash_ends_the_wait(restarts: int, hopeless: bool) -> None:
    group = status.with_history(status.read_group([pod(0), *crashing(restarts, "bind", rank=1)], [], 2), {})
    assert group.hopeless is hopeless
    assert f"crashed with exit code 1, restarted {restarts} time(s)" in group.lines()[1]
    assert group.troubled()[0].rank == 1


def crashing(restarts: int, message: str, rank: int = 0, uid: str = "", runs: bool = False) -> list[dict[str, Any]]:
    """Return a rank that crashed after so many restarts, or before the last of them if it runs again."""
    last = {"exitCode": 1, "reason": "Error", "message": f"Traceback\n{message}\n"}
    state: dict[str, Any] = {"running": {}} if runs else {"waiting": {"reason": "CrashLoopBackOff"}}
    found = pod(rank, ready=False, restartCount=restarts, state=state, lastState={"terminated": last})
    found["metadata"]["uid"] = uid or found["metadata"]["uid"]
    return [found]


def looked_at(*pods: list[dict[str, Any]]) -> list[status.Group]:
    """Return what one wait made of a rank's states, one after the other."""
    crashes: dict[str, dict[str, str]] = {}
    return [status.with_history(status.read_group(each, [], 1), crashes) for each in pods]


@pytest.mark.parametrize(
    ("first", "second", "restarts", "hopeless"),
    [
        ("bind: port 20000 in use at 12:01", "bind: port 20000 in use at 12:07", 2, True),
        ("bind: port 20000 in use", "CUDA out of memory", 2, False),
        ("bind: port 20000 in use", "CUDA out of memory", 5, True),
    ],
)
def test_different_failures_are_not_the_same_crash_again(
    first: str, second: str, restarts: int, hopeless: bool
) -> None:
    assert looked_at(crashing(restarts - 1, first), crashing(restarts, second))[-1].hopeless is hopeless


def test_crashes_count_over_the_pods_that_the_supervisor_replaced() -> None:
    """The rank crashes late, so every pod of it is seen with one crash, after which it runs again."""
    seen = looked_at(
        *(
            crashing(1, "torch.OutOfMemoryError: CUDA out of memory", uid=uid, runs=True)
            for uid in ("first", "first", "second", "second", "third", "third")
        )
    )
    assert [group.hopeless for group in seen] == [False] * 4 + [True] * 2
    assert "crashed 3 times, last with 1 Error torch.OutOfMemoryError: CUDA out of memory" in seen[-1].lines()[0]


def test_old_crashes_of_a_rank_that_runs_do_not_end_the_wait() -> None:
    assert not looked_at(crashing(7, "bind", runs=True))[0].hopeless


def test_the_end_of_a_pod_that_is_deleted_is_no_crash() -> None:
    pods = [crashing(0, "killed", uid=uid) for uid in ("first", "second", "third", "fourth")]
    for (leaving,) in pods:
        leaving["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    assert not any(group.hopeless for group in looked_at(*pods))


# What containerd 2.1 says of a registry
RESOLVE = "failed to resolve reference: "


@pytest.mark.parametrize(
    ("reason", "message", "hopeless"),
    [
        ("CreateContainerConfigError", "because", True),
        ("ErrImageNeverPull", "because", True),
        ("ImagePullBackOff", "because", False),
        ("ErrImagePull", RESOLVE + "unexpected status from HEAD request: 401 Unauthorized", False),
        ("ImagePullBackOff", RESOLVE + "unexpected status from HEAD request: 401 Unauthorized", True),
        ("ImagePullBackOff", RESOLVE + "unexpected status from HEAD request: 403 Forbidden", True),
        ("ImagePullBackOff", RESOLVE + "pull access denied, repository does not exist", True),
        ("ImagePullBackOff", RESOLVE + "r.example/a:1: not found", True),
        ("ImagePullBackOff", RESOLVE + "tls: first record does not look like a TLS handshake", True),
        ("ImagePullBackOff", RESOLVE + "tls: failed to verify certificate: x509: unknown authority", True),
        ("ImagePullBackOff", RESOLVE + "unexpected status from HEAD request: 429 Too Many Requests", False),
        ("ImagePullBackOff", RESOLVE + "dial tcp: lookup r.example: no such host", False),
        ("ImagePullBackOff", RESOLVE + "net/http: TLS handshake timeout", False),
        ("ImagePullBackOff", RESOLVE + "unexpected status from HEAD request: 503 Service Unavailable", False),
    ],
)
def test_waiting_reasons(reason: str, message: str, hopeless: bool) -> None:
    waiting = pod(0, ready=False, state={"waiting": {"reason": reason, "message": message}})
    group = status.read_group([waiting], [], 1)
    assert group.hopeless is hopeless
    assert f"{reason}: {message}" in group.lines()[0]


NO_NETWORK = "cannot find a network-attachment-definition (gb10-rail0-vf9) in namespace (gb10-serving)"
BUSY = (
    'Multus: [gb10-serving/g-0-0/15c6]: error waiting for pod: Get "https://10.43.0.1:443/": context deadline exceeded'
)


@pytest.mark.parametrize(
    ("message", "count", "hopeless"),
    [(NO_NETWORK, 1, False), (NO_NETWORK, 3, True), (BUSY, 19, False), (BUSY, 20, True)],
)
def test_a_network_that_can_not_be_attached(message: str, count: int, hopeless: bool) -> None:
    """A busy API server answers one of the next requests; the wait shows the message meanwhile."""
    waiting = pod(0, ready=False, state={"waiting": {"reason": "ContainerCreating"}})
    group = status.read_group([waiting], [warning(0, "FailedCreatePodSandBox", message, count)], 1)
    assert group.hopeless is hopeless
    assert message in group.lines()[0]


@pytest.mark.parametrize(("failures", "hopeless"), [(2, False), (3, True)])
def test_failures_without_a_count_are_counted(failures: int, hopeless: bool) -> None:
    waiting = pod(0, ready=False, state={"waiting": {"reason": "ContainerCreating"}})
    event = warning(0, "FailedCreatePodSandBox", "no such network")
    del event["count"]
    assert status.read_group([waiting], [event] * failures, 1).hopeless is hopeless


def test_events_of_a_pod_s_predecessor_do_not_count() -> None:
    waiting = pod(0, ready=False, state={"waiting": {"reason": "ContainerCreating"}})
    group = status.read_group([waiting], [warning(7, "FailedCreatePodSandBox", "old", 9)], 1)
    assert not group.hopeless
    assert "old" not in group.lines()[0]


def test_an_unscheduled_pod_says_why() -> None:
    pending = pod(0, ready=False, state={"waiting": {}})
    pending["status"]["containerStatuses"] = []
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/4 nodes: Insufficient nvidia.com/gpu"}
    pending["status"]["conditions"] = [unscheduled]
    assert "Insufficient nvidia.com/gpu" in status.read_group([pending], [], 1).lines()[0]
    unscheduled["status"] = "True"
    assert "scheduled" not in status.read_group([pending], [], 1).lines()[0]


SPARK2 = {"kubernetes.io/hostname": "spark2"}


@pytest.mark.parametrize(
    ("selector", "message", "gone"),
    [
        (SPARK2, "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector. preemption: no", True),
        (SPARK2, "0/3 nodes are available: 2 node(s) didn't match Pod's node affinity/selector, 1 Insufficient", False),
        (None, "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector. preemption: no", False),
    ],
)
def test_a_pod_whose_node_has_left_the_cluster_names_the_node(
    selector: dict[str, str] | None, message: str, gone: bool
) -> None:
    pending = pod(0, ready=False, state={"waiting": {}})
    pending["spec"]["nodeSelector"] = selector
    pending["status"]["containerStatuses"] = []
    pending["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": message}]
    (line,) = status.read_group([pending], [], 1).lines()
    assert ("node spark2 is not in the cluster. Add it with playbooks/kubernetes.yml" in line) is gone
    assert ("node affinity" in line) is not gone


@pytest.mark.parametrize(
    ("reason", "gates", "hopeless"),
    [("WrongTransport", True, True), ("WrongTransport", False, False), ("Failed", True, False)],
)
def test_a_rank_whose_transport_is_not_proven_says_why(reason: str, gates: bool, hopeless: bool) -> None:
    waiting = pod(0, ready=False, started=True)
    said = {"type": "gb10.cluster/transport", "status": "False", "reason": reason, "message": "NCCL transport socket"}
    waiting["status"]["conditions"].append(said)
    waiting["spec"]["readinessGates"] = [{"conditionType": "gb10.cluster/transport"}] if gates else []
    (rank,) = status.read_group([waiting], [], 1).ranks
    assert (rank.trouble, rank.hopeless) == ("transport: NCCL transport socket", hopeless)


def test_a_node_without_memory_is_named_before_its_transport() -> None:
    waiting = pod(0, ready=False, started=True)
    said = [("memory", "MemoryOut", "3 % are available"), ("transport", "NotProven", "nothing yet")]
    waiting["status"]["conditions"] += [
        {"type": f"gb10.cluster/{kind}", "status": "False", "reason": why, "message": text} for kind, why, text in said
    ]
    (rank,) = status.read_group([waiting], [], 1).ranks
    assert (rank.trouble, rank.hopeless) == ("memory: 3 % are available", False)


def test_a_gate_without_a_condition_names_the_log_that_says_why() -> None:
    waiting = pod(0, ready=False, started=True)
    waiting["status"]["conditions"][0]["reason"] = "ReadinessGatesNotReady"
    waiting["metadata"]["namespace"] = "gb10-serving"
    group = status.read_group([waiting], [], 1, "kubectl --context b")
    assert "kubectl --context b -n gb10-serving logs g-0-0 -c transport" in group.lines()[0]
    assert not group.hopeless


def test_a_pod_that_is_being_deleted_is_not_ready() -> None:
    leaving = pod(0)
    leaving["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    group = status.read_group([leaving], [], 1)
    assert not group.ready
    assert "stopping" in group.lines()[0]


@pytest.mark.parametrize(
    ("ends", "last_exit", "lost"),
    [
        ({}, "", False),
        ({"lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}, "OOMKilled", False),
        ({"lastState": {"terminated": {"reason": "Unknown", "exitCode": 255}}}, "Unknown", True),
        (
            {"state": {"terminated": {"reason": "ContainerStatusUnknown", "exitCode": 137}}},
            "ContainerStatusUnknown",
            True,
        ),
        (
            {"state": {"terminated": {"reason": "Error"}}, "lastState": {"terminated": {"reason": "Unknown"}}},
            "Error",
            False,
        ),
    ],
    ids=["never ended", "out of memory", "node restarted", "node gone", "by itself at last"],
)
def test_the_last_termination_shows_whether_a_rank_was_lost_with_its_node(
    ends: dict[str, Any], last_exit: str, lost: bool
) -> None:
    rank = status.read_group([pod(0, **ends)], [], 1).ranks[0]
    assert (rank.last_exit, rank.lost) == (last_exit, lost)


@pytest.mark.parametrize("labels", [{}, {"labels": None}, {"labels": {}}, {"labels": {status.RANK: "first"}}])
def test_a_pod_of_no_rank_is_left_out(labels: dict[str, Any]) -> None:
    foreign = pod(1) | {"metadata": {"name": "x", **labels}}
    group = status.read_group([foreign, pod(0)], [], 2)
    assert ([rank.rank for rank in group.ranks], group.missing) == ([0], [1])


def test_holders_are_read_from_rendered_stateful_sets() -> None:
    sets = [o for o in render(plan(vf_index=1), PodOptions(), {}, {}) if o["kind"] == "StatefulSet"]
    assert status.holders(sets) == [
        {"instance": "gemma-4-31b-it", "node": f"spark{n}", "vf_index": 1} for n in range(1, 5)
    ]
    foreign = {"metadata": {"name": "x"}, "spec": {"template": {"metadata": {}, "spec": {}}}}
    assert status.holders([foreign]) == []


@pytest.mark.parametrize(
    ("passed", "said"),
    [
        (4 * 86400 + 60, "since Tuesday 09:00 (4 days) rail"),
        (86400, "since Tuesday 09:00 (1 day) rail"),
        (7300, "since Tuesday 09:00 (2 hours) rail"),
        (59, "since Tuesday 09:00 (0 minutes) rail"),
        (-5, "since Tuesday 09:00 (0 minutes) rail"),
        (6 * 86400, "since 2026-11-24 09:00 (6 days) rail"),
    ],
)
def test_a_time_is_told_in_the_zone_of_the_owner(passed: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        begun = datetime(2026, 11, 24, 8, tzinfo=UTC).timestamp()
        assert status.in_own_zone("since 2026-11-24T08:00:00Z rail", begun + passed) == said
        odd = "since 2026-99-24T08:00:00Z; 2026-11-24T08:00:00Z"
        assert status.in_own_zone(odd, begun) == odd
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("kind", "status_of", "note"),
    [
        ("health", "False", "; health: as counted"),
        ("health", "True", ""),
        ("load", "False", "; load: as counted"),
        ("load", "True", "; load: as counted"),
    ],
)
def test_a_rank_that_serves_tells_of_faults_and_of_its_load(kind: str, status_of: str, note: str) -> None:
    own = pod(0)
    told = {"type": f"gb10.cluster/{kind}", "status": status_of, "message": "as counted"}
    own["status"]["conditions"].append(told)
    assert status.read_group([own], [], 1).lines() == [f"rank 0: pod g-0-0 on spark1: ready{note}"]
