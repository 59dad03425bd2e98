# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Say on one screen why the transport of a group is not proved. Private to the collection."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._screen.screen import Cause, Screen, State, names
from .causes import merged, roots

_FAILURE = re.compile(r"rank (?P<rank>\d+) \((?P<pod>[^)]+)\): (?P<text>.*)", re.S)
# What the title says about ranks that talk TCP, and what follows from it.
_SAID = re.compile(
    r"is TCP, and RDMA is expected$|\S* where \S.* is expected$|"
    r"(?:rank \d+ )?uses \d+ of \d+ devices \(NET/Socket/[^)]*\)$"
)


def proof_screen(proof: Mapping[str, Any], plan: Mapping[str, Any], remarks: str) -> Screen:
    """Return the screen for a proof (of module nccl_transport) that failed."""
    group, total = plan["instance"], len(plan["ranks"])
    nodes = {rank["pod"]: rank.get("node", "") for rank in plan["ranks"]}
    causes = roots(proof["causes"])
    tcp = [each for each in proof["ranks"] if each["transport_class"] in ("tcp", "mixed")]
    wrong = bool(tcp) and plan["transport"] == "roce"
    said = [match.groupdict() for text in proof["failures"] if (match := _FAILURE.fullmatch(text))]
    states = [
        State(f"rank {each['rank']}", each["text"], nodes.get(each["pod"], ""), (each["pod"],))
        for each in said
        if not (wrong and _SAID.search(each["text"]))
    ]
    notes = [("Also", text) for text in proof["failures"] if not _FAILURE.fullmatch(text)]
    errors = [finding for finding in proof["findings"] if finding["severity"] == "error"]
    reasons = [
        *(
            Cause(f"{each['key']} = {each['value']!r}: {each['reason']}", each["remedy"], each["where"])
            for each in errors
        ),
        *merged(causes, total),
    ]
    if wrong:
        who = names([f"rank {each['rank']}" for each in tcp], total)
        verb = "talks" if len(tcp) == 1 else "talk"
        title = f"{who[0].upper()}{who[1:]} of group {group} {verb} TCP instead of RoCE."
    elif proof["counters"]["agrees"] and not errors and not proof["failures"] and not _doubted(proof["ledger"]):
        title = f"The transport of group {group} is proved, but a measurement failed."
    else:
        title = f"The transport of group {group} is not proved."
    if not errors and not proof["failures"]:
        notes.insert(0, ("Why", proof["reason"]))
    notes += _moved(proof)
    if remarks:
        notes.append(("Fabric", remarks))
    files = proof["evidence_files"]
    source = str(Path(files[0]).parent) if files else ""
    return Screen(
        title, reasons, states, notes, causes[0]["line"] if causes else "", source, details=files[-1] if files else ""
    )


def _moved(proof: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what the counters say, unless the reason of the failure says it."""
    counters, ledger = proof["counters"], proof["ledger"]
    amounts = [counters[kind] for kind in ("rdma_bytes", "tcp_bytes")]
    counted = "{:.1f} MB by RDMA, {:.1f} MB by TCP".format(*(amount / 1e6 for amount in amounts))
    notes = [("Counters", counted if any(amounts) else counters["msg"] or "not read")]
    if _doubted(ledger) and str(ledger["msg"]).partition(":")[0] not in proof["reason"]:
        notes.append(("Bytes that the model exchanged", ledger["msg"]))
    return notes


def _doubted(ledger: Mapping[str, Any]) -> bool:
    """Tell whether the bytes that moved are not those that RDMA alone would explain."""
    return ledger.get("verdict") not in (None, "rdma")
