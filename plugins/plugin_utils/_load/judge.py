# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find every reason to distrust a repetition, and derive its status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from .._output.garbage import Garbage
from .._output.guard import judge_text
from .._output.record import Recording, judge_cell
from .stats import RequestRecord

Status = Literal["garbage", "eager", "failed", "infrastructure", "shared", "ok"]
"""Statuses of a measurement in order of precedence; only ``ok`` may be ranked."""
WORST_FIRST: tuple[Status, ...] = get_args(Status)


PINNED = 0.99
"""Share of accepted drafts from which a model seems to accept everything.

NVFP4 KV with MTP on DGX Sparks wrote word salad at 3.00 of 3 tokens per step (published launch, GSM8K 0 of 10). The
best published shares of answers that were not forced past their end are below 0.95.
"""

ENOUGH_STEPS = 100
"""Minimum number of verify steps per request. Few steps give a biased mean, because the last step is cut off."""


def _recording(record: RequestRecord) -> Recording:
    return Recording(
        content=record.content,
        reasoning=record.reasoning,
        finish_reason=record.finish_reason,
        rate=record.tok_s,
        tokens=record.output_tokens,
        structured=True,
    )


def signs_of_garbage(records: Sequence[RequestRecord], server: Mapping[str, Any]) -> list[Garbage]:
    """Return all signs of broken output: garbage, equal texts, unchecked drafts, no CUDA graphs."""
    found = [Garbage(**r.garbage) for r in records if r.garbage]
    answered = [r for r in records if not r.error_class]
    for record in answered:
        said = record.reasoning + record.content
        if record.garbage:
            continue
        # A reasoning model may still be in its reasoning when the limit or the budget cuts it, even in every request.
        thinking = record.reasoning.strip() and record.finish_reason in ("length", "budget")
        if not record.content.strip() and not thinking:
            found.append(Garbage("no_content", 0, f"request {record.index} has no content token"))
        else:
            found += judge_text(said)[:1]
    found += judge_cell([_recording(r) for r in answered])
    share = accepted_share(server)
    if share is not None and share >= PINNED:
        reason = f"{server['accept_length']:.2f} of {server['longest_step']} tokens per verify step are accepted"
        found.append(Garbage("accept_pinned", 0, f"{reason}: a model that accepts every draft does not check them"))
    if server.get("graphs_expected", True) and server.get("eager_passes"):
        found.append(Garbage("eager_regime", 0, f"{server['eager_passes']:.0f} decode passes ran without a CUDA graph"))
    elif server.get("graphs_expected") and server.get("is_cuda_graph") == 0 and server.get("eager_passes") is None:
        found.append(Garbage("eager_regime", 0, "the server says that its last decode batch had no CUDA graph"))
    return found


def accepted_share(server: Mapping[str, Any]) -> float | None:
    """Return the share of drafts that were accepted; None without speculation and after too few steps to tell."""
    length, longest = server.get("accept_length"), server.get("longest_step") or 1
    tokens, requests = server.get("tokens") or 0, server.get("requests") or 1
    if not length or longest < 2 or tokens < ENOUGH_STEPS * requests * length:
        return None
    first = requests if server.get("accept_length_source") == "counters" else 0
    return float((length * (1 - first / tokens) - 1) / (longest - 1))


def status_of(records: Sequence[RequestRecord], garbage: Sequence[Garbage]) -> Status:
    if any(g.kind != "eager_regime" for g in garbage):
        return "garbage"
    if any(r.error_class == "infrastructure" for r in records):
        return "infrastructure"
    if not records or any(not r.ok for r in records):
        return "failed"
    return "eager" if garbage else "ok"
