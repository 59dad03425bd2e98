# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide how a cell ended, write its record, and compute the state of its sweep."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import Any, Literal

from .journal import CONSEQUENCES, Failure, classify, crash_line, quote
from .judge import WORST_FIRST, Status
from .stats import Workload
from .sweep import cell_name

Stage = Literal["serve", "transport", "measure"]
"""The stage at which a cell failed: starting its server, checking the transport of its ranks, or measuring."""


@dataclass(frozen=True)
class Evidence:
    """The results of a cell's tasks as far as it got.

    ``plan`` is its serving plan, empty for a server of which only the URL is known. ``server`` is the server's
    self-description, None until it has answered. ``proof`` is the result of nccl_verify, empty until there is one.
    ``task`` and ``reason`` name the task that failed and its message. ``ranks`` and ``logs`` come from
    serving_group_info.
    """

    plan: Mapping[str, Any] = field(default_factory=dict)
    mtu: int | None = None
    image_ids: Sequence[str] = ()
    kernels: Sequence[str] = ()
    server: Mapping[str, Any] | None = None
    verify: bool = False
    proof: Mapping[str, Any] = field(default_factory=dict)
    measurements: Sequence[Mapping[str, Any]] = ()
    failed: bool = False
    task: str = ""
    reason: str = ""
    ranks: Sequence[Mapping[str, Any]] = ()
    logs: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def stage(self) -> Stage:
        """Return the stage that the cell reached: a stage begins when the evidence of the previous one exists."""
        if self.server is None:
            return "serve"
        return "transport" if self.verify and not self.proof else "measure"


