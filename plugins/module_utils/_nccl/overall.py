# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge several sources (pods, files) together: each must pass, and all must agree. Private to the collection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .._common.terms import EVIDENCE
from .causes import mtu_differs, name_pins
from .expectation import Expectation, judge_log
from .log import NcclLog
from .report import Report, absent_ranks, seen_ranks, shown
from .verdict import Verdict, decide

TEXT_REMARK = (
    "This is a text: whoever can make a server print something can forge it. Only files that NCCL itself wrote "
    "(NCCL_DEBUG_FILE) prove a transport"
)
"""What the result says about a text, which is not NCCL's own file."""
_RANK_FIRST = {"error": 0, "mixed": 1, "socket": 2, "unknown": 3}


def expectation(options: Mapping[str, Any]) -> Expectation:
    """Make an expectation from plain data (module options, the plan's ``expect``); unknown keys raise ValueError."""
    known = {key: value for key, value in options.items() if value is not None}
    strange = sorted(known.keys() - Expectation.__dataclass_fields__.keys())
    if strange:
        raise ValueError(f"unknown expectation: {', '.join(strange)}")
    if isinstance(known.get("networks"), (list, tuple)):
        known["networks"] = tuple(known["networks"])
    if known.get("evidence", "channels") not in EVIDENCE:
        raise ValueError(f"evidence must be one of {', '.join(EVIDENCE)}")
    return Expectation(**known)


def judge_all(
    logs: Mapping[str, NcclLog],
    expect: Expectation,
    places: Mapping[str, int | None] | None = None,
    pins: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the judgement of all sources in the form of docs/interfaces.md, with the same keys for every result.

    ``source`` of the result is ``files`` if NCCL wrote all sources to files of its own, and else ``text``; ``remark``
    says what a text proves. ``places`` maps a source to its expected rank in the group, or to None; ``pins`` to
    the reason why memory can't be pinned there (``PodEnv.pins``).
    """
    single = replace(expect, ranks=0, nodes=0)
    reports = [judge_log(log, name, single) for name, log in logs.items()]
    processes = [process for report in reports for process in report.processes]
    verdict = _verdict(reports, decide(processes))
    failures = [f"{_who(report, places or {})}: {text}" for report in reports for text in report.failures]
    if verdict.verdict == "mixed" and not any(report.verdict.verdict == "mixed" for report in reports):
        failures.insert(
            0, "the ranks use different transports: " + ", ".join(f"{r.source} {_used(r)}" for r in reports)
        )
    each = [report.as_dict() for report in reports]
    ranks = [entry for one in each for entry in one["ranks"]]
    count = len(seen_ranks(processes))
    if count < expect.ranks:
        failures.append(f"{count} of {expect.ranks} ranks were seen")
    nodes = max((comm["nodes"] for entry in ranks for comm in entry["communicators"]), default=0)
    if nodes < expect.nodes:
        failures.append(f"{nodes} of {expect.nodes} nodes were seen in one communicator")
    absent = absent_ranks(processes) if verdict.evidence == "channels" else []
    failures += [text for text in absent if not any(text in failure for failure in failures)]
    failures += _misplaced(reports, places or {})
    if not reports:
        failures.append("there was no log to read")
    causes = [cause for report in reports for cause in report.causes]
    if not any(cause["id"] == "mtu_differs" for cause in causes):
        causes += mtu_differs(processes, "all sources")
    name_pins(causes, pins or {})
    causes.sort(key=lambda c: (-c["confidence"], c["id"]))
    text = any(not log.own_files for log in logs.values())
    return {
        "source": "text" if text else "files",
        "remark": TEXT_REMARK if text else "",
        "verdict": verdict.verdict,
        "transport_class": verdict.transport_class,
        "evidence": verdict.evidence,
        "satisfied": not failures,
        "healthy": bool(reports) and not any(report.troubles for report in reports),
        "complete": bool(reports) and all(report.complete for report in reports),
        "failures": failures,
        "ranks": ranks,
        "sources": [one | {"ranks": len(one["ranks"])} for one in each],
        "causes": causes,
        "nccl_versions": sorted({report.version for report in reports if report.version}),
        "msg": _message(verdict, reports, failures, causes, count),
    }


def nothing_read(why: str) -> dict[str, Any]:
    """Return the judgement for the case that no log could be read, with the reason as its message."""
    return judge_all({}, Expectation()) | {"failures": [why], "msg": why}


def is_final(result: Mapping[str, Any]) -> bool:
    """Tell whether waiting longer cannot change the judgement: it is satisfied, or a wrong transport is proved."""
    proved = result["evidence"] == "channels" and result["transport_class"] in ("tcp", "mixed")
    return bool(result["satisfied"] or proved or result["verdict"] == "error")


def _verdict(reports: list[Report], together: Verdict) -> Verdict:
    """Return the verdict of all sources with the weakest evidence of any: one silent rank makes the whole unproved."""
    if not reports:
        return together
    worst = min(reports, key=lambda report: _RANK_FIRST.get(report.verdict.verdict, 9)).verdict
    if worst.verdict in ("error", "unknown"):
        return worst
    weakest = min((report.verdict.evidence for report in reports), key=EVIDENCE.index)
    return replace(together, evidence=weakest)


def _misplaced(reports: list[Report], places: Mapping[str, int | None]) -> list[str]:
    """Return the sources that run other ranks than expected; this can be told only if one communicator has them all."""
    ranks = {report.source: sorted({rank for _host, rank in seen_ranks(report.processes)}) for report in reports}
    total = sum(map(len, ranks.values()))
    wrong = []
    for report in reports:
        place, own = places.get(report.source), ranks[report.source]
        widest = max((p.main.nranks for p in report.processes if p.main), default=0)
        if place is not None and widest == total and own != list(range(place * len(own), (place + 1) * len(own))):
            wrong.append(f"{report.source} has place {place} and runs rank {', '.join(map(str, own))} of NCCL")
    return wrong


def _who(report: Report, places: Mapping[str, int | None]) -> str:
    # A process that failed before it joined a communicator has no rank of NCCL, but its pod has one in the group.
    rank = places.get(report.source)
    if rank is None:
        rank = next((process.rank for process in report.processes if process.rank >= 0), None)
    return report.source if rank is None else f"rank {rank} ({report.source})"


def _used(report: Report) -> str:
    return shown(report.channels) or report.verdict.verdict


def _message(
    verdict: Verdict, reports: list[Report], failures: list[str], causes: list[dict[str, Any]], count: int
) -> str:
    if not failures:
        networks = sorted(
            {f"NET/{net}/{dev}" for r in reports for net, devices in r.channels.items() for dev in devices}
        )
        troubles = sorted({trouble for report in reports for trouble in report.troubles})
        later = f"; not healthy: {', '.join(troubles)}" if troubles else ""
        who = "the rank talks" if count == 1 else f"{count} ranks talk"
        return f"{who} over {', '.join(networks) or verdict.verdict}, proved by {verdict.evidence}{later}"
    because = next((cause for cause in causes if cause["confidence"] >= 0.3), None)
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    text = f"NCCL transport {verdict.verdict}: {failures[0]}{more}"
    return f"{text}. Probable cause: {because['summary']}. {because['remedy']}" if because else text
