#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Time the transport verdict and ``grep -c 'via NET/'`` on the same generated logs, with the peak of memory.

There are three logs of 64 ranks: 1 GiB of serving logs with less than 1 % NCCL lines, 256 MiB of NCCL lines that
repeat, and 128 MiB of NCCL lines of which none repeats (time stamps, new addresses, all ranks interleaved). A fourth of
64 MiB is that of two ranks that create one communicator after another. The output is JSON; the exit status is 1 if a
floor is missed. Needs grep and about 1.3 GB of disk space in --dir.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count, cycle
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "nccl_verdict.py"
RANKS = 64
# Size in bytes, intended share of grep's speed, and the floor that indicates a regression.
CASES = {
    "serving": (1 << 30, 0.5, 0.5),
    "nccl": (256 << 20, 0.1, 0.05),
    "fresh": (128 << 20, 0.1, 0.02),
    "setups": (64 << 20, 0.1, 0.01),
}
# What one rank logs while a job of two ranks creates and destroys a communicator, without the writers: NCCL 2.28.9,
# seen on two H100. {main} and {proxy} are threads.
SETUP = """\
{main} Initialized NET plugin IB
{main} Assigned NET plugin IB to comm
{main} Using network IB
{main} ncclCommInitRankConfig {comm} {rank} nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId {shared} - Init START
{main} Bootstrap timings total {time} (create {time}, send {time}, recv {time}, ring {time}, delay 0.000000)
{main} MNNVL busId 0x60 fabric UUID 0.0 cliqueId 0x0 state 0 healthMask 0x0
{main} ncclTopoGetCpuAffinity: Affinity for GPU 0 is empty, ignoring. (GPU affinity =  ; CPU affinity = 0-31).
{main} {comm} {rank} nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0
{main} Channel 00/02 : 0 1
{main} Channel 01/02 : 0 1
{main} Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->1
{main} P2P Chunksize set to 131072
{main} Check P2P Type isAllDirectP2p 1 directMode 0 isAllCudaP2p 1
{proxy} [Proxy Service] Device 0 CPU core {core}
{proxy} [Proxy Service UDS] Device 0 CPU core {core}
{main} threadThresholds 8/8/64 | 16/8/64 | 512 | 512
{main} 2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer
{main} CC Off, workFifoBytes 1048576
{main} ncclCommInitRankConfig {comm} {rank} nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId {shared} - Init COMPLETE
{main} Init timings - ncclCommInitRankConfig: {rank} nranks 2 total 0.01 (kernels 0.00, alloc 0.00, rest 0.00)
{proxy} [Proxy Progress] Device 0 CPU core {core}
{main} Channel 00/0 : 1[1] -> 0[0] [receive] via NET/IB/0
{main} Channel 01/0 : 1[1] -> 0[0] [receive] via NET/IB/0
{main} Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0
{main} Channel 01/0 : 0[0] -> 1[1] [send] via NET/IB/0
{main} Connected all rings, use ring PXN 0 GDR 0
{main} {comm} {rank} nranks 2 cudaDev 0 busId 60 - Destroy COMPLETE"""
MEMORY_MIB = 32


