# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure one cell: repeated requests at one concurrency and context, with output checks and server metrics."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from .._controller.data import SWEEPS, read_yaml
from .._sglang.metrics import Scrape, difference, parse_metrics
from .client import UNREADABLE, Busy, Request, Target, fetch, run_level
from .garbage import Garbage
from .judge import WORST_FIRST, signs_of_garbage, status_of
from .stats import RequestRecord, Workload, figure_at, spread, summarise


@cache
def _prompts() -> dict[str, list[str]]:
    prompts: dict[str, list[str]] = read_yaml(SWEEPS / "data/prompts.yml")
    return prompts


def prompt(workload: Workload, repetition: int, index: int) -> str:
    """Return the prompt of one request: equal for equal seeds, different for every request and repetition.

    The number at the start prevents the server's prefix cache from skipping the prefill.
    """
    rng = random.Random(f"{workload.seed}/{repetition}/{index}")
    prompts = _prompts()
    filler = " ".join(rng.choice(prompts["filler"]) for word in range(workload.context_tokens))
    question = prompts["questions"][(workload.seed + index) % len(prompts["questions"])]
    return f"[{rng.randrange(10**9):09d}] {filler + chr(10) * 2 if filler else ''}{question}"


def requests_of(workload: Workload, repetition: int) -> Iterable[Request]:
    """Return the requests of one repetition; repetition 0 is the warm-up, with short answers.

    With a duration the sequence is endless, so that every stream is busy until the time is over.
    """
    extra: dict[str, Any] = {"temperature": 0.0, "seed": workload.seed}
    if workload.forced:
        extra |= {"ignore_eos": True, "min_tokens": workload.max_tokens}
    if repetition == 0:
        return [Request(prompt(workload, 0, i), min(32, workload.max_tokens)) for i in range(workload.warmup)]
    numbers = itertools.count() if workload.duration_s else range(workload.requests or workload.concurrency)
    return (Request(prompt(workload, repetition, i), workload.max_tokens, extra) for i in numbers)


async def _scrape(target: Target) -> Scrape:
    return parse_metrics(await fetch(target, "/metrics"))


async def _idle(target: Target, patience_s: float) -> Scrape:
    """Return a reading of the idle server; raise Busy if the server does not become idle in time."""
    deadline = time.monotonic() + patience_s
    while (scrape := await _scrape(target)).busy:
        if time.monotonic() >= deadline:
            raise Busy(f"{target.url} already runs {scrape.busy:.0f} requests: measure when it is idle")
        await asyncio.sleep(min(2.0, patience_s))
    return scrape


async def _watch(target: Target, seen: list[Scrape]) -> None:
    """Read the server's gauges during the work, because most of them are zero again after the last request."""
    await asyncio.sleep(0.5)
    while True:
        with contextlib.suppress(*UNREADABLE):
            seen.append(await _scrape(target))
        await asyncio.sleep(2)


def _foreign(server: Mapping[str, Any], records: Sequence[RequestRecord], workload: Workload) -> str:
    """Return evidence that others used the server, or an empty string.

    The check counts tokens instead of requests, because a pod's readiness probe generates one token every few seconds.
    It allows for streams that were cut, which continue for some tokens before the server notices.
    """
    ours = sum(r.output_tokens for r in records)
    spare = 32 + 0.05 * ours + (64 * workload.concurrency if workload.duration_s else 0)
    if (server.get("tokens") or 0) > ours + spare and not any(r.error_class or r.garbage for r in records):
        return f"the server generated {server['tokens']:.0f} tokens, but this client received only {ours}"
    if (server.get("running") or 0) > workload.concurrency + 1:
        return f"the server ran {server['running']:.0f} requests at a time, this client at most {workload.concurrency}"
    return ""


