# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Count lines and repetitions of what a failed run ends with: the lab's faults, pings, bandwidths, waits and pulls."""

import json
from collections import Counter
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import as_dicts
from ansible_collections.gb10.cluster.plugins.module_utils._kube.pod_state import pod_lines
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.causes import BY_ID
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.log import NcclLog
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import judge_all
from ansible_collections.gb10.cluster.plugins.modules import pods_wait
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.action import held, refusal
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.screen import (
    HEIGHT,
    render,
    render_findings,
    render_text,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._fabric.check_matrix import ping_verdict
from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.failure import (
    CONSEQUENCES,
    group_screen,
    merged,
    proof_screen,
    roots,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.obstacles import obstacles
from failed_group import CLOSED, EXPECT, GROUP, TCP, UNREACHABLE, failed_group, log, pod
from kube_samples import FakeApi
from serving_samples import plan
from stored import compare

WIDTH = 100
# Words in a row that may not stand on a screen twice
RUN = 7
RECORDED = json.loads((Path(__file__).parents[3] / "fixtures" / "screens" / "unprivileged.json").read_text())
NO_NETWORK = (
    'cannot find a network-attachment-definition (gb10-rail1-vf0) in namespace (gb10-serving): "gb10-rail1-vf0"'
)
CRASH = {1: ["Loading weights", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 GiB", ""]}
NAD = "Pod gemma-4-31b-it-1-0: FailedCreatePodSandBox: cannot find a network-attachment-definition (gb10-rail1-vf0)"
NOPE = "ErrImagePull: nope"
FAULTS: dict[str, dict[str, Any]] = {
    "unprivileged, as recorded": RECORDED,
    "unprivileged": failed_group([TCP] * 4),
    "no-vf-address": failed_group([UNREACHABLE] * 4),
    "no-vf-address on one rank": failed_group([UNREACHABLE, CLOSED, CLOSED, CLOSED]),
    "unprivileged, and no log could be read": RECORDED | {"causes": [], "logs": {}},
    "unprivileged on one rank": failed_group([(), TCP, (), ()]),
    "a server has no memory": failed_group([()] * 4, CRASH, rank1="crashed with exit code 1"),
    "missing-nad on one rank": failed_group([()] * 4, events=[NAD], rank1="waits for its network"),
    "an image is missing": failed_group([(), ()], events=["Pod x: Failed: Failed to pull image nope"], rank0=NOPE),
    "an image is missing for the second rank": failed_group(
        [(), ()], events=["Pod x: Failed: nope"], rank0="not scheduled: 0/4 nodes", rank1=NOPE
    ),
    "ranks without a pod": failed_group([(), ()], rank0="not scheduled: 0/4 nodes") | {"missing": [2, 3]},
    "missing-nad": failed_group(
        [()] * 4,
        events=[f"Pod {pod(0)}: FailedCreatePodSandBox: {NO_NETWORK}"],
        **{f"rank{rank}": "waits for its network" for rank in range(4)},
    ),
}


def proof(said: list[tuple[str, ...]], remarks: str = "", **more: Any) -> str:
    """Return the screen of a proof that failed with these lines of NCCL."""
    logs = {}
    for rank, lines in enumerate(said):
        logs[pod(rank)] = NcclLog(one_start=True)
        logs[pod(rank)].read(BytesIO("\n".join(log(rank, lines)).encode()).read)
        for process in logs[pod(rank)].processes:
            process.pod = pod(rank)
    judged = judge_all(logs, EXPECT, {pod(rank): rank for rank in range(len(said))})
    ranks = [{"pod": pod(rank), "node": f"spark{rank + 1}"} for rank in range(len(said))]
    found = {"findings": [], "counters": {"agrees": True, "rdma_bytes": 0, "tcp_bytes": 4.2e9, "msg": ""}, "ledger": {}}
    found |= judged | {"reason": judged["msg"], "evidence_files": ["results/t/rank0.log", "results/t/proof.json"]}
    return render(proof_screen(found | more, {"instance": GROUP, "transport": "roce", "ranks": ranks}, remarks), WIDTH)


NOTED = {"key": "NCCL_DEBUG", "value": "INFO", "where": "plan", "reason": "it is noted", "remedy": "Nothing."}
WRONG = {"key": "counters", "value": 0, "where": "spark2", "reason": "no byte moved", "remedy": "Look at the cable."}
FINDINGS = [NOTED | {"severity": "warning"}, WRONG | {"severity": "error"}]
FAILED = [f"rank 0 ({pod(0)}): wrote no log", f"rank 1 ({pod(1)}): used mlx5_9", "the counters were reset"]


def ping(nodes: int, layer: str, reason: str) -> str:
    """Return the message of pings between all hosts that all fail for one reason."""
    hosts = [f"spark{number}" for number in range(1, nodes + 1)]
    results: dict[str, Any] = {
        one: [
            {"host": one, "peer": two, "rail": rail, "vf_index": vf, "ok": False, "layer": layer}
            | {"reason": reason.format(one=one, two=two, address=f"10.10{vf}.0.{number}")}
            for number, two in enumerate(hosts)
            if two != one
            for rail in ("rail0", "rail1")
            for vf in (0, 1)
        ]
        for one in hosts
    }
    return render_text(ping_verdict(results, hosts)["msg"], WIDTH, details="results/failed-pings.txt")


def pods(count: int, reason: str, message: str) -> FakeApi:
    state = {"waiting": {"reason": reason, "message": message}}
    names = [f"gb10-multus-{number:05}" for number in range(count)]
    events = [
        {"type": "Warning", "reason": "Failed", "message": f"{message} for {name}", "count": 9}
        | {"involvedObject": {"kind": "Pod", "name": name, "uid": name}, "lastTimestamp": f"2026-11-28T20:00:{at:02}Z"}
        for at, name in enumerate(names)
    ]
    listed = [
        {
            "metadata": {"name": name, "uid": name, "labels": {}},
            "spec": {"nodeName": f"spark{number + 1}", "containers": []},
            "status": {"phase": "Pending", "containerStatuses": [{"name": "multus", "state": state}]},
        }
        for number, name in enumerate(names)
    ]
    return FakeApi(pods=listed, events=events)


def missing_nad() -> str:
    """Return what serve ends with if a network that the pods of four nodes need is missing (lab/faults/missing-nad)."""
    there = [{"metadata": {"name": name}} for name in ("gb10-rail0-vf0", "gb10-rail0-vf1", "gb10-rail1-vf1")]
    found = obstacles(plan(), there, (), unread=["nodes"])
    text = f"Group {GROUP} can't start in namespace gb10-serving; no group was changed"
    return held(refusal({"msg": text, "findings": as_dicts(found), "report": render_findings(found, WIDTH)}))


REFUSED = 'failed to pull and unpack image "ghcr.io/x:v1": 403 Forbidden'
TEXTS = {
    **{f"group, {name}": render(group_screen(result, GROUP), WIDTH) for name, result in FAULTS.items()},
    "proof, unprivileged": proof([TCP] * 4),
    "proof, no-vf-address": proof([UNREACHABLE] * 4),
    "proof, no-vf-address on one rank": proof([UNREACHABLE, CLOSED, CLOSED, CLOSED]),
    "proof, findings": proof(
        [(), ()], findings=FINDINGS, failures=FAILED, ledger={"verdict": "tcp", "msg": "tcp: 9 MB"}
    ),
    "proof, measurement": proof([(), ()], "rail1 is slow", failures=[], reason="it took too long", evidence_files=[]),
    "refused, missing-nad": missing_nad(),
    "pings of 4 hosts": ping(
        4, "mtu", "{two} at {address} drops packets of 8972 bytes that {one} sends: raise its MTU"
    ),
    "pings of 16 hosts": ping(16, "link", "no answer from {address} ({two}), whose port has no link: check its cable"),
    "pings of 40 hosts": ping(
        40, "mtu", "{two} at {address} drops packets of 8972 bytes that {one} sends: raise its MTU"
    ),
}


def check(text: str, width: int = WIDTH) -> None:
    """Fail if a text is higher or wider than a screen, or says something twice."""
    lines, words = text.splitlines(), text.split()
    assert 0 < len(lines) <= HEIGHT
    assert max(map(len, lines)) <= width
    runs = Counter(" ".join(words[at : at + RUN]) for at in range(len(words) - RUN + 1))
    assert [run for run, count in runs.items() if count > 1 and any(map(str.isalpha, run.split()))] == []


def test_the_screens_are_those_that_are_stored() -> None:
    compare("failure_screens", {name: text.splitlines() for name, text in TEXTS.items()})


@pytest.mark.parametrize("name", TEXTS)
def test_a_failure_is_one_screen_that_repeats_nothing(name: str) -> None:
    check(TEXTS[name])
    for width in (80, 200) if name.startswith("group, ") else ():
        check(render(group_screen(FAULTS[name.removeprefix("group, ")], GROUP), width), width)


@pytest.mark.usefixtures("simulated_clock")
@pytest.mark.parametrize("count", [1, 4, 40])
def test_a_wait_for_pods_that_have_the_same_trouble_says_it_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    pods(count, "ImagePullBackOff", REFUSED).install(monkeypatch)
    given = {"kubeconfig": "/none", "context": "gb10", "namespace": "kube-system", "label_selector": "app=multus"}
    with patch_module_args(given | {"count": count, "timeout": 1}), pytest.raises(SystemExit):
        pods_wait.main()
    message = json.loads(capsys.readouterr().out)["msg"]
    assert message.count("403 Forbidden") == 1
    check(render_text(message, WIDTH, details="results/failed-pods-wait.txt"))


def test_a_pull_that_all_nodes_wait_for_names_its_cause_once() -> None:
    api = pods(16, "ErrImagePull", REFUSED)
    assert isinstance(api.pods, list)
    (line,) = pod_lines(api.pods, api.events, "kubectl")
    assert line.count("403 Forbidden") == 1
    assert line.startswith("pods gb10-multus-00000 on spark1, gb10-multus-00001 on spark2, ")
    assert " and 12 more: Pending, ErrImagePull: " in line


def test_the_readme_shows_the_screen_of_the_demo() -> None:
    shown = render(group_screen(RECORDED, GROUP)).strip()
    assert f"```text\n{shown}\n```" in (Path(__file__).parents[5] / "README.md").read_text(encoding="utf-8")


def test_the_screen_of_four_ranks_on_tcp_has_a_tenth_of_the_lines_of_the_message() -> None:
    logs = {rank: [f"line {number}" for number in range(15)] for rank in range(4)}
    result = failed_group([TCP] * 4, logs)
    assert result["msg"].count("NCCL sees no usable RDMA device") > 8
    assert len(result["msg"].splitlines()) > 70
    text = render(group_screen(result, GROUP))
    assert (len(text.splitlines()), text.count("RDMA device:")) == (6, 1)


def cause(name: str, rank: int | None, confidence: float) -> dict[str, Any]:
    return {
        "id": name,
        "rank": rank,
        "source": f"g-{rank}-0",
        "summary": f"{name}.",
        "remedy": f"Mend {name}.",
        "line": "",
        "confidence": confidence,
    }


ROOTS: dict[str, list[tuple[str, int | None, float]]] = {
    "one cause of a rank": [("no_rdma_device", 0, 0.7), ("hca_selection", 0, 0.5)],
    "a consequence": [("peer_gone", 1, 0.6), ("reg_mr", 0, 0.9)],
    "consequences alone": [("peer_gone", 1, 0.6), ("bootstrap", 0, 0.4)],
    "a hint": [("reg_mr", 0, 0.2)],
    "no rank": [("reg_mr", None, 0.9), ("gid_changed", None, 0.6)],
    "a cause of two ranks": [("reg_mr", 2, 0.9), ("reg_mr", 0, 0.9), ("gid_changed", 1, 0.5)],
    "a cause of all ranks": [("reg_mr", rank, 0.9) for rank in range(3)],
}


def test_a_rank_has_one_cause_which_is_said_once_and_consequences_give_way() -> None:
    found = {}
    for name, causes in ROOTS.items():
        left = roots(cause(*one) for one in causes)
        found[name] = [f"{each['id']} of {each['rank']}" for each in left]
        found[name] += [f"{one.text} ({one.who or 'all'})" for one in merged(left, 3)]
    compare("failure_causes", found)


def test_consequences_are_in_the_catalogue() -> None:
    assert set(BY_ID) > CONSEQUENCES
