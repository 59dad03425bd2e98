# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hold a report against an expectation and say in words what is missing. Private to the collection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from .catalogue import BY_ID
from .log import NcclLog
from .verdict import EVIDENCE, Report, begun, promise, report_on, seen_ranks, shown, speaks


@dataclass(frozen=True)
class Expectation:
    """What a log has to show. The default is RDMA, proved by channels.

    ``networks`` are glob patterns of network names (empty: any that is RDMA); ``balance`` is the smallest share that a
    rank's least used device may have of the most used one; ``gdr`` None does not care.
    """

    networks: tuple[str, ...] = ()
    evidence: str = "channels"
    ranks: int = 0
    nodes: int = 0
    min_devices: int = 0
    balance: float = 0.0
    gdr: bool | None = None
    complete: bool = False
    allow_intra: bool = False
    allow_unknown: bool = False


def judge(log: NcclLog, source: str, expect: Expectation | None = None) -> Report:
    """Judge what was read from one source; ``failures`` of the report tell why it does not satisfy."""
    report = report_on(log, source)
    report.failures = [text for check in _CHECKS for text in check(report, expect or Expectation())]
    return report


def _transport(report: Report, expect: Expectation) -> list[str]:
    verdict, kind, level = report.verdict.verdict, report.verdict.transport_class, report.verdict.evidence
    if verdict == "intra":
        return [] if expect.allow_intra else ["all channels stay on one node, so nothing is proved about the network"]
    if verdict == "unknown":
        return [] if expect.allow_unknown else ["nothing in the log says which transport NCCL took"]
    if verdict == "error":
        return ["NCCL failed before it took a transport"]
    failures = []
    names = set(report.channels) or {n for p in report.processes for n in promise(p)[1]}
    if verdict == "mixed":
        failures.append(f"ranks or communicators use different transports ({', '.join(sorted(names))})")
    elif expect.networks:
        wrong = sorted(n for n in names if not any(fnmatchcase(n, pattern) for pattern in expect.networks))
        if wrong:
            failures.append(f"{', '.join(wrong)} where {', '.join(expect.networks)} is expected")
    elif kind != "rdma":
        failures.append(f"{verdict} is {'TCP' if kind == 'tcp' else 'not known to be RDMA'}, and RDMA is expected")
    if EVIDENCE.index(level) < EVIDENCE.index(expect.evidence):
        failures.append(f"only the {level} says so, and {expect.evidence} are needed as evidence")
    return failures


def _sound(report: Report, expect: Expectation) -> list[str]:
    if report.verdict.evidence != "channels" or report.verdict.verdict == "intra":
        return []
    failures = []
    if not report.channels:
        failures.append("only collectives inside the network (CollNet) are seen, and no channel between ranks")
    started = begun(report.processes)
    unfinished = [comm for comm in started if not comm.finished]
    if started and (len(unfinished) == len(started) or (expect.complete and unfinished)):
        failures.append(f"{len(unfinished)} of {len(started)} communicators never finished their set-up")
    broken = sorted(
        {h for p in report.processes for h in p.hits if BY_ID[h].kind in ("fatal", "init")} - {"gid_changed"}
    )
    if broken:
        failures.append(f"the transport failed later ({', '.join(broken)})")
    if any(p.channels for p in report.processes) and all(p.stays_on_node for p in report.processes if p.channels):
        failures.append("the channels run between ranks of one node, which proves nothing about the fabric")
    torn = [text for p in report.processes for text in p.torn if _may_hide_tcp(text)]
    if torn and report.verdict.transport_class == "rdma" and not expect.networks:
        failures.append("a torn channel line may hide TCP; read the log again")
    return failures


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
            failures.append(f"{who} was sent to other devices than its channels name (subnet-aware routing)")
        used = [count for devices in process.channels.values() for count in devices.values()]
        if used and len(used) < expect.min_devices:
            failures.append(f"{who} uses {len(used)} of {expect.min_devices} devices ({shown(process.channels)})")
        elif used and min(used) < expect.balance * max(used):
            failures.append(f"{who} uses its devices unequally ({shown(process.channels)})")
        if expect.gdr is not None and process.channels and bool(process.gdr) != expect.gdr:
            failures.append(f"{who} runs {'with' if process.gdr else 'without'} GPUDirect RDMA")
    return failures


_CHECKS: tuple[Callable[[Report, Expectation], list[str]], ...] = (_transport, _sound, _numbers)


def _may_hide_tcp(text: str) -> bool:
    name = text.rpartition("NET/")[2] if "NET/" in text else ""
    return any(full.startswith(name) for full in ("Socket", "FastSocket"))