def _unique(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _image_ids(pods: Mapping[str, Any]) -> list[str]:
    """Return the digests of SGLang's images from the result of k8s_info."""
    found = [pod.get("status", {}).get("containerStatuses", []) for pod in pods.get("resources", [])]
    images = [status.get("imageID") for statuses in found for status in statuses if status["name"] == "sglang"]
    return _unique(filter(None, images))


def from_results(results: Mapping[str, Any]) -> Evidence:
    """Return the evidence in the registered results of a cell's tasks; a task that did not run has an empty result."""
    server, failure = results.get("server") or {}, results.get("failure") or {}
    group = results.get("group") or {}
    answers = (results.get("kernels") or {}).get("results", [])
    return Evidence(
        plan=results.get("plan") or {},
        mtu=results.get("mtu"),
        image_ids=_image_ids(results.get("pods") or {}),
        kernels=_unique(", ".join(answer["stdout_lines"]) for answer in answers if answer.get("stdout_lines")),
        server=server.get("server_info"),
        verify=bool(results.get("verify")),
        proof=results.get("proof") or {},
        measurements=(results.get("measured") or {}).get("cells", []),
        failed=bool(failure),
        task=failure.get("task") or "",
        reason=str(failure.get("msg") or ""),
        ranks=group.get("ranks") or [],
        logs=group.get("logs") or {},
    )


def environment(evidence: Evidence, origin: Mapping[str, Any]) -> dict[str, Any]:
    """Return the environment of a cell for its record: first the requested values, then the observed ones.

    ``origin`` describes the measuring side: inventory, commit, versions. There are no requested values for a server of
    which only the URL is known.
    """
    plan, ranks = evidence.plan, evidence.plan.get("ranks") or []
    networks = [network for rank in ranks for network in rank["networks"]]
    asked = {
        "sglang": plan.get("sglang_version", ""),
        "image": plan.get("image", ""),
        "profile": "/".join(filter(None, (plan.get("profile"), plan.get("preset")))),
        "arguments": ranks[0]["argv"] if ranks else [],
        "nodes": [rank["node"] for rank in ranks],
        "networks": _unique(network["name"] for network in networks),
        "rdma_devices": _unique(filter(None, (network["rdma_device"] for network in networks))),
        "mtu": evidence.mtu,
        **origin,
    }
    seen: dict[str, Any] = {}
    if engine := (plan.get("image_verdict") or {}).get("engine"):
        seen["engine"] = engine
    if evidence.image_ids:
        seen["image_id"] = evidence.image_ids
    if evidence.kernels:
        seen["kernel_and_driver"] = evidence.kernels
    if evidence.server is not None:
        seen["server"] = evidence.server
    if evidence.proof:
        seen |= {"nccl": evidence.proof.get("nccl_versions", []), "transport": evidence.proof}
    elif evidence.failed and evidence.stage == "transport":
        seen["transport"] = {"satisfied": False, "msg": evidence.reason}
    return (asked if plan else {}) | seen


SERVER_ERRORS = frozenset({"failed", "infrastructure"})
"""Statuses of a measurement that a dead server may have caused; the server's logs decide."""


def measured_status(measurements: Sequence[Mapping[str, Any]]) -> Status:
    """Return the worst status of the cell's measurements; no measurement is a failure."""
    states: list[Status] = [m["status"] for m in measurements]
    return min(states, key=WORST_FIRST.index) if states else "failed"


def _crash(evidence: Evidence, known: Failure | None) -> Failure | None:
    """Return a failure if a rank died for a reason that matches no signature, with its most informative log line.

    A rank without log lines may have died with its node, so a known failure of another rank takes precedence.
    """
    dead = [r for r in evidence.ranks if r.get("restarts") or str(r.get("trouble", "")).startswith("crashed")]
    line = ""
    for rank in dead:
        said = [text for text in evidence.logs.get(rank["pod"], []) if text.strip()]
        line = line or crash_line(said) or (said[-1] if said and classify(said) is None else "")
    if dead and not line and known is None:
        line = f"rank {dead[0]['rank']} {dead[0].get('trouble') or 'was restarted'}"
    remedy = "Read the last log lines of the ranks; this failure is not a known one."
    return Failure("crash", quote(line), remedy) if line else None


def _ended_from_outside(ranks: Sequence[Mapping[str, Any]]) -> Failure | None:
    """Return what ended a rank without a log message: the loss of its node, or the kernel's out-of-memory killer."""
    for rank in ranks:
        if rank.get("lost"):
            line = f"rank {rank['rank']} was lost with its node {rank.get('node', '')}".strip()
            return Failure("infrastructure", line, "This says nothing about the setting: run the cell again.")
    killed = [r for r in ranks if r.get("last_exit") == "OOMKilled"]
    return classify(f"rank {r['rank']} was killed for lack of memory (OOMKilled)" for r in killed)


def _failure(evidence: Evidence) -> Failure | None:
    """Return why the cell failed: from its ranks' logs, otherwise from the message of the failed task.

    An external cause takes precedence over a rank's unknown death, and both over what the other ranks log about it.
    """
    known = classify(line for lines in evidence.logs.values() for line in lines)
    if known is None or known.kind in CONSEQUENCES:
        known = _ended_from_outside(evidence.ranks) or _crash(evidence, known) or known
    if known is not None:
        return known
    failure = classify(evidence.reason.splitlines())
    # The check of the transport itself failed, unless the cluster did not answer.
    if evidence.failed and evidence.stage == "transport" and (failure is None or failure.kind != "infrastructure"):
        remedy = "Run the verify playbook: it names the rank and the cause."
        return Failure("transport", quote(evidence.reason), remedy)
    return failure


MEASURED = "[serving.verdict.known_engine]"
"""In the message of role sglang if the image resolves a cell to an engine that was measured; no group was stopped."""


def conclude(
    evidence: Evidence, origin: Mapping[str, Any], measured: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the record of a cell: its status, its measurements or its failure with the reason, and its environment.

    ``measured`` has the cells with a result by their engines; a cell that the image resolves to one is its duplicate.
    If all tasks succeeded, the status is that of the measurements. The failure is classified if the server may have
    died or the cell was never measured.
    """
    status: str = "failed" if evidence.failed else measured_status(evidence.measurements)
    record: dict[str, Any] = {"environment": environment(evidence, origin)}
    if MEASURED in evidence.reason and (original := (measured or {}).get(record["environment"].get("engine", ""))):
        return record | {"status": "duplicate", "duplicate_of": original}
    if evidence.failed:
        record |= {"stage": evidence.stage, "task": evidence.task, "reason": evidence.reason}
    else:
        record["measurements"] = evidence.measurements
    failure = _failure(evidence) if status in SERVER_ERRORS else None
    if failure is not None:
        status, record["failure"] = failure.kind, asdict(failure)
    return record | {"status": status}


def took_s(cell: str, records: Sequence[Mapping[str, Any]], now: datetime) -> float | None:
    """Return the seconds since the cell's last start, including the time to serve and verify it."""
    starts = [r["at"] for r in records if r.get("kind") == "start" and r.get("cell") == cell]
    return (now - datetime.fromisoformat(starts[-1])).total_seconds() if starts else None


# Compute the state of a sweep from its plan and journal: cells left, time left, best cell, reason to stop.
#
# Records have ``kind`` (``plan``, ``start``, ``result``) and ``at``, an ISO time. A result also has ``key`` and
# ``workloads_id``, which identify its engine and its work.

NOT_FINAL = frozenset({"infrastructure", "shared"})
"""Statuses that say nothing about the setting: the cluster failed, or others used the server. The cell runs again."""


def workloads_id(workloads: Sequence[Mapping[str, Any]]) -> str:
    """Return a text that is equal for equal workloads; a value that equals its default counts as left out."""
    asked = [Workload(**w) for w in workloads]
    said = [{f.name: getattr(w, f.name) for f in fields(w) if getattr(w, f.name) != f.default} for w in asked]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def last_plan(records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the plan with which the last run began, or an empty one."""
    return next((r for r in reversed(records) if r.get("kind") == "plan"), {"cells": [], "workloads": []})


def single_cell(server: str, preset: str) -> dict[str, Any]:
    """Return name and cells of the plan for one running server: the group of a preset, or only a host name."""
    labels = {"preset": preset} if preset else {"server": server}
    name = f"{server}-{preset}" if preset else server
    cell = {"id": name, "labels": labels, "overlay": {"preset": preset} if preset else {}, "status": "run"}
    return {"sweep": f"bench-{server}", "cells": [cell]}


def identity(cell: str, plan: Mapping[str, Any]) -> dict[str, str]:
    """Return what identifies a result of this plan, whatever the cell's name: the command line and the work."""
    key = next((str(c.get("key", "")) for c in plan["cells"] if c["id"] == cell), "")
    return {"key": key, "workloads_id": workloads_id(plan.get("workloads") or [])}


def current(records: Sequence[Mapping[str, Any]], plan: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the records without results of engines or workloads that the plan no longer has.

    Profile or workloads may have changed since; old and new figures are never mixed. Results without this
    identification are left out too.
    """
    return [r for r in records if r.get("kind") != "result" or identity(r["cell"], plan).items() <= r.items()]


def _results(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [r for r in records if r.get("kind") == "result"]


def remaining(cells: Sequence[Mapping[str, Any]], records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the cells that still have to run; a cell with a final result is done, whatever the result is."""
    done = {r["cell"] for r in _results(records) if r.get("status") not in NOT_FINAL}
    return [c for c in cells if c["status"] == "run" and c["id"] not in done]


def estimate_s(cells: Sequence[Mapping[str, Any]], records: Sequence[Mapping[str, Any]], first_guess_s: float) -> float:
    """Return the seconds that the remaining cells will take, estimated from the finished cells if there are any."""
    short = {*NOT_FINAL, "duplicate"}
    took = [float(r["took_s"]) for r in _results(records) if r.get("took_s") and r.get("status") not in short]
    each = sum(took) / len(took) if took else first_guess_s
    return each * len(remaining(cells, records))


def engines(cell: str, plan: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the cells with a final result by the engine to which the image resolved them, if all else is as in a cell.

    All else is what a key has after the command line: transport, image and variables that are not SGLang's own.
    """

    def rest(name: str) -> str:
        return identity(name, plan)["key"].partition("|")[2]

    final = (r for r in _results(records) if r.get("status") not in {*NOT_FINAL, "duplicate"})
    known = {r.get("environment", {}).get("engine"): r["cell"] for r in final if rest(r["cell"]) == rest(cell)}
    return {engine: name for engine, name in known.items() if engine and name != cell}


def best_so_far(
    cells: Sequence[Mapping[str, Any]], records: Sequence[Mapping[str, Any]]
) -> dict[str, tuple[str, float]]:
    """Return for each workload the cell with the highest mean peak rate in tok/s among those that may be ranked."""
    names = {c["id"]: cell_name(c["labels"]) for c in cells}
    best: dict[str, tuple[str, float]] = {}
    for record in _results(records):
        for measured in record.get("measurements") or []:
            rate = (measured.get("peak_tok_s") or {}).get("mean")
            workload = measured["workload"]["name"]
            if measured["status"] == "ok" and rate and rate > best.get(workload, ("", 0.0))[1]:
                best[workload] = (names.get(record["cell"], record["cell"]), rate)
    return best


def stop_reason(
    rules: Mapping[str, Any], records: Sequence[Mapping[str, Any]], now: datetime, run: str | None = None
) -> str:
    """Return why no further cell may start, or an empty string.

    ``rules``: ``hours`` since the first start of this ``run``; ``infrastructure`` and ``failures``, how many
    consecutive cells may end that way. Only the records of this run count, so that a new run starts counting at zero.
    """
    mine = [r for r in records if run is None or r.get("run") == run]
    starts = [datetime.fromisoformat(r["at"]) for r in mine if r.get("kind") == "start"]
    hours = rules.get("hours")
    if hours is not None and starts and (now - starts[0]).total_seconds() > 3600 * float(hours):
        return f"the sweep's limit of {hours} hours is reached"
    states = [r.get("status") for r in _results(mine)]
    for key, ends in (
        ("infrastructure", lambda s: s in NOT_FINAL),
        ("failures", lambda s: s not in {*NOT_FINAL, "ok", "duplicate"}),
    ):
        limit = rules.get(key)
        if limit and len(states) >= int(limit) and all(map(ends, states[-int(limit) :])):
            which = "a cell" if int(limit) == 1 else f"{limit} cells in a row"
            return f"{which} ended with {', '.join(dict.fromkeys(map(str, states[-int(limit) :])))}"
    return ""


def progress_line(
    cell: str, cells: Sequence[Mapping[str, Any]], records: Sequence[Mapping[str, Any]], first_guess_s: float
) -> str:
    """Return the progress line of a cell that starts: its number, the total, the time left and the best cell so far."""
    total = sum(c["status"] == "run" for c in cells)
    left = len(remaining(cells, records))
    name = next((cell_name(c["labels"]) for c in cells if c["id"] == cell), cell)
    minutes = estimate_s(cells, records, first_guess_s) / 60
    when = f"{minutes / 60:.1f} h" if minutes >= 90 else f"{minutes:.0f} min"
    best = "; ".join(f"{w} {rate:.1f} tok/s ({who})" for w, (who, rate) in best_so_far(cells, records).items())
    return f"cell {total - left + 1} of {total}: {name}; about {when} left; best so far: {best or 'nothing yet'}"
