# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure one cell: the same requests at one concurrency and context, repeated, guarded, with the server's own view.

Private to the collection; runs on the controller.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ._load_client import Busy, Request, Target, fetch, run_level
from ._load_stats import RequestRecord, spread, summarise
from ._output_guard import Garbage
from ._output_record import Recording, judge_cell
from ._sglang_metrics import Scrape, difference, parse_metrics

QUESTIONS = (
    "Explain the CAP theorem to a new colleague, with one example for each choice that it forces.",
    "Compare TCP and UDP for sending tensors between two machines, and say when each of them wins.",
    "Describe how a hash table grows, and what a lookup costs while it does.",
    "Write a Python function that merges overlapping intervals, then walk through it with an example.",
    "What happens between pressing Enter in a browser's address bar and the first pixel of the page?",
    "Explain public key cryptography without formulas, then name two ways in which people break it in practice.",
    "How does a B-tree keep its height small, and why do databases prefer it to a binary tree?",
    "Tell the story of a packet that is lost on a congested link, from the packet's point of view.",
    "Give a careful argument for and against microservices for a team of five people.",
    "Explain how garbage collection by generations works and what it assumes about objects.",
    "Derive the formula for the sum of the first n squares and check it for n = 4.",
    "What is the difference between concurrency and parallelism? Give one example of each from daily life.",
)

# One common English word is close to one token for every tokenizer in use; the server's own count is what is reported.
FILLER = [
    "the",
    "node",
    "sends",
    "a",
    "page",
    "to",
    "its",
    "peer",
    "and",
    "waits",
    "until",
    "it",
    "has",
    "written",
    "down",
]


@dataclass(frozen=True)
class Workload:
    """What one cell asks of the server.

    ``forced`` makes every request decode to ``max_tokens`` (``ignore_eos`` and ``min_tokens``): natural stops end a
    cell after a second when the model has little to say. ``requests`` of 0 means one a stream.
    """

    concurrency: int
    max_tokens: int = 3072
    context_tokens: int = 0
    requests: int = 0
    forced: bool = False
    warmup: int = 1
    repetitions: int = 1
    seed: int = 1
    draft_tokens: int | None = None

    @property
    def name(self) -> str:
        """Return a short name: context and concurrency."""
        return f"c{self.context_tokens}-n{self.concurrency}"


WORST_FIRST = ("garbage", "shared", "eager", "failed", "infrastructure", "ok")


def prompt(workload: Workload, repetition: int, index: int) -> str:
    """Return the prompt of one request: the same for the same seed, different for every request and repetition.

    The number in front keeps the server's prefix cache from answering for the prefill.
    """
    rng = random.Random(f"{workload.seed}/{repetition}/{index}")
    filler = " ".join(rng.choice(FILLER) for _unused in range(workload.context_tokens))
    question = QUESTIONS[(workload.seed + index) % len(QUESTIONS)]
    return f"[{rng.randrange(10**9):09d}] {filler + chr(10) * 2 if filler else ''}{question}"


def requests_of(workload: Workload, repetition: int) -> list[Request]:
    """Return the requests of one repetition; repetition 0 is the warm-up, with short answers."""
    extra: dict[str, Any] = {"temperature": 0.0, "seed": workload.seed}
    if workload.forced:
        extra |= {"ignore_eos": True, "min_tokens": workload.max_tokens}
    count = workload.requests or workload.concurrency
    if repetition == 0:
        return [Request(prompt(workload, 0, i), min(32, workload.max_tokens)) for i in range(workload.warmup)]
    return [Request(prompt(workload, repetition, i), workload.max_tokens, extra) for i in range(count)]


def _recording(record: RequestRecord) -> Recording:
    return Recording(
        content=record.content,
        reasoning=record.reasoning,
        finish_reason=record.finish_reason,
        rate=record.tok_s,
        tokens=record.output_tokens,
        structured=True,
    )


# Requests that all run into one limit decode in step, token by token, in one batch: the same count and nearly the
# same rate follow from the workload, so these are signs only beside another one.
BY_LIMIT = {"all_length", "identical_statistics"}


