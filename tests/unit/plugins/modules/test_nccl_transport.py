# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the module with files, texts, and pods of a simulated Kubernetes API."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes
import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import ClusterError
from ansible_collections.gb10.cluster.plugins.module_utils._nccl import live
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.sources import SourceError
from ansible_collections.gb10.cluster.plugins.modules import nccl_transport
from kube_samples import FakeApi, pod

REAL = Path(__file__).parents[2] / "fixtures" / "nccl" / "real"
RETURNED = yaml.safe_load(nccl_transport.RETURN)
IB = "\n".join(
    f"gemma-{{rank}}-0:40:40 [0] NCCL INFO {line}"
    for line in (
        "Using network IB",
        "ncclCommInitRankConfig comm 0x1 rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId f01000 commId 0x7 - Init START",
        "comm 0x1 rank {rank} nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0",
        "ncclCommInitRank comm 0x1 rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId f01000 commId 0x7 - Init COMPLETE",
        "Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0",
        "Channel 01/0 : 1[0] -> 0[0] [receive] via NET/IB/1",
        "Connected all rings, use ring PXN 0 GDR 0",
    )
)
EXPECT = {"networks": ["IB", "IBext*"], "ranks": 2, "nodes": 2, "min_devices": 2, "complete": True}


def run(capsys: pytest.CaptureFixture[str], text_proves: bool = True, **arguments: Any) -> tuple[int, dict[str, Any]]:
    with patch_module_args(arguments | {"text_proves": text_proves}), pytest.raises(SystemExit) as stop:
        nccl_transport.main()
    return int(stop.value.code or 0), json.loads(capsys.readouterr().out)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """Return an API whose pods have the given logs. If a pod has a list of logs, each reading returns the next one."""

    def make(**logs: list[str] | Exception) -> list[dict[str, Any]]:
        pods = [pod(name, {"gb10.cluster/rank": name.split("-")[1]}) for name in logs]
        return FakeApi(pods=pods, logs=logs).install(monkeypatch).asked

    monkeypatch.setattr(nccl_transport.time, "sleep", lambda _seconds: None)
    return make


PODS = {"namespace": "gb10-serving", "label_selector": "gb10.cluster/instance=gemma", "container": "sglang"}


