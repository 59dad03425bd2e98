# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that the reader takes time by the length of a log, and little memory."""

import io
import time
import tracemalloc
from itertools import islice

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.log import NcclLog
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import Report
from nccl_lines import SOUND, judge, said


@pytest.mark.parametrize(
    "line",
    [
        "s1:1:1 [0] NCCL INFO comm 0x{0:x} rank 0 nranks 2 cudaDev 0 busId f commId 0x{0:x} - Init START\n",
        "s1:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 2 - Init START\ns1:1:1 [0] NCCL INFO NCCL version 2.28.9+{0}\n",
        "s1:1:1 [0] NCCL INFO Got completion {0} ibv error found set to WARN\n",
    ],
    ids=["unfinished communicators", "restarts", "causes"],
)
def test_cost_grows_with_the_log_and_no_faster(line: str) -> None:
    def cost(count: int) -> float:
        data = "".join(line.format(number) for number in range(count)).encode()
        started = time.process_time()
        Report(NcclLog().read(io.BytesIO(data).read), "log")
        return time.process_time() - started

    # Eight times the lines may cost 32 times as much, which leaves room for a busy machine; a scan of everything before
    # each line costs 64 times as much.
    assert min(cost(4_000) for _run in range(2)) < 32 * max(min(cost(500) for _run in range(3)), 0.005)


@pytest.mark.parametrize(
    "text",
    [
        f"comm 0x1 rank {'1' * 5000} nranks 2 cudaDev 0 busId f commId 0x7 - Init START",
        f"comm 0x1 rank 0 nRanks 2 nNodes {'1' * 5000} localRanks 1 localRank 0 MNNVL 0",
        f"Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/{'1' * 5000}",
        "comm 0x1 rank 0 nranks 2" + " busId a" * 4000 + " commId b" * 4000 + " Init X",
        "comm 0x1 rank 0 nranks 2 " * 9000 + " Init X",
        "NET/IB : Using " + "a" * 200_000,
        "NET/IB :" + " qp 1 " * 30_000 + " mtu x",
        "NET/OFI regMr " * 15_000,
    ],
)
def test_no_line_stops_the_reader(text: str) -> None:
    """NCCL cuts its lines at 1024 bytes; a server may print longer ones."""
    wrong = "Channel 1" * 20_000 + " -> NET/x\n" + "1" * 200_000 + " NET/x\n"
    started = time.process_time()
    report = judge(SOUND + said(text) + f"s1:1:1 [0] NCCL WARN {text}\nNET/x {text}\n" + wrong)
    assert report.verdict.verdict == "ib"
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    "line",
    [
        "s1:1:{0} [0] NCCL INFO comm 0x{0} rank 0 nranks 2 cudaDev 0 busId f commId 0x{0} - Init START\n",
        "s1:1:{0} [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0\n",
    ],
    ids=["communicators", "threads with channels"],
)
def test_memory_does_not_grow_while_a_process_runs_for_days(line: str) -> None:
    lines = (line.format(number).encode() for number in range(16_000))
    tracemalloc.start()
    Report(NcclLog().read(lambda _size: b"".join(islice(lines, 2500))), "log")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # A reader that keeps each line needs 9 and 12 MiB.
    assert peak < 8 << 20


@pytest.mark.parametrize(
    "line",
    [
        "s1:1:1 [0] NCCL INFO {0}\n",
        "s1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/{0}\n",
        "{0} s1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0\n",
    ],
    ids=["statements", "paths", "before the writer"],
)
def test_long_lines_are_not_kept(line: str) -> None:
    lines = (line.format(f"{number} " + "x" * 100_000).encode() for number in range(300))
    tracemalloc.start()
    Report(NcclLog().read(lambda _size: next(lines, b"")), "log")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 << 20
