#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run real NCCL on two GPUs in many settings and judge each log. Needs two GPUs, Python 3.11 and PyTorch.

    python3 tests/gpu/nccl_cases.py --out DIRECTORY

NCCL_HOSTID makes NCCL treat the two ranks as two nodes, so they use a network. Prints a line per case
and writes the logs and ``cases.json``; the exit status is 1 when a verdict is not the expected one.
"""

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "collections"))

from ansible_collections.gb10.cluster.plugins.module_utils._nccl.log import NcclLog
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.sources import open_log
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import Expectation, judge_all

WORKER = """
import os, sys, datetime
import torch, torch.distributed as dist
rank, world, work, meet = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
torch.cuda.set_device(rank)
device = torch.device("cuda", rank)
eager = {"device_id": device} if work == "init" else {}
wait = datetime.timedelta(seconds=40)
dist.init_process_group("nccl", init_method="file://" + meet, rank=rank, world_size=world, timeout=wait, **eager)
if work != "init":
    ones = torch.ones(1 << 20, device=device)
    dist.all_reduce(ones)
    if work == "groups":
        dist.all_reduce(ones, group=dist.new_group(list(range(world))))
        if rank == 0:
            dist.send(ones, 1)
        else:
            dist.recv(ones, 0)
    torch.cuda.synchronize()
    print("RESULT", rank, float(ones[0]), flush=True)
if work == "kill":
    os.kill(os.getpid(), 9)