def nccl_lines(rank: int, chance: random.Random) -> Iterator[str]:
    """Yield the lines that one rank logs while it builds one communicator over two rails."""
    head = f"spark{rank // 8}:{1000 + rank}:{1000 + rank} [0] NCCL INFO"
    comm = f"0x{chance.getrandbits(32):x}"
    yield f"{head} NET/IB : Using [0]rocep1s0f0v0:1/RoCE [1]roceP2p1s0f0v0:1/RoCE [RO]; OOB net1:10.100.0.{rank}<0>"
    yield f"{head} Using network IB"
    shared = f"busId f01000 commId 0x{chance.getrandbits(64):x}"
    init = f"{head} ncclCommInitRankConfig comm {comm} rank {rank} nranks {RANKS} cudaDev 0 nvmlDev 0 {shared} - Init"
    yield f"{init} START"
    yield f"{head} comm {comm} rank {rank} nRanks {RANKS} nNodes 8 localRanks 8 localRank {rank % 8} MNNVL 0"
    yield f"{head} Trees [0] 1/-1/-1->{rank}->-1 [1] -1/-1/-1->{rank}->1"
    yield f"{head} threadThresholds 8/8/64 | 512/8/64 | 512 | 512"
    yield f"{init} COMPLETE"
    for channel in range(16):
        peer = (rank + 8) % RANKS
        yield f"{head} Channel {channel:02d}/0 : {rank}[0] -> {peer}[0] [send] via NET/IB/{channel % 2}"
        yield f"{head} Channel {channel:02d}/0 : {peer}[0] -> {rank}[0] [receive] via NET/IB/{channel % 2}"
        yield f"{head} Channel {channel:02d}/0 : {rank}[0] -> {rank ^ 1}[0] via P2P/CUMEM"
    yield f"{head} Connected all rings, use ring PXN 0 GDR 0"


def serving_lines(rank: int, chance: random.Random) -> Iterator[str]:
    """Yield typical lines of a serving rank."""
    for _ in range(100):
        stamp = (
            f"[2026-11-21 {chance.randrange(24):02d}:{chance.randrange(60):02d}:{chance.randrange(60):02d} TP{rank}]"
        )
        running, tokens = chance.randrange(64), chance.randrange(1, 99999)
        yield (
            f"{stamp} Decode batch, #running-req: {running}, #token: {tokens}, token usage: {chance.random():.2f}, "
            f"cuda graph: True, gen throughput (token/s): {chance.random() * 900:.2f}, #queue-req: {tokens % 9}"
        )
        yield f'{stamp} INFO:     10.42.0.{rank}:{tokens % 60000} - "POST /v1/chat/completions HTTP/1.1" 200 OK'


def fresh_lines(chance: random.Random) -> list[str]:
    """Return the lines of all ranks with new addresses, interleaved, each with its time."""
    ranks = [list(nccl_lines(rank, chance)) for rank in range(RANKS)]
    order = [rank for rank, lines in enumerate(ranks) for _ in lines]
    chance.shuffle(order)
    left = [iter(lines) for lines in ranks]
    day, times = chance.randrange(1, 29), sorted(chance.randrange(3600 * 10**6) for _ in order)
    return [
        f"[2026-11-{day:02d} 10:{at // 60_000_000:02d}:{at // 10**6 % 60:02d}.{at % 10**6:06d}] {next(left[rank])}"
        for rank, at in zip(order, times, strict=True)
    ]


def setup_lines(number: int, chance: random.Random) -> list[str]:
    """Return the lines of two ranks that create communicator ``number``; the threads and the identity are new ones."""
    shared, lines = f"0x{chance.getrandbits(64):x}", []
    for rank in range(2):
        names = {
            "main": f"spark{rank}:{1000 + rank}:{1000 + rank} [0] NCCL INFO",
            "proxy": f"spark{rank}:{1000 + rank}:{2000 + number} [0] NCCL INFO",
            "comm": f"comm 0x3fd7b9d{rank}",
            "rank": f"rank {rank}",
            "time": f"{chance.random():.6f}",
            "core": str(chance.randrange(32)),
        }
        lines += SETUP.format(shared=shared, **names).split("\n")
    return lines


def blocks(kind: str) -> Iterator[tuple[list[str], int]]:
    """Yield blocks of lines without end, and how many lines of each are from NCCL."""
    chance = random.Random(1)
    while kind == "fresh":
        yield (lines := fresh_lines(chance)), len(lines)
    numbers = count()
    while kind == "setups":
        yield (lines := setup_lines(next(numbers), chance)), len(lines)
    fixed = []
    for rank in range(RANKS):
        own = list(nccl_lines(rank, chance))
        # 57 NCCL lines among 6000 others are 0.94 %.
        others = [x for _ in range(30) for x in serving_lines(rank, chance)] if kind == "serving" else []
        fixed.append((own + others, len(own)))
    yield from cycle(fixed)


