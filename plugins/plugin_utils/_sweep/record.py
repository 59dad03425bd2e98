# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say how a cell ended, from its measurements and from what its ranks logged. Private to the collection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from .._load.judge import WORST_FIRST
from .failure import FOLLOWS, Failure, classify, crash_line

SERVER_ERRORS = frozenset({"failed", "infrastructure"})
"""States of a measurement behind which a dead server may stand: its logs decide."""


def measured_status(measurements: Sequence[Mapping[str, Any]]) -> str:
    """Return the worst state of the cell's measurements; nothing measured is a failure."""
    states = [m["status"] for m in measurements]
    return min(states, key=WORST_FIRST.index) if states else "failed"


def _crash(
    ranks: Sequence[Mapping[str, Any]], logs: Mapping[str, Sequence[str]], known: Failure | None
) -> Failure | None:
    """Return that a rank died for a reason no signature knows, with the line that tells most of it.

    A rank that logged nothing may have gone with its node, so that what the others say comes first.
    """
    dead = [r for r in ranks if r.get("restarts") or str(r.get("trouble", "")).startswith("crashed")]
    line = ""
    for rank in dead:
        said = [text for text in logs.get(rank["pod"], []) if text.strip()]
        line = line or crash_line(said) or (said[-1] if said and classify(said) is None else "")
    if dead and not line and known is None:
        line = f"rank {dead[0]['rank']} {dead[0].get('trouble') or 'was restarted'}"
    remedy = "Read the ranks' last logs; no known failure looks like this."
    return Failure("crash", line.strip()[:500], remedy) if line else None


def _outside(ranks: Sequence[Mapping[str, Any]]) -> Failure | None:
    """Return what ended a rank from outside, so that its own log says nothing of it: its node, or a lack of memory."""
    for rank in ranks:
        if rank.get("lost"):
            line = f"rank {rank['rank']} went with its node {rank.get('node', '')}".strip()
            return Failure("infrastructure", line, "The cell says nothing of its setting: run it again.")
    killed = [r for r in ranks if r.get("last_exit") == "OOMKilled"]
    return classify(f"rank {r['rank']} was killed for lack of memory (OOMKilled)" for r in killed)


def concluded(
    record: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]], logs: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """Return the record with the state that its evidence gives it.

    A result without a state takes that of its measurements. Where a server may have died, or the cell never came to
    a measurement, the class and the quoted line come from the ranks' logs, then from the message of what failed. What
    ended a rank from outside, then a rank's unknown death, count more than what the other ranks say of it. A cell of
    ``stage`` ``transport`` came no further than the proof of its transport; where no rank died and the cluster
    answered, that is what failed.
    """
    out = dict(record)
    out.setdefault("status", measured_status(record.get("measurements") or []))
    if out["status"] not in SERVER_ERRORS:
        return out
    said = [line for lines in logs.values() for line in lines]
    reason = str(record.get("reason", ""))
    known = classify(said)
    if known is None or known.kind in FOLLOWS:
        known = _outside(ranks) or _crash(ranks, logs, known) or known
    failure = known or classify(reason.splitlines())
    if record.get("stage") == "transport" and known is None and (failure is None or failure.kind != "infrastructure"):
        failure = Failure("transport", reason[:500], "Run the verify playbook: it names the rank and the cause.")
    if failure is not None:
        out |= {"status": failure.kind, "failure": failure.as_dict()}
    return out


def took_s(cell: str, records: Sequence[Mapping[str, Any]], now: datetime) -> float | None:
    """Return the seconds since the cell's last start, serving and proving included."""
    starts = [r["at"] for r in records if r.get("kind") == "start" and r.get("cell") == cell]
    return (now - datetime.fromisoformat(starts[-1])).total_seconds() if starts else None