dist.destroy_process_group()
"""
RDMA = Expectation()
BASE = {"NCCL_DEBUG": "INFO", "NCCL_NVLS_ENABLE": "0"}
TIMEOUT = 120


@dataclass(frozen=True)
class Case:
    """One case: the environment of the ranks, the work that they do, and the expected verdict."""

    name: str
    verdict: str
    evidence: str
    env: dict[str, str] = field(default_factory=dict)
    nodes: int = 2
    work: str = "reduce"
    world: int = 2
    cause: str = ""
    rank_env: dict[int, dict[str, str]] = field(default_factory=dict)
    merged: bool = False
    expect: Expectation = RDMA
    satisfied: bool = False


TCP = Expectation(networks=("Socket",), ranks=2, nodes=2)
CASES = (
    Case("p2p", "intra", "channels", nodes=1),
    Case("p2p-allowed", "intra", "channels", nodes=1, expect=Expectation(allow_intra=True), satisfied=True),
    Case("shm", "intra", "channels", {"NCCL_P2P_DISABLE": "1"}, nodes=1),
    Case("one-node-over-tcp", "socket", "channels", {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}, nodes=1),
    Case("two-nodes", "socket", "channels"),
    Case("two-nodes-expected-tcp", "socket", "channels", expect=TCP, satisfied=True),
    Case("groups", "socket", "channels", work="groups"),
    Case("one-stream", "socket", "channels", work="groups", merged=True),
    Case("tree", "socket", "channels", {"NCCL_ALGO": "Tree"}),
    Case(
        "time-stamps",
        "socket",
        "channels",
        {"NCCL_DEBUG_TIMESTAMP_LEVELS": "ALL", "NCCL_DEBUG_TIMESTAMP_FORMAT": "[%FT%T.%6f] "},
    ),
    Case("net-mask", "socket", "channels", {"NCCL_DEBUG_SUBSYS": "INIT,NET,ENV"}),
    Case("ib-disabled", "socket", "channels", {"NCCL_IB_DISABLE": "1"}, cause="ib_disabled"),
    # NCCL 2.28.9 obeys NCCL_NET without logging it: the verdict is certain, but the log does not show its cause.
    Case("net-socket", "socket", "channels", {"NCCL_NET": "Socket"}),
    Case("hca-wrong", "socket", "channels", {"NCCL_IB_HCA": "enp1s0f0np0"}),
    Case("plugin-missing", "socket", "channels", {"NCCL_NET_PLUGIN": "spcx"}),
    Case("plugin-none", "socket", "channels", {"NCCL_NET_PLUGIN": "none"}),
    Case("debug-file", "socket", "channels", {"NCCL_DEBUG_FILE": "{out}/debug-file.%h.%p.file"}),
    Case("lazy", "socket", "selection", work="init"),
    # A killed process loses the end of its output buffer, which may contain the channel lines.
    Case("killed", "socket", "channels|selection", work="kill"),
    Case("net-ib-forced", "error", "failure", {"NCCL_NET": "IB"}, cause="net_forced_missing"),
    Case("interface-missing", "error", "failure", {"NCCL_SOCKET_IFNAME": "nosuch0"}, cause="no_socket_interface"),
    Case("one-rank-different", "error", "failure", rank_env={1: {"NCCL_NET": "IB"}}, cause="net_forced_missing"),
    Case("warn-only", "unknown", "none", {"NCCL_DEBUG": "WARN"}),
    Case("version-only", "unknown", "none", {"NCCL_DEBUG": "VERSION"}),
    Case("wrong-mask", "unknown", "none", {"NCCL_DEBUG_SUBSYS": "COLL"}),
    Case("one-rank", "unknown", "none", world=1),
)


def run_case(case: Case, out: Path) -> list[Path]:
    """Run the ranks of one case and return the logs that they left."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("NCCL_")}
    with tempfile.TemporaryDirectory() as directory:
        ranks, logs = [], []
        for rank in range(case.world):
            name = f"{case.name}.log" if case.merged else f"{case.name}.rank{rank}.log"
            own = BASE | case.env | case.rank_env.get(rank, {})
            if case.nodes > 1:
                own["NCCL_HOSTID"] = f"node{rank}"
            env = clean | {key: value.replace("{out}", str(out)) for key, value in own.items()}
            log = out / name
            command = [sys.executable, "-c", WORKER, str(rank), str(case.world), case.work, f"{directory}/meet"]
            with log.open("ab") as stream:
                ranks.append(subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, env=env))
            logs.append(log)
        deadline = time.monotonic() + TIMEOUT
        for process in ranks:
            try:
                process.wait(max(1.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    return sorted(set(logs) | set(out.glob(f"{case.name}.*.file")))


def judge_case(case: Case, logs: list[Path]) -> dict[str, Any]:
    """Judge the logs of one case together and compare the verdict with the expected one."""
    read = {}
    for log in logs:
        # The rank's output and its debug file are one source; here only one of them has NCCL's lines.
        if log.suffix == ".file" or not any(other.suffix == ".file" for other in logs):
            with open_log(log) as stream:
                read[log.name] = NcclLog().read(stream.read)
    result = judge_all(read, case.expect)
    causes = [cause["id"] for cause in result["causes"] if cause["confidence"] >= 0.3]
    right = result["verdict"] == case.verdict and result["evidence"] in case.evidence.split("|")
    right = right and (not case.cause or case.cause in causes) and result["satisfied"] == case.satisfied
    return {
        "case": case.name,
        "right": right,
        "expected": [case.verdict, case.evidence, case.cause],
        "verdict": result["verdict"],
        "evidence": result["evidence"],
        "satisfied": result["satisfied"],
        "causes": causes,
        "nccl_versions": result["nccl_versions"],
        "msg": result["msg"],
    }


def main() -> int:
    """Run all cases, three at a time, and print the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, default=Path("nccl-cases"), help="directory for logs and cases.json")
    parser.add_argument("--only", nargs="*", default=[], help="names of cases; all when left out")
    parser.add_argument("--judge", action="store_true", help="judge existing logs without running NCCL")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    logs = options.out / "logs"
    logs.mkdir(exist_ok=True)
    cases = [case for case in CASES if not options.only or case.name in options.only]

    def one(case: Case) -> dict[str, Any]:
        found = sorted(logs.glob(f"{case.name}.*")) if options.judge else run_case(case, logs.resolve())
        return judge_case(case, found)

    results = []
    with ThreadPoolExecutor(3) as pool:
        for result in pool.map(one, cases):
            results.append(result)
            mark = "ok   " if result["right"] else "WRONG"
            print(
                f"{mark} {result['case']:<24} {result['verdict']:<8} {result['evidence']:<10} {result['msg'][:110]}",
                flush=True,
            )
    (options.out / "cases.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    with tarfile.open(options.out / "logs.tar.gz", "w:gz") as archive:
        archive.add(logs, "logs")
    wrong = [result["case"] for result in results if not result["right"]]
    print(
        f"{len(results) - len(wrong)} of {len(results)} cases as expected"
        + (f"; wrong: {', '.join(wrong)}" if wrong else "")
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