def test_all_ranks_on_both_rails_pass(cluster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    asked = cluster(**{f"gemma-{rank}-0": [IB.format(rank=rank)] for rank in (0, 1)})
    status, result = run(capsys, pods=PODS, expect=EXPECT)
    assert (status, result["verdict"], result["evidence"], result["changed"]) == (0, "ib", "channels", False)
    assert result["msg"] == "2 ranks talk over NET/IB/0, NET/IB/1, proved by channels"
    assert [(r["rank"], r["source"], r["channels"]) for r in result["ranks"]] == [
        (0, "gemma-0-0", {"IB": {"0": 1, "1": 1}}),
        (1, "gemma-1-0", {"IB": {"0": 1, "1": 1}}),
    ]
    for rank in (0, 1):
        assert {"pod": f"gemma-{rank}-0", "container": "sglang", "previous": "false"} in asked


def test_one_rank_on_tcp_fails_with_its_name_cause_and_remedy(cluster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    tcp = (REAL / "twohosts-socket.rank1.log").read_text()
    cluster(**{"gemma-0-0": [IB.format(rank=0)], "gemma-1-0": [tcp]})
    status, result = run(capsys, pods=PODS, expect=EXPECT, timeout=30)
    assert (status, result["verdict"], result["satisfied"]) == (1, "mixed", False)
    assert any("rank 1 (gemma-1-0): Socket where IB, IBext* is expected" in text for text in result["failures"])
    assert result["causes"][0]["id"] == "no_rdma_device"
    assert result["causes"][0]["source"] == "gemma-1-0"
    assert "privileged" in result["msg"]


def test_success_and_failure_have_the_same_keys(cluster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    cluster(**{f"gemma-{rank}-0": [IB.format(rank=rank)] for rank in (0, 1)})
    _unused, good = run(capsys, pods=PODS, expect=EXPECT)
    _unused, bad = run(capsys, pods=PODS, expect={**EXPECT, "ranks": 4})
    cluster()
    _unused, none = run(capsys, pods=PODS, expect=EXPECT)
    assert set(good) == set(bad) - {"failed"} == set(none) - {"failed"}
    assert "2 of 4 ranks were seen" in bad["msg"]
    assert none["msg"].startswith("no pod of namespace gb10-serving matches gb10.cluster/instance=gemma")


def test_lazy_connections_are_waited_for(cluster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    early = "\n".join(IB.format(rank=0).splitlines()[:3])
    cluster(**{"gemma-0-0": [early, early, IB.format(rank=0)], "gemma-1-0": [IB.format(rank=1)]})
    status, result = run(capsys, pods=PODS, expect=EXPECT, timeout=60)
    assert (status, result["verdict"]) == (0, "ib")


@pytest.mark.parametrize("error", [SourceError("torn"), ClusterError("torn")])
@pytest.mark.parametrize(("timeout", "looks"), [(0, 1), (9, 2), (9.5, 3)])
def test_logs_that_cannot_be_read_are_no_logs_and_are_read_again_until_the_time_is_over(
    error: Exception, timeout: float, looks: int
) -> None:
    times: list[float] = []

    def judge() -> Any:
        times.append(9.0 * len(times))
        raise error

    result, kept = live.judge_until_final(judge, timeout, lambda: times[-1] if times else 0.0, lambda: None)
    assert (result["failures"], kept, len(times)) == (["torn"], {}, looks)


def test_an_api_that_refuses_is_one_sentence_without_headers(cluster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    refused = kubernetes.client.ApiException(status=403, reason="Forbidden")
    refused.headers = {"Authorization": "Bearer secret"}
    cluster(**{"gemma-0-0": refused})
    status, result = run(capsys, pods=PODS, expect=EXPECT)
    assert (status, result["satisfied"]) == (1, False)
    assert result["msg"].startswith("can't read the log of pod gemma-0-0 (403: Forbidden). Give the kubeconfig's user")
    assert "secret" not in json.dumps(result)


def test_files_text_and_kept_evidence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, result = run(
        capsys,
        files=[str(REAL / "twohosts-socket.rank?.log")],
        expect={"networks": ["Socket"], "ranks": 2, "nodes": 2},
        evidence_dir=str(tmp_path / "kept"),
    )
    assert (status, result["verdict"], len(result["kept"])) == (0, "socket", 3)
    kept = [Path(name) for name in result["kept"]]
    assert [path.stat().st_mode & 0o777 for path in (kept[0].parent, *kept)] == [0o700, *[0o600] * 3]
    assert kept[0].name.endswith("_twohosts-socket.rank0.log.nccl.log")
    assert kept[0].read_text().count("via NET/Socket") == 10
    status, result = run(capsys, text=IB.format(rank=0), _ansible_check_mode=True, evidence_dir=str(tmp_path / "no"))
    assert (status, result["verdict"], result["kept"]) == (0, "ib", [])
    assert not (tmp_path / "no").exists()


def test_a_text_proves_nothing_unless_the_task_says_so(
    cluster: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cluster(**{f"gemma-{rank}-0": [IB.format(rank=rank)] for rank in (0, 1)})
    own, printed = tmp_path / "own.1", tmp_path / "server.log"
    own.write_text(f"gemma-0-0:40:40 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n{IB.format(rank=0)}\n")
    printed.write_text(f"[2026-11-22 12:00:00] server_args=ServerArgs()\n{own.read_text()}")
    device = {**PODS, "log_file": "/dev/stdout"}
    texts: list[dict[str, Any]] = [
        {"text": IB.format(rank=0)},
        {"pods": PODS},
        {"pods": device},
        {"files": [str(printed)]},
        {"files": [str(own), str(printed)]},
    ]
    for given in texts:
        status, refused = run(capsys, False, **given)
        assert (status, refused["source"], refused["verdict"], refused["satisfied"]) == (1, "text", "ib", False)
        assert refused["remark"] in refused["msg"]
        assert "set text_proves where nobody else can send prompts" in refused["msg"]
        status, accepted = run(capsys, True, **given)
        assert (status, accepted["source"], accepted["satisfied"]) == (0, "text", True)
        assert set(accepted) == set(refused) - {"failed"}
    status, result = run(capsys, False, files=[str(own)])
    assert (status, result["source"]) == (0, "files")
    # A text that shows TCP says so, whatever it may prove.
    status, result = run(capsys, False, text=IB.format(rank=0).replace("NET/IB", "NET/Socket"))
    assert (status, result["verdict"]) == (1, "socket")
    assert "text_proves" not in result["msg"]


def test_a_pattern_without_files_fails(capsys: pytest.CaptureFixture[str]) -> None:
    status, result = run(capsys, files=["/nonexistent/*.log"])
    assert status == 1
    assert result["msg"] == "no file matches /nonexistent/*.log; check the path on the host that runs this"


def test_documentation_names_every_option_and_result() -> None:
    options = yaml.safe_load(nccl_transport.DOCUMENTATION)["options"]
    assert set(options["expect"]["suboptions"]) == set(nccl_transport.EXPECT_SPEC)
    assert set(options["pods"]["suboptions"]) == set(nccl_transport.PODS_SPEC)
    assert len(yaml.safe_load(nccl_transport.EXAMPLES)) == 4
    documented = set(RETURNED) - {"proof"}
    assert documented | {"msg", "changed"} == set(
        nccl_transport.run(
            {**dict.fromkeys(("pods", "text", "evidence_dir")), "files": [], "expect": {}, "timeout": 0, "interval": 0},
            False,
        )
    ) | {"changed"}


def example(number: int) -> dict[str, Any]:
    return dict(yaml.safe_load(nccl_transport.EXAMPLES)[number]["gb10.cluster.nccl_transport"])


def test_the_example_for_pods_runs_as_it_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    four = IB.replace("nranks 2", "nranks 4").replace("nRanks 2 nNodes 2", "nRanks 4 nNodes 4")
    names = [f"gemma-{rank}-0" for rank in range(4)]
    pods = [pod(name, {"gb10.cluster/rank": str(rank)}) for rank, name in enumerate(names)]
    files = {name: [four.format(rank=rank)] for rank, name in enumerate(names)}
    # The pods' own logs would raise KeyError: where NCCL has files, only these are read.
    asked = FakeApi(pods=pods, files=files).install(monkeypatch).asked
    status, result = run(capsys, False, **example(0))
    assert (status, result["verdict"], len(result["ranks"])) == (0, "ib", 4)
    selector = "gb10.cluster/instance=gemma-4-31b-it,gb10.cluster/rank"
    assert asked[0] == {"namespace": "gb10-serving", "label_selector": selector}
    assert {(one["container"], one["command"][-1]) for one in asked[1:]} == {("transport", live.LOG_FILES)}
    assert [rank["pod"] for rank in result["ranks"]] == [f"gemma-{rank}-0" for rank in range(4)]


def test_a_pod_that_runs_another_rank_than_its_label_says(cluster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    cluster(**{f"gemma-{place}-0": [IB.format(rank=1 - place)] for place in (0, 1)})
    status, result = run(capsys, pods={**PODS, "rank_label": "gb10.cluster/rank"}, expect=EXPECT)
    assert (status, result["verdict"]) == (1, "ib")
    assert "gemma-0-0 has place 0 and runs rank 1 of NCCL" in result["msg"]


def test_the_examples_for_files_and_text_run_as_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").mkdir()
    for rank in (0, 1):
        (tmp_path / "logs" / f"rank{rank}.log.gz").write_bytes(gzip.compress(IB.format(rank=rank).encode()))
    monkeypatch.chdir(tmp_path)
    assert run(capsys, **example(1))[0] == 0
    given = example(2)
    assert "lookup(" in given["text"]
    given["text"] = (REAL / "twohosts-socket.rank0.log").read_text()
    assert run(capsys, **given)[0] == 0