@dataclass(frozen=True)
class Server:
    """What is known about the server: whether it has metrics, whether it decodes in graphs, the time to wait for idle.

    ``longest_step`` is the maximum of tokens that it can accept in one verify step; None without speculation.

    ``judged`` is false only for a model with random weights, whose output is always noise.
    """

    metrics: bool = True
    graphs_expected: bool = True
    patience_s: float = 0.0
    judged: bool = True
    longest_step: int | None = None


async def _repeat(target: Target, workload: Workload, repetition: int, known: Server) -> dict[str, Any]:
    seen: list[Scrape] = []
    before = await _idle(target, known.patience_s) if known.metrics else Scrape()
    watch = asyncio.ensure_future(_watch(target, seen)) if known.metrics and repetition else None
    try:
        requests, limit_s = requests_of(workload, repetition), workload.duration_s if repetition else 0.0
        records = await run_level(target, requests, workload.concurrency, known.judged, limit_s)
    finally:
        if watch:
            watch.cancel()
    server: dict[str, Any] = {}
    if known.metrics:
        with contextlib.suppress(*UNREADABLE):
            server = difference(before, await _scrape(target), workload.draft_tokens, seen)
            # Behind its end a forced answer repeats itself, and drafts of a repetition are right: Gemma-4 on a B300 had
            # accept rates of 0.995 and 1.00 (Blackwell Shenanigans 003). The guard still judges the text.
            longest = None if workload.forced else known.longest_step
            server |= {"graphs_expected": known.graphs_expected, "longest_step": longest}
    garbage = [] if not known.judged else signs_of_garbage(records, server)
    status = status_of(records, garbage)
    foreign = _foreign(server, records, workload)
    if foreign:
        status, reason = "shared", foreign
        garbage.append(Garbage("shared_server", 0, reason))
    return {
        "repetition": repetition,
        "status": status,
        "garbage": [asdict(g) for g in garbage],
        "figures": summarise(records),
        "server": server,
        "requests": [r.as_dict() for r in records],
    }


def _over(runs: Sequence[Mapping[str, Any]], *path: str) -> dict[str, float | int | None]:
    """Return the spread of one figure over the repetitions that have it."""
    return spread([value for run in runs if (value := figure_at(run, *path)) is not None])


async def measure(
    target: Target, workload: Workload, known: Server | None = None, progress: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Return the record of the cell: workload, one entry per repetition, and the spread of the figures over them.

    The first repetition with garbage ends the cell, because more garbage adds no information. Raises Busy if the server
    runs requests of others, and aiohttp.ClientError if its metrics can't be read.
    """
    known = known or Server()
    runs: list[dict[str, Any]] = []
    for repetition in range(workload.repetitions + 1):
        run = await _repeat(target, workload, repetition, known)
        if repetition == 0:
            continue
        runs.append(run)
        if progress:
            rate = run["figures"]["peak_tok_s"]
            shown = f", {rate:.1f} tok/s" if rate else ""
            progress(f"repetition {repetition}/{workload.repetitions}: {run['status']}{shown}")
        if run["status"] == "garbage":
            break
    good = [r for r in runs if r["status"] == "ok"]
    return {
        "workload": asdict(workload) | {"name": workload.name},
        "judged": known.judged,
        "status": min((run["status"] for run in runs), key=WORST_FIRST.index, default="failed"),
        "peak_tok_s": _over(good, "figures", "peak_tok_s"),
        "wall_tok_s": _over(good, "figures", "wall_tok_s"),
        "ttft_s": _over(good, "figures", "ttft_s", "p50"),
        "itl_s": _over(good, "figures", "itl_s", "p50"),
        "prefill_tok_s": _over(good, "figures", "prefill_tok_s", "p50"),
        "tokens_counted_by": sorted({by for r in good for by in r["figures"]["tokens_counted_by"]}),
        "accept_length": _over(good, "server", "accept_length"),
        "accept_length_source": next((r["server"].get("accept_length_source") for r in good), None),
        "accept_rate": _over(good, "server", "accept_rate"),
        "runs": runs,
    }
