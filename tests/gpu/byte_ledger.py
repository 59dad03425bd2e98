#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the bytes and times that the ledger predicts with those of real SGLang at TP 2 on two GPUs.

    tests/gpu/byte_ledger.py [--logs DIR] [--settings shm socket slow]

Needs what tests/gpu/sglang_two_ranks.py needs. Every setting is one server of two ranks: `shm` over shared memory, as
two ranks of one host; `socket` over NET/Socket on lo, as two hosts; `slow` over NET/Socket with one channel, one socket
and protocol Simple, and lo limited to 1 Gb/s by `tc` (Debian package iproute2) once the server is ready. Each server
decodes three batch sizes that have CUDA graphs, and two that run as the next captured size.
The bytes on lo during the same work over shared memory (Gloo, HTTP) are subtracted from those over Socket.
The time between tokens is predicted from the server over shared memory and the all-reduces measured in each setting: at
least the larger of the fabric's time and the time over shared memory, at most the latter plus the fabric's additional
time. (The CPU prepares a pass while the GPUs compute and exchange the one before, so the times overlap.)
Prints one JSON object, and writes it after each setting; the exit status is 0 only if, over Socket, every predicted
number of bytes is within 10 % of the measured one (a padded batch: within 10 % of its range) and the ledger says `tcp`,
the bytes without NCCL are no more than the ledger allows for the scheduler, every time between tokens is within 10 % of
its predicted range, and every pass of the slow setting takes longer than the same pass over Socket.
"""

import argparse
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import sglang_two_ranks as two

sys.path.insert(0, str(two.ROOT / "collections"))

from ansible_collections.gb10.cluster.plugins.plugin_utils._proof import exchange, ledger
from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.ledger import captured_sizes
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.metrics import parse_metrics

CONFIG = two.TARGET | {
    "hidden_size": 2048,
    "intermediate_size": 4096,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 8192,
}
# Sizes for which CUDA graphs are captured, so that no batch is padded, and two that run as 4 and 8.
BATCHES = (1, 4, 16)
PADDED = (3, 5)
TOKENS = 128
ROUNDS = 3
SETTINGS = {
    "shm": {"NCCL_HOSTID": "one", "NCCL_P2P_DISABLE": "1"},
    "socket": {},
    "slow": {
        "NCCL_PROTO": "Simple",
        "NCCL_MAX_NCHANNELS": "1",
        "NCCL_SOCKET_NTHREADS": "1",
        "NCCL_NSOCKS_PERTHREAD": "1",
    },
}
LIMIT = 0.10
# The all-reduces are measured alone, a minute after the requests: where they take all of the time between tokens, their
# sum was 0.89 of it in one run of two H200 over Socket and 1.08 of it in the next.
TIME_LIMIT = 0.10


def free_port() -> int:
    """Return a port that nothing uses, not even the ranks of an earlier run that was killed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def carried() -> int:
    """Return the bytes that lo has sent since the machine started; every byte between the ranks is sent once."""
    return int(Path("/sys/class/net/lo/statistics/tx_bytes").read_text())


def latency_of_tokens(page: str) -> tuple[float, float]:
    """Return the sum and the number of the times between tokens that the server has observed."""
    found = {}
    for name in ("sum", "count"):
        values = re.findall(rf"^sglang:inter_token_latency_seconds_{name}\{{.*\}} (\S+)$", page, re.MULTILINE)
        found[name] = sum(map(float, values))
    return found["sum"], found["count"]


def decode(batch: int, salt: int) -> dict[str, Any]:
    """Decode a batch of sequences in lockstep; return the bytes on lo, the server's work and the time per token."""
    prompts = [[1 + (salt * 131 + row * 17 + place) % 8000 for place in range(8)] for row in range(batch)]
    sampling = {"max_new_tokens": TOKENS, "ignore_eos": True, "temperature": 0}
    before_page = two.ask("/metrics")
    before, started = carried(), time.monotonic()
    two.ask("/generate", {"input_ids": prompts, "sampling_params": sampling}, timeout=240)
    seconds, moved = time.monotonic() - started, carried() - before
    # The scheduler reports the last passes with a delay.
    time.sleep(1)
    after_page = two.ask("/metrics")
    captured = captured_sizes(json.loads(two.ask("/server_info")))
    work = replace(ledger.work_between(parse_metrics(before_page), parse_metrics(after_page)), captured=captured)
    (sum0, count0), (sum1, count1) = latency_of_tokens(before_page), latency_of_tokens(after_page)
    return {
        "batch": batch,
        "bytes": moved,
        "seconds": round(seconds, 3),
        "itl_ms": round(1000 * (sum1 - sum0) / max(count1 - count0, 1), 3),
        "pass_ms": round(1000 * seconds / work.decode_passes, 3),
        "work": work.__dict__,
    }


