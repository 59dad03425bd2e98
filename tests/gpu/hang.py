#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let ranks of real NCCL hang in six ways, and print what the judge says of what NCCL and the ranks show.

    tests/gpu/hang.py [FAULT]...

Needs PyTorch and one NVIDIA GPU or several, which the ranks share. Each rank has its own NCCL_HOSTID, so NCCL takes
the ranks for hosts with one GPU each, and Socket between them. There are no rails, and the ranks share an address, so a
rank is NCCL's own number.
Rank 1 of four always has the fault. The exit status is the number of faults that no finding names.

Seen on one H200, on two and on four (PyTorch 2.11, NCCL 2.28.9), 2026-11-29: all five are named. NCCL answers at
once, also about a rank that has ended or is stopped; its JSON then lacks a comma. It does not count what a CUDA graph
repeats: stacks tell. 2026-11-30, on two: all six, PyTorch's recorder without RAS.
"""

import faulthandler
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import sglang_two_ranks as two
import torch
import torch.distributed

sys.path.insert(0, str(two.ROOT / "collections"))
sys.path.insert(0, str(two.ROOT / "roles" / "sglang" / "files"))

import start_rank
import witness
from ansible_collections.gb10.cluster.plugins.module_utils._pod.evidence import Evidence
from ansible_collections.gb10.cluster.plugins.module_utils._pod.hang import judge

RANKS, CULPRIT = 4, 1
# Words of the finding for each fault
FAULTS = {
    "stopped": ("rank 1: its process", "is stopped (state T)"),
    "killed": ("NCCL gets no answer from NCCL's rank 1",),
    "late": ("NCCL's rank 1 is behind", "AllReduce"),
    # NCCL counts what is captured, not what is replayed.
    "late in a graph": ("the ranks are at different places: rank 1 in",),
    "different": ("call different collectives", "Broadcast"),
    # As with an NCCL that is older than its RAS: only PyTorch's recorder knows.
    "late without RAS": ("rank 1 is behind in PyTorch's group 0", "all_reduce"),
}


def stacks_of(base: Path) -> Path:
    """Return the directory that is /tmp/gb10-stacks in a container: here all ranks share one /tmp."""
    return base.with_name(f"stacks-{base.name}")


def rank(number: int, base: Path, fault: str) -> None:
    """Reduce until told to have the fault; runs in a process of its own."""
    # As front_door.py does, which needs SGLang's web server.
    own = stacks_of(base)
    own.mkdir()
    stacks = (own / str(os.getpid())).open("w", encoding="utf-8")
    faulthandler.register(witness.SHOW_STACKS, stacks)
    program = own / "witness.py"
    program.write_text(Path(witness.__file__).read_text(encoding="utf-8").replace(str(start_rank.STACKS), str(own)))
    torch.distributed.init_process_group("nccl", rank=number, world_size=RANKS, init_method="tcp://127.0.0.1:20300")
    data = torch.ones(1 << 16, device="cuda")
    torch.distributed.all_reduce(data)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.distributed.all_reduce(data)
    with subprocess.Popen([sys.executable, str(program), str(base)]):
        (base / "ready").touch()
        while True:
            told = number == CULPRIT and (base / "fault").exists()
            if told and fault.startswith("late"):
                time.sleep(600)
            if told and fault == "different":
                torch.distributed.broadcast(data, 0)
            elif fault == "late in a graph":
                graph.replay()
            else:
                torch.distributed.all_reduce(data)
            torch.cuda.synchronize()
            time.sleep(0.01)


def play(fault: str) -> list[str]:
    """Return what the judge says of four ranks of which one has the fault."""
    with tempfile.TemporaryDirectory() as scratch:
        bases = [Path(scratch) / str(number) for number in range(RANKS)]
        ranks = []
        for number, base in enumerate(bases):
            (base / "1").mkdir(parents=True)
            own = os.environ | {
                "CUDA_VISIBLE_DEVICES": str(number % torch.cuda.device_count()),
                "NCCL_HOSTID": f"node{number}",
                "NCCL_SOCKET_IFNAME": "lo",
                "NCCL_DEBUG": "INFO",
                "NCCL_DEBUG_FILE": str(base / "1" / "%h.%p"),
                "NCCL_RAS_ENABLE": "0" if fault == "late without RAS" else "1",
            }
            place = str(start_rank.STACKS), str(stacks_of(base))
            own |= {name: value.replace(*place) for name, value in start_rank.RECORDER.items()}
            argv = [sys.executable, __file__, "--rank", str(number), str(base), fault]
            ranks.append(subprocess.Popen(argv, env=own, start_new_session=True))
        try:
            until = time.monotonic() + 120
            while not all((base / "ready").exists() for base in bases):
                if time.monotonic() > until or any(one.poll() is not None for one in ranks):
                    raise TimeoutError("the ranks have not met")
                time.sleep(0.2)
            if fault in ("stopped", "killed"):
                ranks[CULPRIT].send_signal(signal.SIGSTOP if fault == "stopped" else signal.SIGKILL)
            (bases[CULPRIT] / "fault").touch()
            time.sleep(5)
            with ThreadPoolExecutor(RANKS) as pool:
                given = list(pool.map(lambda base: Evidence(base, (), "/sys").collect(), bases))
            print(json.dumps({"fault": fault, "given": given}), flush=True)
            return judge(given, [""] * RANKS)
        finally:
            for one in ranks:
                os.killpg(one.pid, signal.SIGKILL)
                one.wait()


def main() -> int:
    """Play the faults; returns the number of those that were not named."""
    missed = 0
    for fault in sys.argv[1:] or FAULTS:
        found = play(fault)
        named = all(any(words in text for text in found) for words in FAULTS[fault])
        missed += not named
        print(json.dumps({"fault": fault, "named": named, "found": found}), flush=True)
    return missed


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank(int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
    else:
        sys.exit(main())
