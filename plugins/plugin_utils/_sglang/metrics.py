# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read SGLang's Prometheus page and compute what changed during a cell. Private to the collection.

The metric names are those of SGLang 0.5.10 to 0.5.23 with ``--enable-metrics``. The meaning of the accept *rate*
changed in 0.5.11 (before: length / draft tokens; since then: (length - 1) / (draft tokens - 1)). Therefore only the
accept length is read from the server, and the rate is computed here with the newer meaning.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

SAMPLE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+\d+)?$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

COUNTERS = ("generation_tokens_total", "spec_verify_calls_total", "num_requests_total")
GAUGES = ("num_running_reqs", "num_queue_reqs", "token_usage", "is_cuda_graph", "spec_accept_length")


@dataclass
class Scrape:
    """One reading of the page: counters, gauges (the maximum over ranks), CUDA graph passes and tokens by mode."""

    counters: dict[str, float] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)
    passes: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, float] = field(default_factory=dict)

    @property
    def busy(self) -> float:
        """Return how many requests the server runs or queues."""
        return self.gauges.get("num_running_reqs", 0.0) + self.gauges.get("num_queue_reqs", 0.0)


def parse_metrics(text: str) -> Scrape:
    """Return the reading of one ``/metrics`` page; lines that are not samples are skipped."""
    scrape = Scrape()
    for line in text.splitlines():
        match = SAMPLE.match(line) if line.startswith("sglang:") else None
        if match is None:
            continue
        name, labels, raw = match[1].removeprefix("sglang:"), match[2] or "", match[3]
        try:
            value = float(raw)
        except ValueError:
            continue
        if name in COUNTERS:
            scrape.counters[name] = scrape.counters.get(name, 0.0) + value
        elif name in GAUGES:
            scrape.gauges[name] = max(scrape.gauges.get(name, value), value)
        elif name in ("cuda_graph_passes_total", "realtime_tokens_total"):
            mode = dict(LABEL.findall(labels)).get("mode", "")
            by_mode = scrape.passes if name == "cuda_graph_passes_total" else scrape.tokens
            by_mode[mode] = by_mode.get(mode, 0.0) + value
    return scrape


def _peak(readings: Sequence[Scrape], name: str) -> float | None:
    """Return the maximum of a gauge over the readings, because the gauge returns to zero when the work is done."""
    return max((r.gauges[name] for r in readings if name in r.gauges), default=None)


def _gauge_length(before: Scrape, after: Scrape, during: Sequence[Scrape]) -> float | None:
    """Return the mean of the accept lengths that the server reported after ``before``; each stays until the next."""
    name = "spec_accept_length"
    shown = [r.gauges.get(name, 0.0) for r in (*during, after)]
    fresh = [length for length in shown if length and length != before.gauges.get(name)]
    return fmean(fresh) if fresh else shown[-1] or None


def difference(
    before: Scrape, after: Scrape, draft_tokens: int | None = None, during: Sequence[Scrape] = ()
) -> dict[str, Any]:
    """Return what the server did between two readings.

    ``accept_length`` is the number of tokens per verify step of this cell if the server counts verify calls (0.5.13 and
    newer), otherwise the mean of the server's gauge over the readings. ``eager_passes`` above zero shows that some
    decode passes ran without CUDA graphs. ``running`` and ``token_usage`` are the maxima over the readings taken in
    between.
    """
    delta = {name: after.counters[name] - before.counters.get(name, 0.0) for name in after.counters}
    verify = delta.get("spec_verify_calls_total", 0.0)
    length = delta.get("generation_tokens_total", 0.0) / verify if verify else None
    source = "counters"
    if length is None:
        length, source = _gauge_length(before, after, during), "gauge"
    rate = (length - 1) / (draft_tokens - 1) if length is not None and draft_tokens and draft_tokens > 1 else None
    passes = {mode: n - before.passes.get(mode, 0.0) for mode, n in after.passes.items()}
    eager = sum(n for mode, n in passes.items() if mode.startswith("decode") and "graph" not in mode)
    return {
        "tokens": delta.get("generation_tokens_total"),
        "requests": delta.get("num_requests_total"),
        "accept_length": length,
        "accept_length_source": source if length is not None else None,
        "accept_rate": rate,
        "eager_passes": eager if passes else None,
        "is_cuda_graph": after.gauges.get("is_cuda_graph"),
        "running": _peak([*during, after], "num_running_reqs"),
        "token_usage": _peak([*during, after], "token_usage"),
    }