def median(batch: int, salt: int) -> dict[str, Any]:
    """Return the round with the median time between tokens; one of a few milliseconds varied by a third."""
    rounds = [decode(batch, salt + number) for number in range(ROUNDS)]
    return sorted(rounds, key=lambda each: each["itl_ms"])[ROUNDS // 2]


def all_reduce(own: dict[str, str], logs: Path, name: str) -> dict[int, float]:
    """Measure all-reduces with the script that the pods have; return seconds by size."""
    script = str(two.ROOT / "roles" / "sglang" / "files" / "all_reduce_bandwidth.py")
    ranks, port = [], free_port()
    for rank in (0, 1):
        argv = [sys.executable, script, "--rank", str(rank), "--ranks", "2", "--address", "127.0.0.1"]
        # The large size only adds bandwidth, and one such all-reduce takes half a second at 1 Gb/s.
        argv += ["--port", str(port), "--bytes", str(1 << 20)]
        ranks.append(two.start(argv, two.environment(rank) | own, logs / f"{name}.all-reduce.rank{rank}.log"))
    try:
        for rank in ranks:
            rank.wait(180)
    finally:
        two.stop(ranks)
    lines = (logs / f"{name}.all-reduce.rank0.log").read_text().splitlines()
    figures = json.loads([line for line in lines if line.startswith("{")][-1])
    return {each["bytes"]: each["p50"] / 1e6 for each in figures["latency"]}


def serve(name: str, models: Path, logs: Path) -> dict[str, Any]:
    """Start a server in one setting, decode all batches, and measure its all-reduces after it ended."""
    own = SETTINGS[name]
    two.PORT, two.DIST = free_port(), free_port()
    ranks = []
    for rank in (0, 1):
        argv = [*two.command(rank, models, eagle=False), "--cuda-graph-max-bs-decode", str(max(BATCHES))]
        ranks.append(two.start(argv, two.environment(rank) | own, logs / f"{name}.rank{rank}.log"))
    try:
        ready = two.wait_until_ready(ranks)
        # Not before: a start moves 32 MB per all-reduce while it captures prefill graphs, minutes at 1 Gb/s.
        with slow_lo() if name == "slow" else nullcontext():
            # The first passes compile kernels.
            warm = [decode(batch, salt) for salt, batch in enumerate((*BATCHES, *PADDED))]
            idle = carried()
            time.sleep(2)
            idle = (carried() - idle) // 2
            loads = [median(batch, 10 * (1 + place)) for place, batch in enumerate((*BATCHES, *PADDED))]
            two.stop(ranks)
            times = all_reduce(own, logs, name)
    finally:
        two.stop(ranks)
    return {
        "ready_s": round(ready, 1),
        "idle_bytes_per_s": idle,
        "first": [load["bytes"] for load in warm],
        "loads": loads,
        "all_reduce_seconds": times,
    }


@contextmanager
def slow_lo() -> Iterator[None]:
    """Limit lo to 1 Gb/s. One channel with protocol Simple alone was not slower than Socket on two H100.

    The burst is two packets, and the packets are those of a fabric, because a pause of the ranks saves up a burst: with
    256 KiB the fabric carried the bytes of 2 ms of computation for nothing.
    """
    argv = ["tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", "1gbit", "burst", "18kb", "latency", "100ms"]
    mtu = Path("/sys/class/net/lo/mtu")
    before = mtu.read_text()
    mtu.write_text("9000")
    try:
        subprocess.run(argv, check=True)
        yield
    finally:
        subprocess.run(["tc", "qdisc", "del", "dev", "lo", "root"], check=True)
        mtu.write_text(before)


def compare_bytes(seen: dict[str, Any]) -> list[dict[str, Any]]:
    """Compare predicted bytes with measured ones, for each batch size over Socket."""
    shape, split = exchange.Shape.read(CONFIG), exchange.Split(nodes=2, tp=2, pp=1)
    rows = []
    for load, other in zip(seen["socket"]["loads"], seen["shm"]["loads"], strict=True):
        predicted = exchange.predict(shape, split, exchange.Work(**load["work"]))
        # lo sends what rank 0 sends and what rank 1 sends: as much as one rank sends and receives.
        measured = load["bytes"] - other["bytes"]
        entry = ledger.judge(predicted, 0, measured)
        rows.append(
            {
                "batch": load["batch"],
                "measured": measured,
                "without_nccl": other["bytes"],
                # While a batch is decoded, the server does not wait for requests.
                "scheduler_at_most": ledger.scheduler_bytes(0, exchange.Work(**other["work"])),
                "predicted": round(predicted.usual),
                "low": round(predicted.low),
                "high": round(predicted.high),
                "error": round(predicted.usual / measured - 1, 4),
                "within": predicted.low * (1 - LIMIT) <= measured <= predicted.high * (1 + LIMIT),
                "verdict": entry.verdict,
                "nothing_moved": ledger.judge(predicted, 0, other["bytes"]).verdict,
            }
        )
    return rows


def compare_times(seen: dict[str, Any]) -> list[dict[str, Any]]:
    """Compare the predicted fabric time per decode pass with the measured time between tokens."""
    shape, split = exchange.Shape.read(CONFIG), exchange.Split(nodes=2, tp=2, pp=1)
    rows, alone = [], {}
    for name, setting in sorted(seen.items(), key=lambda item: item[0] != "shm"):
        for load in setting["loads"]:
            if load["batch"] not in BATCHES:
                # A padded batch takes the time of the next captured size.
                continue
            fabric = 1000 * exchange.fabric_seconds(shape, split, load["batch"], setting["all_reduce_seconds"])
            itl, row = load["itl_ms"], {"setting": name, "batch": load["batch"]}
            row |= {"fabric_ms": round(fabric, 3), "itl_ms": itl, "pass_ms": load["pass_ms"]}
            if name == "shm":
                alone[load["batch"]] = (itl, fabric)
            elif load["batch"] in alone:
                own, own_fabric = alone[load["batch"]]
                low, high = max(fabric, own), own + fabric - own_fabric
                row |= {
                    "predicted_ms": [round(low, 3), round(high, 3)],
                    "within": low * (1 - TIME_LIMIT) <= itl <= high * (1 + TIME_LIMIT),
                }
            rows.append(row)
    return rows


def slower(times: list[dict[str, Any]]) -> bool:
    """Return whether every batch took longer in the slow setting than over Socket, in prediction and measurement."""
    rows = {(row["setting"], row["batch"]): row for row in times}
    if ("slow", BATCHES[0]) not in rows or ("socket", BATCHES[0]) not in rows:
        return True
    return all(
        rows["slow", batch][key] > rows["socket", batch][key] for batch in BATCHES for key in ("fabric_ms", "itl_ms")
    )


def passed(result: dict[str, Any]) -> bool:
    """Return whether the bytes over Socket and the times of every setting were predicted."""
    return (
        "error" not in result
        and bool(result.get("bytes"))
        and all(row["within"] and row["verdict"] == "tcp" for row in result["bytes"])
        and all(abs(row["error"]) <= LIMIT for row in result["bytes"] if row["batch"] in BATCHES)
        and all(row["without_nccl"] <= row["scheduler_at_most"] for row in result["bytes"])
        and all(row.get("within", row["setting"] == "shm") for row in result["times"])
        and slower(result["times"])
    )


def main() -> int:
    """Run the settings and return 0 only if bytes and times hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=Path, default=Path("byte-ledger-logs"), help="where the logs are kept")
    parser.add_argument("--settings", nargs="*", choices=SETTINGS, default=list(SETTINGS))
    options = parser.parse_args()
    options.logs.mkdir(parents=True, exist_ok=True)
    # A run that is terminated must not leave lo limited: the next one would measure that.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    result: dict[str, Any] = {"config": CONFIG}
    seen: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as models:
        two.write_model(Path(models) / "target", CONFIG)
        for name in options.settings:
            try:
                seen[name] = serve(name, Path(models), options.logs)
            except (RuntimeError, OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
                result["error"] = f"{name}: {error}"
            result |= {"seen": seen, "times": compare_times(seen)}
            if {"shm", "socket"} <= seen.keys():
                result["bytes"] = compare_bytes(seen)
            result["passed"] = passed(result)
            (options.logs / "byte-ledger.json").write_text(json.dumps(result, indent=2) + "\n")
            if "error" in result:
                break
    print(json.dumps(result, indent=2))
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