def generate(path: Path, kind: str, size: int) -> dict[str, int]:
    """Write a reproducible log of about ``size`` bytes; return the numbers of NCCL lines and of all lines."""
    made = {"bytes": 0, "lines": 0, "nccl_lines": 0}
    source = blocks(kind)
    with path.open("wb") as stream:
        while made["bytes"] < size:
            lines, own = next(source)
            made["bytes"] += stream.write(("\n".join(lines) + "\n").encode())
            made["lines"] += len(lines)
            made["nccl_lines"] += own
    return made


def judge(path: str) -> dict[str, str | int]:
    """Return the verdict on a log and the number of its channel lines."""
    # Not timed, because the JSON names each of thousands of communicators.
    done = subprocess.run([sys.executable, str(SCRIPT), path, "--json"], check=True, stdout=subprocess.PIPE)
    judged = json.loads(done.stdout)[0]
    channels = sum(n for devices in judged["channels"].values() for n in devices.values())
    return {"verdict": judged["verdict"], "channels": channels}


def timed(command: list[str], runs: int) -> tuple[float, float, float, str]:
    """Return the best CPU and wall seconds of several runs, the maximum memory peak in MiB, and the output.

    The floors use CPU time: both programs use one core, and other load on the machine distorts wall time.
    """
    best, wall, peak, output = float("inf"), float("inf"), 0.0, ""
    for _ in range(runs):
        started = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "LC_ALL": "C"}) as child:
            output = child.stdout.read() if child.stdout else ""
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        wall = min(wall, time.perf_counter() - started)
        best, peak = min(best, usage.ru_utime + usage.ru_stime), max(peak, usage.ru_maxrss / 1024)
    return best, wall, peak, output


def main() -> int:
    """Generate the logs, time both programs, and print the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--dir", type=Path, help="directory of the generated logs, which are deleted afterwards")
    parser.add_argument("--runs", type=int, default=3, help="runs of each command; the best counts")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the logs, as a share of the full ones")
    parser.add_argument("--make", nargs=3, metavar=("KIND", "PATH", "BYTES"), help="only generate one log")
    parser.add_argument("--judge", metavar="PATH", help="only judge one log")
    options = parser.parse_args()
    if options.judge:
        print(json.dumps(judge(options.judge)))
        return 0
    if options.make:
        print(json.dumps(generate(Path(options.make[1]), options.make[0], int(options.make[2]))))
        return 0
    results, missed = {}, False
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        for kind, (size, aim, floor) in CASES.items():
            path = Path(directory) / f"{kind}.log"
            print(f"making {path.name}, {int(size * options.scale) >> 20} MiB", file=sys.stderr)
            # Separate processes generate and judge the log: a program's peak includes the memory of its parent.
            make = [sys.executable, __file__, "--make", kind, str(path), str(int(size * options.scale))]
            made = json.loads(subprocess.run(make, check=True, capture_output=True, text=True).stdout)
            grep, grep_wall, _, found = timed(["grep", "-c", "via NET/", str(path)], options.runs)
            command = [sys.executable, str(SCRIPT), str(path)]
            own, own_wall, peak, _ = timed(command, options.runs)
            judged = json.loads(
                subprocess.run(
                    [sys.executable, __file__, "--judge", str(path)], check=True, stdout=subprocess.PIPE
                ).stdout
            )
            results[kind] = made | {
                "grep_seconds": round(grep, 3),
                "verdict_seconds": round(own, 3),
                "grep_wall_seconds": round(grep_wall, 3),
                "verdict_wall_seconds": round(own_wall, 3),
                "mb_per_second": round(made["bytes"] / own / 1e6, 1),
                "share_of_grep_speed": round(grep / own, 3),
                "aim": aim,
                "floor": floor,
                "peak_mib": round(peak, 1),
                "verdict": judged["verdict"],
                "channels_agree_with_grep": judged["channels"] == int(found),
            }
            missed |= grep / own < floor or peak > MEMORY_MIB or judged != {"verdict": "ib", "channels": int(found)}
            path.unlink()
    print(json.dumps(results, indent=2))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
