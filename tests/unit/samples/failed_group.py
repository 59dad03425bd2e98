# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Failed results of module serving_group_info, made from NCCL's lines by the code that runs in pods and on hosts."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._kube import group_status as status
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.log import NcclLog
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.verdict import expectation, judge_all
from ansible_collections.gb10.cluster.plugins.module_utils._pod.gate import History, Seen, decide
from ansible_collections.gb10.cluster.plugins.modules import serving_group_info as info

GROUP = "gemma-4-31b-it"
EXPECT = expectation({"networks": ["IB", "IBext*"], "min_devices": 2})
# A pod without /dev/infiniband: NCCL 2.28.9 finds no device and takes TCP.
TCP = (
    "NCCL version 2.28.9+cuda13.0",
    "NCCL_IB_HCA set by environment to =rocep1s0f0v0,roceP2p1s0f0v0",
    "NET/IB : No device found.",
    "Failed to initialize NET plugin IB",
    "NET/Socket : Using [0]net1:10.100.0.{n}<0>",
    "Using network Socket",
    "ncclCommInitRank comm 0x1 rank {r} nranks 4 cudaDev 0 nvmlDev 0 busId 60 commId 0x7 - Init START",
    "comm 0x1 rank {r} nRanks 4 nNodes 4 localRanks 1 localRank 0 MNNVL 0",
    "ncclCommInitRank comm 0x1 rank {r} nranks 4 cudaDev 0 nvmlDev 0 busId 60 commId 0x7 - Init COMPLETE",
    "Channel 00/0 : {r}[0] -> {o}[0] [send] via NET/Socket/0",
    "Connected all rings, use ring PXN 0 GDR 0",
)
# A VF without an IPv4 address on one rank; the others only lose their connection to it.
UNREACHABLE = (
    "NCCL version 2.28.9+cuda13.0",
    "NET/IB : Using [0]rocep1s0f0v0:1/RoCE [RO]; OOB net1:10.100.0.{n}<0>",
    "NCCL WARN Call to ibv_modify_qp failed with 101 Network is unreachable, on dev rocep1s0f0v0:1, curr state INIT,"
    " next state RTR, local GID index 0, local GID fe80::1, remote GID fe80::2",
)
CLOSED = (
    "NCCL version 2.28.9+cuda13.0",
    "NET/IB : Using [0]rocep1s0f0v0:1/RoCE [RO]; OOB net1:10.100.0.{n}<0>",
    "NCCL WARN socketProgress: Connection closed by remote peer spark1<40000>",
)


def pod(rank: int) -> str:
    return f"{GROUP}-{rank}-0"


def log(rank: int, lines: Sequence[str]) -> list[str]:
    said = (line.format(r=rank, n=rank + 1, o=(rank + 1) % 4) for line in lines)
    return [f"{pod(rank)}:7:7 [0] {'' if line.startswith('NCCL WARN') else 'NCCL INFO '}{line}" for line in said]


def condition(rank: int, lines: Sequence[str], others: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Return reason and message of a rank's condition, as its sidecar writes them."""
    read = NcclLog(one_start=True)
    read.read(BytesIO("\n".join(log(rank, lines)).encode()).read)
    for process in read.processes:
        process.pod = pod(rank)
    judged = judge_all({pod(rank): read}, EXPECT, {pod(rank): rank})
    found = decide(Seen("start", judged, others=others or {}), History(), (), True, 0.0)
    return found.reason, found.message


def failed_group(
    said: Sequence[Sequence[str]],
    logs: Mapping[int, Sequence[str]] | None = None,
    events: Sequence[str] = (),
    **states: Any,
) -> dict[str, Any]:
    """Return the result for a group whose ranks wrote these lines of NCCL; none for a rank that serves.

    ``logs`` are the last lines of the servers, ``states`` the trouble of further ranks: ``rank1="crashed …"``.
    """
    conditions = {rank: condition(rank, lines) for rank, lines in enumerate(said) if lines}
    if 0 in conditions:
        others = {pod(rank): message for rank, (_reason, message) in conditions.items() if rank}
        conditions[0] = condition(0, said[0], others)
    ranks = []
    for number in range(len(said)):
        reason, message = conditions.get(number, ("", ""))
        trouble = states.get(f"rank{number}", f"transport: {message}" if message else "")
        hopeless = reason == "WrongTransport"
        ready = not trouble
        seen = (number, pod(number), f"spark{number + 1}", "Running", ready, True, 0, "", trouble, hopeless)
        ranks.append(status.Rank(*seen, last_exit="", lost=False, failure="", crash="", down=False, event="", note=""))
    causes = [
        each for rank in ranks if not rank.ready for each in info.nccl_causes(rank, log(rank.rank, said[rank.rank]))
    ]
    group = status.Group(ranks)
    shown = {pod(rank): list(lines) for rank, lines in (logs or {}).items()}
    found = {"logs": shown, "causes": causes, "waited": 31.2, "events": list(events)}
    found |= {"hints": info.remedies(list(events), "kubectl")}
    head = f"Group {GROUP} is not ready after 31 s."
    return group.as_dict() | found | {"msg": info.report(group, shown, causes, head, list(events), "kubectl")}