def judge(records: Sequence[RequestRecord], server: Mapping[str, Any], limit: int) -> list[Garbage]:
    """Return every reason not to believe a repetition: broken output, twin requests, decoding without graphs."""
    found = [Garbage(**r.garbage) for r in records if r.garbage]
    answered = [r for r in records if not r.error_class]
    found += [
        Garbage("no_content", 0, f"request {r.index} has no content token")
        for r in answered
        if not r.content and not r.garbage
    ]
    together = judge_cell([_recording(r) for r in answered])
    if found or {g.kind for g in together} - BY_LIMIT or any(r.output_tokens < limit for r in answered):
        found += together
    if server.get("eager_passes"):
        found.append(Garbage("eager_regime", 0, f"{server['eager_passes']:.0f} decode passes ran without a CUDA graph"))
    return found


def status_of(records: Sequence[RequestRecord], garbage: Sequence[Garbage]) -> str:
    """Return ``ok``, ``garbage``, ``eager``, ``infrastructure`` or ``failed``; only ``ok`` may be ranked."""
    if any(g.kind != "eager_regime" for g in garbage):
        return "garbage"
    if any(r.error_class == "infrastructure" for r in records):
        return "infrastructure"
    if not records or any(not r.ok for r in records):
        return "failed"
    return "eager" if garbage else "ok"


async def _scrape(target: Target) -> Scrape:
    return parse_metrics(await fetch(target, "/metrics"))


async def _repeat(target: Target, workload: Workload, repetition: int, metrics: bool) -> dict[str, Any]:
    requests = requests_of(workload, repetition)
    before = await _scrape(target) if metrics else Scrape()
    if before.busy:
        raise Busy(f"{target.url} already runs {before.busy:.0f} requests: measure when nobody else uses it")
    records = await run_level(target, requests, workload.concurrency)
    server = difference(before, await _scrape(target), workload.draft_tokens) if metrics else {}
    garbage = judge(records, server, workload.max_tokens)
    status = status_of(records, garbage)
    if (server.get("requests") or 0) > len(requests):
        status = "shared"
        reason = f"the server ran {server['requests']:.0f} requests, {len(requests)} of them ours"
        garbage.append(Garbage("shared_server", 0, reason))
    return {
        "repetition": repetition,
        "status": status,
        "garbage": [g.as_dict() for g in garbage],
        "figures": summarise(records),
        "server": server,
        "requests": [r.as_dict() for r in records],
    }


def _over(runs: Sequence[Mapping[str, Any]], *path: str) -> dict[str, float | int | None]:
    """Return the spread of one figure over the repetitions that have it."""
    values: list[float] = []
    for run in runs:
        value: Any = run
        for key in path:
            value = value.get(key) if value else None
        if value is not None:
            values.append(value)
    return spread(values)


async def measure(
    target: Target, workload: Workload, metrics: bool = True, progress: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Return the cell's record: workload, one entry a repetition, and the spread of the figures over them.

    Raises Busy when the server already runs requests, aiohttp.ClientError when its metrics can't be read.
    """
    runs: list[dict[str, Any]] = []
    for repetition in range(workload.repetitions + 1):
        run = await _repeat(target, workload, repetition, metrics)
        if repetition == 0:
            continue
        runs.append(run)
        if progress:
            rate = run["figures"]["peak_tok_s"]
            shown = f", {rate:.1f} tok/s" if rate else ""
            progress(f"{workload.name} repetition {repetition}/{workload.repetitions}: {run['status']}{shown}")
    good = [r for r in runs if r["status"] == "ok"]
    return {
        "workload": asdict(workload) | {"name": workload.name},
        "status": min((r["status"] for r in runs), key=WORST_FIRST.index),
        "peak_tok_s": _over(good, "figures", "peak_tok_s"),
        "wall_tok_s": _over(good, "figures", "wall_tok_s"),
        "ttft_s": _over(good, "figures", "ttft_s", "p50"),
        "itl_s": _over(good, "figures", "itl_s", "p50"),
        "accept_length": _over(good, "server", "accept_length"),
        "runs": runs,
    }
