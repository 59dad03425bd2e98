# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lines as NCCL writes them, whole logs of them, and the reader for both."""

import io

from ansible_collections.gb10.cluster.plugins.module_utils._nccl.log import NcclLog
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import Expectation, Report

INTRA = Expectation(allow_intra=True)


def read(text: str) -> NcclLog:
    return NcclLog().read(io.BytesIO(text.encode()).read)


def judge(text: str, expect: Expectation | None = None) -> Report:
    return Report(read(text), "log", expect)


def said(*lines: str, host: str = "s1", pid: int = 1) -> str:
    return "".join(f"{host}:{pid}:{pid} [0] NCCL INFO {line}\n" for line in lines)


def init(what: str, comm: str = "0x1", rank: int = 0, nranks: int = 2, shared: str = "0x7", device: int = 0) -> str:
    return (
        f"ncclCommInitRank comm {comm} rank {rank} nranks {nranks} cudaDev {device} nvmlDev {device} busId f{device}00"
        f" commId {shared} - Init {what}"
    )


def nodes(count: int, comm: str = "0x1", rank: int = 0, nranks: int = 2) -> str:
    return f"comm {comm} rank {rank} nRanks {nranks} nNodes {count} localRanks 1 localRank 0 MNNVL 0"


def channel(network: str = "IB", device: int = 0) -> str:
    return f"Channel 00/0 : 0[0] -> 1[0] [send] via NET/{network}/{device}"


def other(number: int) -> tuple[str, str, str]:
    """Return the set-up of one more communicator of two nodes."""
    comm = f"0x1{number:x}"
    return init("START", comm, shared=comm), nodes(2, comm), init("COMPLETE", comm, shared=comm)


HALF = "Channel 00/0 : 0[0] -> 1[0] [send] via NET/"


START = ("NCCL version 2.28.9+cuda13.0", "cudaDriverVersion 13000")


P2P = "Channel 00/0 : 0[0] -> 1[0] via P2P/CUMEM"


DONE = (init("START"), nodes(2), init("COMPLETE"))


AGAIN = (init("START", shared="0x8"), nodes(2), init("COMPLETE", shared="0x8"))


IB = "Using network IB"


SOUND = said(IB, *DONE, channel())


COLLECTED = [
    "[pod/g-0-0/sglang] 2026-11-22T10:00:0{0}.1{0}Z {1}",
    "Nov  9 10:00:0{0} spark-1 docker[1{0}]: {1}",
    "[1,0]<stdout>:{1}",
    "\x1b[36m(RayWorker pid={0})\x1b[0m {1}",
    '{{"stream": "stdout", "time": "2026-11-22T10:00:0{0}.1Z", "log": "{1}\\n"}}',
    "11/22/2026 10:00:0{0} AM {1}",
    "worker-1  | {1}",
    "\x1b[32m{1}\x1b[0m",
]


def collected(form: str, log: str) -> str:
    return "".join(form.format(number % 10, line) + "\n" for number, line in enumerate(log.splitlines()))


BARE = "NCCL version 2.28.9+cuda13.0"


# Up to 2.22, NCCL prints its version in this form at every log level.
OLD_BARE = "NCCL version 2.20.5+cuda12.4"
