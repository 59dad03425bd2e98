# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compute statistics of one load cell, per request and over all requests.

Times are seconds on the client's monotonic clock. Two rates have the same unit but differ widely, so both are kept
under separate names: ``peak_tok_s`` is the sum of the rates of the single requests, as in published test logs;
``wall_tok_s`` is the number of tokens divided by the cell's wall time.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Workload:
    """The requests of one cell.

    ``forced`` makes every request decode ``max_tokens`` tokens (``ignore_eos`` and ``min_tokens``); without it, short
    answers of the model would end the cell within a second. ``requests`` of 0 means one request per stream.
    ``duration_s`` ends a repetition: all streams stay busy until then and are cut. ``draft_tokens`` is the number of
    tokens that the server verifies per step.
    """

    concurrency: int
    max_tokens: int = 3072
    context_tokens: int = 0
    requests: int = 0
    duration_s: float = 0.0
    forced: bool = False
    warmup: int = 1
    repetitions: int = 1
    seed: int = 1
    draft_tokens: int | None = None

    @property
    def name(self) -> str:
        """Return a short name: context and concurrency."""
        return f"c{self.context_tokens}-n{self.concurrency}"


PERCENTILES = (50, 90, 95, 99)


@dataclass
class RequestRecord:
    """One request: when it was sent, when each chunk arrived, the server's counts, and how it ended.

    ``error_class`` is empty for a success, ``infrastructure`` if the server could not be reached or broke the
    connection (which says nothing about the model), and ``server`` if it answered with an error. ``counted_by``
    tells who counted ``output_tokens``: the ``server``, or ``chunks`` for one token per chunk.
    """

    index: int
    sent: float
    chunk_times: list[float] = field(default_factory=list)
    output_tokens: int = 0
    prompt_tokens: int = 0
    content: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    error_class: str = ""
    error: str = ""
    garbage: dict[str, Any] | None = None
    counted_by: str = "server"

    @property
    def ok(self) -> bool:
        """Return whether the request counts: it ended without an error, produced tokens, and was not garbage."""
        return not self.error_class and self.garbage is None and self.output_tokens > 0

    @property
    def ttft(self) -> float | None:
        """Return the time to the first token in seconds."""
        return self.chunk_times[0] - self.sent if self.chunk_times else None

    @property
    def itl(self) -> float | None:
        """Return the mean time between tokens in seconds; it counts tokens, because a chunk may contain several."""
        if self.output_tokens < 2 or len(self.chunk_times) < 2:
            return None
        return (self.chunk_times[-1] - self.chunk_times[0]) / (self.output_tokens - 1)

    @property
    def prefill_tok_s(self) -> float | None:
        """Return prompt tokens divided by the time to the first token, which includes queueing and one decode step."""
        return self.prompt_tokens / self.ttft if self.prompt_tokens and self.ttft else None

    @property
    def tok_s(self) -> float | None:
        """Return the decode rate of the request in tokens per second, without the first token."""
        return 1 / self.itl if self.itl else None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of the request that are recorded, without its text."""
        kept = {k: v for k, v in asdict(self).items() if k not in ("content", "reasoning", "chunk_times", "sent")}
        return kept | {"ttft_s": self.ttft, "itl_s": self.itl, "tok_s": self.tok_s, "characters": len(self.content)}


def figure_at(record: Mapping[str, Any], *path: str) -> float | None:
    """Return the number at a path of keys; None if any of them is missing."""
    value: Any = record
    for key in path:
        value = value.get(key) if value else None
    return None if value is None else float(value)


def spread(values: Sequence[float]) -> dict[str, float | int | None]:
    """Return count, mean, standard deviation, extremes and percentiles of the values."""
    cuts = statistics.quantiles(values, n=100, method="inclusive") if len(values) > 1 else [*values] * 99
    return {
        "n": len(values),
        "mean": statistics.fmean(values) if values else None,
        "stdev": statistics.stdev(values) if len(values) > 1 else None,
        "min": min(values, default=None),
        "max": max(values, default=None),
        **{f"p{p}": cuts[p - 1] if cuts else None for p in PERCENTILES},
    }


def summarise(records: Sequence[RequestRecord]) -> dict[str, Any]:
    """Return the figures of one repetition of a cell; failed requests count only in ``failed``."""
    good = [r for r in records if r.ok]
    rates = [r.tok_s for r in good if r.tok_s is not None]
    ends = [r.chunk_times[-1] for r in good if r.chunk_times]
    wall = max(ends) - min(r.sent for r in good) if ends else 0.0
    tokens = sum(r.output_tokens for r in good)
    failures = Counter(r.error_class or ("garbage" if r.garbage else "no_tokens") for r in records if not r.ok)
    return {
        "ok": len(good),
        "failed": len(records) - len(good),
        "failures": dict(failures),
        "output_tokens": tokens,
        "tokens_counted_by": sorted({r.counted_by for r in good}),
        "peak_tok_s": sum(rates) if rates else None,
        "wall_tok_s": tokens / wall if wall > 0 else None,
        "ttft_s": spread([r.ttft for r in good if r.ttft is not None]),
        "itl_s": spread([r.itl for r in good if r.itl is not None]),
        "prefill_tok_s": spread([r.prefill_tok_s for r in good if r.prefill_tok_s is not None]),
        "finish_reasons": dict(sorted(Counter(r.finish_reason or "none" for r in good).items())),
    }


RUNS_NEEDED = 3
"""Repetitions that a difference needs before it can be told from chance."""


def distinguishable(first: Sequence[float], second: Sequence[float]) -> bool | None:
    """Return whether two sets of repeated measurements differ by more than their spread; None if there are too few.

    The test is Welch's t with the threshold 3. Published repetitions of one configuration differ by up to 27 %, so a
    difference within the noise must not decide the ranking.
    """
    if len(first) < RUNS_NEEDED or len(second) < RUNS_NEEDED:
        return None
    variance = statistics.variance(first) / len(first) + statistics.variance(second) / len(second)
    difference = abs(statistics.fmean(first) - statistics.fmean(second))
    if variance == 0:
        return difference > 0
    return bool(difference / variance**0.5 > 3)
