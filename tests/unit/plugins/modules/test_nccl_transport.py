# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the module with files, texts, and pods of a simulated Kubernetes API."""

import gzip
from pathlib import Path
from typing import Any

import kubernetes
import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import ClusterError
from ansible_collections.gb10.cluster.plugins.module_utils._nccl import live
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.sources import SourceError
from ansible_collections.gb10.cluster.plugins.modules import nccl_transport
from kube_samples import FakeApi, Response, pod
from module_runs import Step, play, run_module

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


REFUSED = kubernetes.client.ApiException(status=403, reason="Forbidden")
REFUSED.headers = {"Authorization": "Bearer secret"}
PODS = {"namespace": "gb10-serving", "label_selector": "gb10.cluster/instance=gemma", "container": "sglang"}


class Labelled(FakeApi):
    """An API whose pods are those that have logs."""

    def request(self, method: str, path: str, **options: Any) -> Response:
        self.pods = [pod(name, {"gb10.cluster/rank": name.split("-")[1]}) for name in self.logs]
        return super().request(method, path, **options)


class Host:
    """Pods with logs, and a directory with a file of NCCL and the output of a server."""

    def __init__(self, place: Path, patch: pytest.MonkeyPatch) -> None:
        self.place, self.hides, self.api = place, r"(?<=[ /])\w+_(?=twohosts)", Labelled()
        self.options = {"expect": EXPECT, "pods": PODS, "text_proves": True}
        (place / "own.1").write_text(
            f"gemma-0-0:40:40 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n{IB.format(rank=0)}\n"
        )
        (place / "server.log").write_text(f"[2026-11-22 12:00:00] server_args=()\n{(place / 'own.1').read_text()}")
        self.api.install(patch)
        patch.setattr(nccl_transport.time, "sleep", lambda _seconds: None)

    def shows(self) -> dict[str, Any]:
        asked = [" ".join(map(str, ask.values())) for ask in self.api.asked]
        self.api.asked.clear()
        kept = [
            (path, f"{path.stat().st_mode & 0o777:o} {path.name}") for path in sorted(self.place.glob("kept*/**/*"))
        ]
        sockets = [path.read_text().count("via NET/Socket") for path, _words in kept if path.name.endswith(".nccl.log")]
        return {"asked": asked, "in kept": [words for _path, words in kept], "lines with Socket": sockets}


def logs(*ranks: Any, **options: Any) -> Step:
    """Return options for pods with these logs; each reading of a list of logs returns the next one."""

    def step(host: Host) -> dict[str, Any]:
        host.api.logs = {f"gemma-{n}-0": [log] if isinstance(log, str) else log for n, log in enumerate(ranks)}
        return options

    return step


def local(**options: Any) -> Step:
    """Return options for a source on this host; a name of a file is one in the directory of the case."""

    def step(host: Host) -> dict[str, Any]:
        paths = {key: [str(host.place / name) for name in options.get(key, ())] for key in ("files", "evidence_dir")}
        paths |= {"evidence_dir": "".join(paths["evidence_dir"])} if paths["evidence_dir"] else {}
        return {"pods": None, "expect": {}, **options, **{key: value for key, value in paths.items() if value}}

    return step


TEXT, (FIRST, SECOND) = IB.format(rank=0), (IB.format(rank=rank) for rank in (0, 1))
EARLY = "\n".join(FIRST.splitlines()[:3])
TCP = (REAL / "twohosts-socket.rank1.log").read_text()
SOCKETS = {"networks": ["Socket"], "ranks": 2, "nodes": 2}
UNPROVEN: list[Step] = [
    local(text=TEXT),
    logs(FIRST, expect={}),
    logs(FIRST, expect={}, pods={**PODS, "log_file": "/dev/stdout"}),
    local(files=["server.log"]),
    local(files=["own.1", "server.log"]),
]


def proving(step: Any, proves: bool) -> Step:
    return lambda host: {**step(host), "text_proves": proves}


CASES: dict[str, list[Step]] = {
    "both rails": [logs(FIRST, SECOND), logs(FIRST, SECOND, expect={**EXPECT, "ranks": 4}), logs()],
    "one rank on TCP": [logs(FIRST, TCP, timeout=30)],
    "lazy connections": [logs([EARLY, EARLY, FIRST], SECOND, timeout=60)],
    "an API that refuses": [logs(REFUSED)],
    "another rank than the label says": [
        logs(SECOND, FIRST, pods={**PODS, "rank_label": "gb10.cluster/rank"}),
    ],
    "kept evidence": [local(files=[str(REAL / "twohosts-socket.rank?.log")], expect=SOCKETS, evidence_dir=["kept"])],
    "check mode": [local(text=TEXT, evidence_dir=["kept"], check=True)],
    # A text that shows TCP says so, whatever it may prove.
    "texts prove nothing": [
        *(proving(step, False) for step in UNPROVEN),
        proving(local(text=TEXT.replace("NET/IB", "NET/Socket")), False),
    ],
    "texts prove it, where the task says so": [proving(step, True) for step in UNPROVEN],
    "a file of NCCL proves it": [proving(local(files=["own.1"]), False)],
    "no such file": [local(files=["nothing-*.log"])],
}


def test_each_judgement(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    play("nccl_transport", nccl_transport, CASES, Host, capsys, tmp_path)


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
    status, result = run_module(nccl_transport, capsys, **example(0))
    assert (status, result["verdict"], len(result["ranks"])) == (0, "ib", 4)
    selector = "gb10.cluster/instance=gemma-4-31b-it,gb10.cluster/rank"
    assert asked[0] == {"namespace": "gb10-serving", "label_selector": selector}
    assert {(one["container"], one["command"][-1]) for one in asked[1:]} == {("transport", live.LOG_FILES)}
    assert [rank["pod"] for rank in result["ranks"]] == [f"gemma-{rank}-0" for rank in range(4)]


def test_the_examples_for_files_and_text_run_as_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").mkdir()
    for rank in (0, 1):
        (tmp_path / "logs" / f"rank{rank}.log.gz").write_bytes(gzip.compress(IB.format(rank=rank).encode()))
    monkeypatch.chdir(tmp_path)
    assert run_module(nccl_transport, capsys, **example(1) | {"text_proves": True})[0] == 0
    given = example(2)
    assert "lookup(" in given["text"]
    given["text"] = (REAL / "twohosts-socket.rank0.log").read_text()
    assert run_module(nccl_transport, capsys, **given | {"text_proves": True})[0] == 0
