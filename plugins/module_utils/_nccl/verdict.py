# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge what NCCL's logs prove about the transport, each source and all of them together. Private to the collection.

Only channel lines prove a transport. A selected network, a list of devices or silence does not (docs/transport.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from .._common.terms import EVIDENCE, Evidence, TransportClass
from . import statements as says
from .causes import BY_ID, EXPLAINED, PINS, Cause
from .log import NcclLog
from .statements import Channels, Communicator, Process, is_tcp, matches, merge_channels

TEXT_REMARK = (
    "This is a text: whoever can make a server print something can forge it. Only files that NCCL itself wrote "
    "(NCCL_DEBUG_FILE) prove a transport"
)
"""What the result says about a text, which is not NCCL's own file."""
_RANK_FIRST = {"error": 0, "mixed": 1, "socket": 2, "unknown": 3}
# A process chose or used a network: its name, how often, and the process.
_Use = tuple[str, int, Process]
Causes = Sequence[Mapping[str, Any]]
Places = Mapping[str, "int | None"]
Pins = Mapping[str, str]


@dataclass(frozen=True)
class Expectation:
    """What a log must prove. The default is RDMA, proved by channel lines.

    ``networks`` are glob patterns of network names (empty: every RDMA network). ``gdr`` None means that GPUDirect RDMA
    is not checked.
    """

    networks: tuple[str, ...] = ()
    evidence: Evidence = "channels"
    ranks: int = 0
    nodes: int = 0
    min_devices: int = 0
    gdr: bool | None = None
    complete: bool = False
    allow_intra: bool = False
    allow_unknown: bool = False


def expectation(options: Mapping[str, Any]) -> Expectation:
    """Make an expectation from plain data (module options, the plan's ``expect``); unknown keys raise ValueError."""
    known = {key: value for key, value in options.items() if value is not None}
    strange = sorted(known.keys() - Expectation.__dataclass_fields__.keys())
    if strange:
        raise ValueError(f"unknown expectation: {', '.join(strange)}")
    if known.get("evidence", "channels") not in EVIDENCE:
        raise ValueError(f"evidence must be one of {', '.join(EVIDENCE)}")
    return Expectation(**known | {"networks": tuple(known.get("networks", ()))})


class Verdict(NamedTuple):
    """What a log, or one of its processes, proves: ``ib``, ``socket``, ``plugin:NAME``, ``mixed``, ``intra``, …"""

    verdict: str
    transport_class: TransportClass
    evidence: Evidence


UNKNOWN = Verdict("unknown", "unknown", "none")
_ERROR = Verdict("error", "unknown", "failure")


def transport_class(network: str, process: Process) -> TransportClass:
    """Return ``rdma``, ``tcp`` or ``unknown`` for the name that NCCL prints for a network."""
    if is_tcp(network):
        return "tcp"
    if matches(network, says.RDMA):
        return "rdma"
    # UCX, libfabric and unknown plugins may run over TCP, but not when they read GPU memory directly.
    if matches(network, says.LIBFABRIC) and process.provider:
        return "tcp" if process.provider.partition(";")[0] in says.TCP_PROVIDERS else "rdma"
    # A NIC may read a GPU's memory in one direction only, which is half of the lines.
    return "rdma" if 0 < sum(count for *_use, count in process.uses()) <= 2 * process.gdr else "unknown"


def promise(process: Process) -> tuple[Evidence, list[str]]:
    """Return the best evidence of a process other than channels, and the networks that this evidence names."""
    if process.stays_on_node:
        return "none", []
    if names := list(process.selections):
        # A name that is the start of another name comes from a line that was cut off.
        return "selection", [n for n in names if not any(other != n and other.startswith(n) for other in names)]
    listed = (("IB", process.ib_devices), ("Libfabric", process.provider), ("Socket", process.socket_devices))
    name = next((name for name, seen in listed if seen), "")
    return ("banner", [name]) if name else ("none", [])


def decide(processes: Sequence[Process]) -> Verdict:
    """Return what these processes prove together; the worst verdict counts."""
    found = [
        (network, count, process)
        for process in processes
        for network, count in [(name, number) for name, _device, number in process.uses()] or process.collnet.items()
    ]
    level: Evidence = "channels"
    if not found:
        kinds = {BY_ID[identity].kind for process in processes for identity in process.hits}
        if "init" in kinds:
            return _ERROR
        if any(process.intra for process in processes) and not any(process.leaves_node for process in processes):
            return Verdict("intra", "intra", "channels") if _is_intra(processes) else UNKNOWN
        level = max((promise(process)[0] for process in processes), key=EVIDENCE.index, default="none")
        if level in ("none", "banner") and kinds & {"fatal", "failure"}:
            return _ERROR
    return _used(found + [(network, 1, process) for network, process in _promised(processes, level)], level)


def _used(found: Sequence[_Use], level: Evidence) -> Verdict:
    """Return the verdict on these networks, of which the most frequent one gives the name."""
    names: Counter[str] = Counter()
    for network, count, _process in found:
        names[network] += count
    classes = {transport_class(network, process) for network, _count, process in found}
    if not names:
        return UNKNOWN
    if len(classes) > 1 and (len(names) > 1 or classes == {"rdma", "tcp"}):
        return Verdict("mixed", "mixed", level)
    # The ranks use one network, and some do not say over what. TCP anywhere is TCP.
    kind: TransportClass = "tcp" if "tcp" in classes else "unknown" if "unknown" in classes else "rdma"
    name = names.most_common(1)[0][0]
    return Verdict({"IB": "ib", "Socket": "socket"}.get(name, f"plugin:{name}"), kind, level)


def _is_intra(processes: Sequence[Process]) -> bool:
    """Tell whether all paths stay inside nodes; several hosts, or a torn line, may also mean an unseen network."""
    used = [process for process in processes if process.intra or process.communicators]
    whole = not any(process.torn for process in processes)
    return whole and (len({process.host for process in used}) < 2 or all(process.inside for process in used))


def _promised(processes: Sequence[Process], level: Evidence) -> Iterator[tuple[str, Process]]:
    """Yield networks that were selected but not used yet; they must have the same transport as those in use."""
    lists_ib = any(process.ib_devices for process in processes)
    for process in processes:
        if process.dropped_tcp:
            yield process.dropped_tcp, process
        for comm in process.communicators.values():
            # An unrecognised network name, which may be torn, does not count as a different transport.
            idle = comm.crosses_nodes is not False and not comm.channels and not process.inside
            if idle and comm.network and transport_class(comm.network, process) != "unknown":
                yield comm.network, process
        own, networks = promise(process)
        # NCCL 2.4 prints the Socket banner first, even if it finds another network later.
        too_early = own == "banner" and networks == ["Socket"] and lists_ib and "no_rdma_device" not in process.hits
        if not process.channels and not process.inside and own != "none" and own in (level, "selection"):
            yield from ((network, process) for network in networks if not too_early)


class Report:
    """The judgement of one source; ``failures`` say in words why the expectation is not met."""

    def __init__(self, log: NcclLog, source: str, expect: Expectation | None = None) -> None:
        expect = expect or Expectation()
        self.source, self.own_files, self.mute = source, log.own_files, log.mute
        self.processes, self.earlier = log.processes, log.earlier
        self.version = next((p.version for p in log.processes if p.version), log.version)
        self.verdict = UNKNOWN if log.mute else decide(log.processes)
        self.channels = merge_channels(log.processes)
        self.causes = ranked(log.processes, source)
        hits = {identity for process in log.processes for identity in process.hits}
        # What stopped NCCL, at once or later. It does not change the proved transport.
        self.troubles = sorted(hit for hit in hits if BY_ID[hit].kind in ("init", "fatal", "failure"))
        self.complete = all(comm.finished for comm in _begun(log.processes))
        self.failures = [*_transport(self, expect), *_sound(self, expect), *_numbers(self, expect)]
        self.satisfied = not self.failures

    @property
    def msg(self) -> str:
        """Return the judgement in one line."""
        head = f"{self.source}: {self.verdict.verdict} ({_shown(self.channels) or self.verdict.evidence})"
        if self.satisfied:
            return head + (f", not healthy: {', '.join(self.troubles)}" if self.troubles else "")
        return f"{head}: {'; '.join(self.failures)}{_because(self.causes)}"

    def as_dict(self) -> dict[str, Any]:
        """Return the judgement as plain data, with the same keys for every result."""
        return {
            "source": self.source,
            **self.verdict._asdict(),
            "satisfied": self.satisfied,
            "healthy": not self.troubles,
            "failures": self.failures,
            "channels": self.channels,
            "gdr_channels": sum(process.gdr for process in self.processes),
            "intra": dict(sum((process.intra for process in self.processes), Counter())),
            "complete": self.complete,
            "nccl_version": self.version,
            "causes": self.causes,
            "ranks": [_rank(process, self.source) for process in self.processes if process.speaks],
            "earlier_starts": [_rank(process, self.source) for process in self.earlier],
            "msg": self.msg,
        }


def _rank(process: Process, source: str) -> dict[str, Any]:
    names = ("rank", "nranks", "nodes", "network", "complete", "connected", "channels")
    found = []
    for comm in process.communicators.values():
        used = [(name, sum(devices.values()), process) for name, devices in comm.channels.items()]
        # What it proves, regardless of the others.
        verdict = _used(used, "channels")
        if not used and comm.crosses_nodes is not False and comm.network:
            verdict = _used([(comm.network, 1, process)], "selection")
        plain = {name: getattr(comm, name) for name in names}
        found.append({"id": comm.identity, "gdr_channels": comm.gdr} | plain | verdict._asdict())
    return {
        "host": process.host,
        "pid": process.pid,
        "rank": process.rank if process.rank >= 0 else None,
        "pod": process.pod,
        "source": source,
        **decide([process])._asdict(),
        "channels": merge_channels([process]),
        "gdr_channels": process.gdr,
        "nccl_version": process.version,
        "communicators": found,
    }


def _transport(report: Report, expect: Expectation) -> list[str]:
    verdict, kind, level = report.verdict
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
        if wrong := sorted(n for n in names if not matches(n, expect.networks)):
            failures.append(f"{', '.join(wrong)} where {', '.join(expect.networks)} is expected")
    elif kind != "rdma":
        failures.append(f"{verdict} is {'TCP' if kind == 'tcp' else 'not known to be RDMA'}, and RDMA is expected")
    if EVIDENCE.index(level) < EVIDENCE.index(expect.evidence):
        failures.append(f"only the {level} says so, and {expect.evidence} are needed as evidence")
    return failures


def _sound(report: Report, expect: Expectation) -> list[str]:
    (verdict, kind, level), failures = report.verdict, []
    if level in ("none", "failure"):
        return []
    if level == "channels" and verdict != "intra":
        failures += _sound_channels(report)
    elif not any(p.pid and p.has_finished for p in report.processes):
        failures.append("no process with a name (host:pid) is seen to finish the set-up of a communicator")
    started = _begun(report.processes)
    unfinished = sum(not comm.finished for comm in started) + sum(p.abandoned for p in report.processes)
    if unfinished:
        failures.append(f"{unfinished} of {len(started)} communicators never finished their set-up")
    elif expect.complete and not any(p.has_finished for p in report.processes):
        failures.append("no communicator is seen to finish its set-up")
    if broken := {hit for hit in report.troubles if BY_ID[hit].kind != "failure"} - {"gid_changed"}:
        failures.append(f"the transport failed later ({', '.join(sorted(broken))})")
    if kind not in ("tcp", "mixed") and any(_may_hide_tcp(name) for p in report.processes for name in p.torn):
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
    return quiet[:1] + _absent_ranks(report.processes)


def _numbers(report: Report, expect: Expectation) -> list[str]:
    speaking = [process for process in report.processes if process.speaks]
    failures = _counts(speaking, expect)
    for process in speaking:
        who = f"rank {process.rank}" if process.rank >= 0 else (process.host or report.source)
        if expect.min_devices > 1 and "dev_override" in process.hits:
            failures.append(f"{who} uses other devices than its channel lines name (subnet-aware routing)")
        used = [count for *_use, count in process.uses()]
        if used and len(used) < expect.min_devices:
            failures.append(f"{who} uses {len(used)} of {expect.min_devices} devices ({_shown(process.channels)})")
        if expect.gdr is not None and process.channels and bool(process.gdr) != expect.gdr:
            failures.append(f"{who} runs {'with' if process.gdr else 'without'} GPUDirect RDMA")
    return failures


def _counts(processes: Sequence[Process], expect: Expectation) -> list[str]:
    ranks = len(_seen_ranks(processes))
    nodes = max((c.nodes for p in processes if p.speaks for c in p.communicators.values()), default=0)
    return ([f"{ranks} of {expect.ranks} ranks were seen"] if ranks < expect.ranks else []) + (
        [f"{nodes} of {expect.nodes} nodes were seen in one communicator"] if nodes < expect.nodes else []
    )


def _may_hide_tcp(name: str) -> bool:
    # The host name of the next line may follow without a line end, as in NET/Socspark2 or NET/spark2. Therefore only
    # the first letter counts: host names rarely start with a capital.
    other = name[:1].isupper() and not any(full.startswith(name[0]) for full in says.SOCKETS)
    return not other and not name.startswith("gI")


def _jobs(processes: Iterable[Process]) -> dict[tuple[str, int], dict[str, dict[int, int]]]:
    """Return {(commId, ranks): {host: {rank: ranks of its node}}} of the widest communicators."""
    jobs: dict[tuple[str, int], dict[str, dict[int, int]]] = {}
    for process in processes:
        if main := process.main:
            job = (main.shared_id, main.nranks)
            # One process may drive several GPUs, each of which is a rank of the same communicator.
            own = (c for c in process.communicators.values() if (c.shared_id, c.nranks) == job)
            jobs.setdefault(job, {}).setdefault(process.host, {}).update({c.rank: c.local_ranks for c in own})
    return jobs


def _absent_ranks(processes: Iterable[Process]) -> list[str]:
    """Return the missing ranks of jobs on several hosts; the log of one host need not contain other hosts' ranks."""
    absent = []
    for (_shared_id, nranks), hosts in _jobs(processes).items():
        # Nodes of the same name (docker --hostname), or without one, have more ranks than one node has.
        shared = any(0 < local < len(ranks) for ranks in hosts.values() for local in ranks.values())
        if (seen := len(set().union(*hosts.values()))) < nranks and (shared or len(hosts.keys() - {""}) > 1):
            absent.append(f"{seen} of {nranks} ranks of a communicator were seen")
    return absent


def _begun(processes: Iterable[Process]) -> list[Communicator]:
    """Return the communicators of more than one rank that began their set-up."""
    return [c for p in processes for c in p.communicators.values() if c.started and c.nranks > 1]


def _seen_ranks(processes: Iterable[Process]) -> set[tuple[str, int]]:
    """Return the ranks that took part, each with the identity of its widest communicator, which tells groups apart.

    Processes are numbered instead where the log names no communicator.
    """
    speaking = [process for process in processes if process.speaks]
    jobs = _jobs(speaking).items()
    seen = {(shared_id, rank) for (shared_id, _nranks), hosts in jobs for ranks in hosts.values() for rank in ranks}
    return seen or {("", number) for number in range(len(speaking))}


def _shown(channels: Channels) -> str:
    """Return channels as readable text: ``NET/IB/0 x4, NET/IB/1 x4``."""
    parts = (f"NET/{net}/{dev} x{count}" for net, devices in channels.items() for dev, count in devices.items())
    return ", ".join(parts)


def _because(causes: Causes) -> str:
    cause = next((each for each in causes if each["confidence"] >= 0.3), None)
    return f". Probable cause: {cause['summary']}. {cause['remedy']}" if cause else ""


def judge_all(
    logs: Mapping[str, NcclLog], expect: Expectation, places: Places | None = None, pins: Pins | None = None
) -> dict[str, Any]:
    """Return the judgement of all sources in the form of docs/interfaces.md, with the same keys for every result.

    Each source must pass, and all must agree. ``source`` of the result is ``files`` if NCCL wrote all sources to files
    of its own, and else ``text``; ``remark`` says what a text proves. ``places`` maps a source to its expected rank in
    the group, or to None; ``pins`` to the reason why memory can't be pinned there (``PodEnv.pins``).
    """
    places = places or {}
    reports = [Report(log, name, replace(expect, ranks=0, nodes=0)) for name, log in logs.items()]
    processes = [process for report in reports for process in report.processes]
    verdict = _weakest(reports, decide(processes))
    failures = [f"{_who(report, places)}: {text}" for report in reports for text in report.failures]
    if verdict.verdict == "mixed" and not any(report.verdict.verdict == "mixed" for report in reports):
        used = (f"{report.source} {_shown(report.channels) or report.verdict.verdict}" for report in reports)
        failures.insert(0, "the ranks use different transports: " + ", ".join(used))
    failures += _counts(processes, expect)
    absent = _absent_ranks(processes) if verdict.evidence == "channels" else []
    failures += [text for text in absent if not any(text in failure for failure in failures)]
    failures += _misplaced(reports, places)
    if not reports:
        failures.append("there was no log to read")
    causes = [cause for report in reports for cause in report.causes]
    if not any(cause["id"] == "mtu_differs" for cause in causes):
        causes += mtu_differs(processes, "all sources")
    name_pins(causes, pins or {})
    causes.sort(key=lambda c: (-c["confidence"], c["id"]))
    each = [report.as_dict() for report in reports]
    text = any(not log.own_files for log in logs.values())
    return {
        "source": "text" if text else "files",
        "remark": TEXT_REMARK if text else "",
        **verdict._asdict(),
        "satisfied": not failures,
        "healthy": bool(reports) and not any(report.troubles for report in reports),
        "complete": bool(reports) and all(report.complete for report in reports),
        "failures": failures,
        "ranks": [entry for one in each for entry in one["ranks"]],
        "sources": [one | {"ranks": len(one["ranks"])} for one in each],
        "causes": causes,
        "nccl_versions": sorted({report.version for report in reports if report.version}),
        "msg": _message(verdict, reports, failures, causes, len(_seen_ranks(processes))),
    }


def nothing_read(why: str) -> dict[str, Any]:
    """Return the judgement for the case that no log could be read, with the reason as its message."""
    return judge_all({}, Expectation()) | {"failures": [why], "msg": why}


def is_final(result: Mapping[str, Any]) -> bool:
    """Tell whether waiting longer cannot change the judgement: it is satisfied, or a wrong transport is proved."""
    proved = result["evidence"] == "channels" and result["transport_class"] in ("tcp", "mixed")
    return bool(result["satisfied"] or proved or result["verdict"] == "error")


def _weakest(reports: Sequence[Report], together: Verdict) -> Verdict:
    """Return the verdict of all sources with the weakest evidence of any: one silent rank makes the whole unproved."""
    if not reports:
        return together
    worst = min((report.verdict for report in reports), key=lambda each: _RANK_FIRST.get(each.verdict, 9))
    if worst.verdict in ("error", "unknown"):
        return worst
    return together._replace(evidence=min((report.verdict.evidence for report in reports), key=EVIDENCE.index))


def _misplaced(reports: Sequence[Report], places: Places) -> list[str]:
    """Return the sources that run other ranks than expected; this can be told only if one communicator has them all."""
    ranks = {report.source: sorted({rank for _job, rank in _seen_ranks(report.processes)}) for report in reports}
    total = sum(map(len, ranks.values()))
    wrong = []
    for report in reports:
        place, own = places.get(report.source), ranks[report.source]
        widest = max((p.main.nranks for p in report.processes if p.main), default=0)
        if place is not None and widest == total and own != list(range(place * len(own), (place + 1) * len(own))):
            wrong.append(f"{report.source} has place {place} and runs rank {', '.join(map(str, own))} of NCCL")
    return wrong


def _who(report: Report, places: Places) -> str:
    ranks = [process.rank for process in report.processes if process.rank >= 0]
    # A process that failed before it joined a communicator has no rank of NCCL, but its pod has one in the group.
    rank = next((rank for rank in (places.get(report.source), *ranks) if rank is not None), None)
    return report.source if rank is None else f"rank {rank} ({report.source})"


def _message(verdict: Verdict, reports: Sequence[Report], failures: Sequence[str], causes: Causes, count: int) -> str:
    if not failures:
        used = sorted({f"NET/{net}/{dev}" for r in reports for net, devices in r.channels.items() for dev in devices})
        troubles = sorted({trouble for report in reports for trouble in report.troubles})
        later = f"; not healthy: {', '.join(troubles)}" if troubles else ""
        if verdict.verdict == "unknown":
            return f"no log says which transport the ranks use{later}"
        who = "the rank talks" if count == 1 else f"{count} ranks talk"
        return f"{who} over {', '.join(used) or verdict.verdict}, proved by {verdict.evidence}{later}"
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    return f"NCCL transport {verdict.verdict}: {failures[0]}{more}{_because(causes)}"


def _relevant(cause: Cause, process: Process) -> float:
    """Return how much a cause explains, 0 to 1, given the other statements of its process."""
    used = process.channels or process.selections
    found_rdma = any(not is_tcp(name) for name in used) if used else bool(process.ib_devices)
    if cause.kind == "fallback" and found_rdma:
        # RDMA was found, so this fallback message is harmless.
        return 0.05 if cause.id != "ofi_no_provider" else 0.3
    if cause.kind == "fallback" and process.stays_on_node and not process.channels:
        return 0.1
    if cause.id == "use_inline" or (cause.id == "inline_and_prepost" and "use_inline" not in process.hits):
        return 0.0
    return cause.confidence


def _entry(identity: str, process: Process, source: str, line: str, confidence: float) -> dict[str, Any]:
    entry = BY_ID[identity]._asdict() | {"source": process.pod or source, "line": line, "confidence": confidence}
    del entry["pattern"]
    return entry | {"rank": process.rank if process.rank >= 0 else None, "count": 0}


def mtu_differs(processes: Iterable[Process], source: str) -> list[dict[str, Any]]:
    """Return the cause for connections with different MTUs in these processes, or nothing."""
    seen = {mtu: (process, line) for process in processes for mtu, line in process.mtus.items()}
    if len(seen) < 2:
        return []
    cause, (process, line) = BY_ID["mtu_differs"], seen[min(seen)]
    return [_entry(cause.id, process, source, line, cause.confidence) | {"count": 1}]


def ranked(processes: Sequence[Process], source: str) -> list[dict[str, Any]]:
    """Return the causes of all processes, most telling first; one entry per cause with the first line that shows it.

    A cause that another one explains is not listed.
    """
    found = {entry["id"]: entry for entry in mtu_differs(processes, source)}
    for process in processes:
        for identity, (line, count) in process.hits.items():
            if confidence := round(_relevant(BY_ID[identity], process), 2):
                entry = found.setdefault(identity, _entry(identity, process, source, line, confidence))
                entry["count"] += count
                entry["confidence"] = max(entry["confidence"], confidence)
    weak = ("nccl_error", "segfault")
    telling = [entry for entry in found.values() if entry["confidence"] >= 0.3 and entry["id"] not in weak]
    named = {word for entry in telling for word in (entry["id"], entry["kind"])}
    listed = (entry for entry in found.values() if not named.intersection(EXPLAINED.get(entry["id"], ())))
    return sorted(listed, key=lambda c: (-c["confidence"], c["id"]))


def name_pins(causes: Iterable[dict[str, Any]], pins: Mapping[str, str]) -> None:
    """Put the reason why memory could not be pinned into ``reg_mr``; ``pins`` has a key of PINS per source."""
    for cause in causes:
        if cause["id"] == "reg_mr" and (why := PINS.get(pins.get(cause["source"], ""))):
            cause["summary"], cause["remedy"] = why
