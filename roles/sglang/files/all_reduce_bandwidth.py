# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure bandwidth and latency of all-reduce between the pods of a group, with the PyTorch and NCCL of their image.

It measures what all_reduce_perf of nccl-tests measures, by its formulas (PERFORMANCE.md), but without MPI, which cannot
start ranks in other pods. One process per rank; the last line of rank 0 is JSON: bytes, seconds, algbw and busbw in
GB/s, correct, and latency: a list of bytes, p50 and p99 in microseconds for the sizes that decoding uses.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from itertools import pairwise
from typing import Any

LIMIT = 4 * 10**9
# One token of a model with a hidden size of 2048 is 4 KiB; 128 tokens of one with 4096 are 1 MiB.
LATENCY_SIZES = tuple(4096 << power for power in range(9))
ROUNDS = 200
# The server decodes in CUDA graphs, and a single start by the CPU takes longer than a small all-reduce.
IN_GRAPH = 8


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="all-reduce between the pods of a group")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--address", required=True, help="address of rank 0 on the fabric")
    parser.add_argument("--port", type=int, required=True, help="a free port there")
    parser.add_argument("--bytes", type=int, required=True, help="size of the buffer, at most 4 GB")
    parser.add_argument("--iterations", type=int, default=20)
    options = parser.parse_args(arguments)
    if not 0 < options.bytes <= LIMIT:
        parser.error(f"--bytes must be 1 to {LIMIT}: a GB10 takes the buffer from the memory of the running server")
    return options


def bandwidth(size: int, seconds: float, ranks: int) -> dict[str, float]:
    """Return algorithm and bus bandwidth in GB/s of one all-reduce of ``size`` bytes between ``ranks``."""
    algorithm = size / seconds / 1e9
    return {"algbw": round(algorithm, 3), "busbw": round(algorithm * 2 * (ranks - 1) / ranks, 3)}


def percentiles(microseconds: list[float]) -> dict[str, float]:
    """Return the 50th and the 99th percentile."""
    ordered = sorted(microseconds)
    return {name: round(ordered[int(share * (len(ordered) - 1))], 1) for name, share in (("p50", 0.5), ("p99", 0.99))}


def latency(torch: Any, size: int) -> dict[str, float]:
    """Return the time of an all-reduce in a CUDA graph of several ones, over many replays."""
    group = torch.distributed
    buffer = torch.zeros(size // 2, dtype=torch.bfloat16, device="cuda")
    group.all_reduce(buffer)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Other threads of PyTorch may query events during the capture.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _round in range(IN_GRAPH):
            group.all_reduce(buffer)
    for _round in range(10):
        graph.replay()
    marks = [torch.cuda.Event(enable_timing=True) for _mark in range(ROUNDS + 1)]
    torch.cuda.synchronize()
    group.barrier()
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    # NCCL ends a communicator only when no graph holds it.
    graph.reset()
    return {"bytes": size} | percentiles([1000 * a.elapsed_time(b) / IN_GRAPH for a, b in pairwise(marks)])


def measure(torch: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Sum a buffer over all ranks several times; return the figures of this rank."""
    group = torch.distributed
    group.init_process_group(
        "nccl",
        init_method=f"tcp://{options.address}:{options.port}",
        rank=options.rank,
        world_size=options.ranks,
    )
    buffer = torch.full((options.bytes // 4,), float(options.rank + 1), dtype=torch.float32, device="cuda")
    group.all_reduce(buffer)
    expected = options.ranks * (options.ranks + 1) / 2
    correct = bool((buffer == expected).all())
    buffer.zero_()
    for _round in range(5):
        group.all_reduce(buffer)
    torch.cuda.synchronize()
    group.barrier()
    started = time.perf_counter()
    for _round in range(options.iterations):
        group.all_reduce(buffer)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - started) / options.iterations
    size = buffer.numel() * 4
    small = [latency(torch, each) for each in LATENCY_SIZES]
    group.destroy_process_group()
    figures = {"bytes": size, "seconds": seconds, "correct": correct, "latency": small}
    return figures | bandwidth(size, seconds, options.ranks)


def main() -> int:
    """Measure; return 3 if the image has no PyTorch or the pod has no GPU."""
    options = parse_arguments()
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        print("the image has no PyTorch, which this measurement needs", file=sys.stderr)
        return 3
    if not torch.cuda.is_available():
        print("the pod has no GPU that PyTorch can use", file=sys.stderr)
        return 3
    found = measure(torch, options)
    if options.rank == 0:
        print(json.dumps(found), flush=True)
    return 0 if found["correct"] else 1


if __name__ == "__main__":
    sys.exit(main())
