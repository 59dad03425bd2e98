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
from module_runs import Step, steps_of

REAL = Path(__file__).parents[2] / "fixtures" / "nccl" / "real"
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
        self.place, self.patch, self.hides, self.api = place, patch, r"(?<=[ /])[\w.-]+_(?=twohosts)", Labelled()
        self.options = {"expect": EXPECT, "pods": PODS, "text_proves": True}
        (place / "own.1").write_text(
            f"gemma-0-0:40:40 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n{IB.format(rank=0)}\n"
        )
        (place / "server.log").write_text(f"[2026-11-22 12:00:00] server_args=()\n{(place / 'own.1').read_text()}")
        self.api.install(patch)
        patch.setattr(nccl_transport.time, "sleep", lambda _seconds: None)

    def shows(self) -> dict[str, Any]:
        asked = sorted(" ".join(map(str, ask.values())) for ask in self.api.asked)
        self.api.asked.clear()
        kept = [
            (path, f"{path.stat().st_mode & 0o777:o} {path.name}")
            for path in sorted(self.place.glob("kept/*"), key=lambda path: path.name[-20:])
        ]
        sockets = [path.read_text().count("via NET/Socket") for path, _words in kept if path.name.endswith(".nccl.log")]
        return {"asked": asked, "in kept": [words for _path, words in kept], "lines with Socket": sockets}


def logs(*ranks: Any, **options: Any) -> Step:
    """Return options for pods with these logs; each reading of a list of logs returns the next one."""

    def step(host: Host) -> dict[str, Any]:
        # Each reading removes one; the next play of the case needs all of them again.
        several = [[log] if isinstance(log, str) else [*log] if isinstance(log, list) else log for log in ranks]
        host.api.logs = {f"gemma-{n}-0": log for n, log in enumerate(several)}
        return options

    return step


def local(**options: Any) -> Step:
    """Return options for a source on this host; a name of a file is one in the directory of the case."""

    def step(host: Host) -> dict[str, Any]:
        paths = {key: [str(host.place / name) for name in options.get(key, ())] for key in ("files", "evidence_dir")}
        paths |= {"evidence_dir": "".join(paths["evidence_dir"])} if paths["evidence_dir"] else {}
        return {**NO_PODS, **options, **{key: value for key, value in paths.items() if value}}

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


def pods_of_example(host: Host) -> dict[str, Any]:
    """NCCL has files in all pods, so nothing else is read. Reading the pods' own logs would fail."""
    four = IB.replace("nranks 2", "nranks 4").replace("nRanks 2 nNodes 2", "nRanks 4 nNodes 4")
    host.api.logs = {f"gemma-{rank}-0": KeyError() for rank in range(4)}
    host.api.files = {f"gemma-{rank}-0": [four.format(rank=rank)] for rank in range(4)}
    return EXAMPLES[0] | {"text_proves": False}


def files_of_example(host: Host) -> dict[str, Any]:
    host.patch.chdir(host.place)
    (host.place / "logs").mkdir()
    for rank in (0, 1):
        (host.place / f"logs/rank{rank}.log.gz").write_bytes(gzip.compress(IB.format(rank=rank).encode()))
    return NO_PODS | EXAMPLES[1]


EXAMPLES = [dict(task["gb10.cluster.nccl_transport"]) for task in yaml.safe_load(nccl_transport.EXAMPLES)[:3]]
NO_PODS: dict[str, Any] = {"pods": None, "expect": None}
CASES: dict[str, list[Step]] = {
    "both rails": [logs(FIRST, SECOND), logs(FIRST, SECOND, expect={**EXPECT, "ranks": 4}), logs()],
    "one rank on TCP": [logs(FIRST, TCP, timeout=30)],
    "lazy connections": [logs([EARLY, EARLY, FIRST], SECOND, timeout=60)],
    "an API that refuses": [logs(REFUSED)],
    "another rank than the label says": [logs(SECOND, FIRST, pods={**PODS, "rank_label": "gb10.cluster/rank"})],
    "kept evidence": [local(files=[str(REAL / "twohosts-socket.rank?.log")], expect=SOCKETS, evidence_dir=["kept"])],
    "check mode": [local(text=TEXT, evidence_dir=["kept"], check=True)],
    # A text that shows TCP says so, whatever it may prove.
    "texts prove nothing": [
        *(proving(step, False) for step in UNPROVEN),
        proving(local(text=TEXT.replace("NET/IB", "NET/Socket")), False),
    ],
    "texts prove it, where the task says so": [proving(step, True) for step in UNPROVEN],
    "a file of NCCL proves it": [proving(local(files=["own.1"]), False)],
    "the examples": [
        pods_of_example,
        files_of_example,
        NO_PODS | EXAMPLES[2] | {"text": (REAL / "twohosts-socket.rank0.log").read_text()},
    ],
    "no such file": [local(files=["nothing-*.log"])],
}
test_each_judgement = steps_of(nccl_transport=(nccl_transport, Host, CASES))


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
