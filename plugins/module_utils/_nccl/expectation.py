# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare a report with an expectation, and describe what is missing. Private to the collection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .._common.terms import EVIDENCE, Evidence
from .catalogue import BY_ID
from .log import NcclLog
from .networks import SOCKETS, matches
from .report import Report, absent_ranks, begun, make_report, seen_ranks, shown, speaks
from .verdict import promise


@dataclass(frozen=True)
class Expectation:
    """What a log must prove. The default is RDMA, proved by channel lines.

    ``networks`` are glob patterns of network names (empty: every RDMA network). ``balance`` is the smallest share that
    a rank's least used device may have of its most used one. ``gdr`` None means that GPUDirect RDMA is not checked.
    """

    networks: tuple[str, ...] = ()
    evidence: Evidence = "channels"
    ranks: int = 0
    nodes: int = 0
    min_devices: int = 0
    balance: float = 0.0
    gdr: bool | None = None
    complete: bool = False
    allow_intra: bool = False
    allow_unknown: bool = False


def judge_log(log: NcclLog, source: str, expect: Expectation | None = None) -> Report:
    """Judge the log of one source; ``failures`` of the report say why the expectation is not met."""
    report = make_report(log, source)
    report.failures = [text for check in _CHECKS for text in check(report, expect or Expectation())]
    return report


def _transport(report: Report, expect: Expectation) -> list[str]:
    verdict, kind, level = report.verdict.verdict, report.verdict.transport_class, report.verdict.evidence
    if verdict == "intra":
        return [] if expect.allow_intra else ["all channels stay on one node, so nothing is proved about the network"]
    if verdict == "unknown":
        if expect.allow_unknown:
            return []
        mute = "a server or NCCL started again, and NCCL says nothing since (level below INFO): older lines are void"
        return [mute if report.mute else "nothing in the log says which transport NCCL took"]
    if verdict == "error":
        return ["NCCL failed before it chose a transport"]
    failures = []
    names = set(report.channels)
    if verdict == "mixed" or not names:
        names |= {n for p in report.processes for n in promise(p)[1]}
    if verdict == "mixed":
        failures.append(f"ranks or communicators use different transports ({', '.join(sorted(names))})")
    elif expect.networks:
        wrong = sorted(n for n in names if not matches(n, expect.networks))
        if wrong:
            failures.append(f"{', '.join(wrong)} where {', '.join(expect.networks)} is expected")
    elif kind != "rdma":
        failures.append(f"{verdict} is {'TCP' if kind == 'tcp' else 'not known to be RDMA'}, and RDMA is expected")
    if EVIDENCE.index(level) < EVIDENCE.index(expect.evidence):
        failures.append(f"only the {level} says so, and {expect.evidence} are needed as evidence")
    return failures


def _sound(report: Report, expect: Expectation) -> list[str]:
    verdict, failures = report.verdict, []
    if verdict.evidence in ("none", "failure"):
        return []
    if verdict.evidence == "channels" and verdict.verdict != "intra":
        failures += _sound_channels(report)
    elif not any(p.pid and p.has_finished for p in report.processes):
        failures.append("no process with a name (host:pid) is seen to finish the set-up of a communicator")
    started = begun(report.processes)
    unfinished = sum(not comm.finished for comm in started) + sum(p.abandoned for p in report.processes)
    if unfinished:
        failures.append(f"{unfinished} of {len(started)} communicators never finished their set-up")
    elif expect.complete and not any(p.has_finished for p in report.processes):
        failures.append("no communicator is seen to finish its set-up")
    broken = {h for h in report.troubles if BY_ID[h].kind != "failure"} - {"gid_changed"}
    if broken:
        failures.append(f"the transport failed later ({', '.join(sorted(broken))})")
    torn = [name for process in report.processes for name in process.torn]
    if verdict.transport_class not in ("tcp", "mixed") and any(map(_may_hide_tcp, torn)):
        failures.append("a torn channel line may hide TCP; read the log again")
    return failures


def _sound_channels(report: Report) -> list[str]:
    if not report.channels:
        return ["only collectives inside the network (CollNet) are seen, and no channel between ranks"]
    talking = [p for p in report.processes if p.channels]
    if all(p.stays_on_node for p in talking):
        return ["the channels run between ranks of one node, which proves nothing about the fabric"]
    # NCCL's own files are whole. A text may be an excerpt, which says less and is no less right.
    if report.own_files and not any(p.pid and p.has_finished for p in talking):
        return ["no process with a name (host:pid) and channel lines is seen to finish the set-up of a communicator"]
    quiet = [
        f"rank {p.rank} ({p.host}:{p.pid}) names no network and no other path"
        for p in report.processes
        if p.says_nothing
    ]
    return quiet[:1] + absent_ranks(report.processes)


def _numbers(report: Report, expect: Expectation) -> list[str]:
    failures = []
    speaking = [p for p in report.processes if speaks(p)]
    ranks = seen_ranks(speaking)
    if len(ranks) < expect.ranks:
        failures.append(f"{len(ranks)} of {expect.ranks} ranks were seen")
    nodes = max((c.nodes for p in speaking for c in p.communicators.values()), default=0)
    if nodes < expect.nodes:
        failures.append(f"{nodes} of {expect.nodes} nodes were seen")
    for process in speaking:
        who = f"rank {process.rank}" if process.rank >= 0 else (process.host or report.source)
        if expect.min_devices > 1 and "dev_override" in process.hits:
            failures.append(f"{who} uses other devices than its channel lines name (subnet-aware routing)")
        used = [count for devices in process.channels.values() for count in devices.values()]
        if used and len(used) < expect.min_devices:
            failures.append(f"{who} uses {len(used)} of {expect.min_devices} devices ({shown(process.channels)})")
        elif used and not min(used) >= expect.balance * max(used):
            failures.append(f"{who} uses its devices unequally ({shown(process.channels)})")
        if expect.gdr is not None and process.channels and bool(process.gdr) != expect.gdr:
            failures.append(f"{who} runs {'with' if process.gdr else 'without'} GPUDirect RDMA")
    return failures


_CHECKS: tuple[Callable[[Report, Expectation], list[str]], ...] = (_transport, _sound, _numbers)


def _may_hide_tcp(name: str) -> bool:
    # The host name of the next line may follow without a line end, as in NET/Socspark2 or NET/spark2. Therefore only
    # the first letter counts: host names rarely start with a capital.
    other = name[:1].isupper() and not any(full.startswith(name[0]) for full in SOCKETS)
    return not other and not name.startswith("gI")
