# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find every reason to distrust a repetition, and derive its status."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from .garbage import Garbage
from .guard import StreamGuard, judge_text
from .stats import RequestRecord

# Read recorded outputs and compare the requests of one cell with each other.
#
# A recording is plain text or one JSON value per line: chunks of an OpenAI-compatible stream (with or without
# ``data:``), this collection's own chunk records, or one statistics record per request as in the published test logs.

TIME_KEYS = ("t", "time", "ts", "timestamp", "at", "elapsed", "received")
TEXT_KEYS = ("content", "text", "token", "delta", "chunk", "output", "output_text", "response")
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
RATE_KEYS = ("tokens_per_sec", "tokens_per_second", "tok_s", "tps", "toks_per_s")
COUNT_KEYS = ("output_tokens", "completion_tokens", "n_tokens")
NO_CONTENT_KEYS = ("content_tokens_est", "content_tokens")
KNOWN_KEYS = {*TEXT_KEYS, *REASONING_KEYS, *RATE_KEYS, *COUNT_KEYS, "choices", "message", "finish_reason", "usage"}
"""A JSON object without any of these keys is an answer in JSON, not a recording."""


@dataclass
class Recording:
    """The output of one request: visible ``content``, ``reasoning``, its chunks, and other values of the recorder."""

    content: str = ""
    reasoning: str = ""
    chunks: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    rate: float | None = None
    tokens: int | None = None
    structured: bool = False
    stats_only: bool = False
    content_tokens_missing: bool = False

    @property
    def tokens_per_second(self) -> float | None:
        """Return the recorded rate in tokens per second, or the rate computed from times and chunks."""
        if self.rate is not None:
            return self.rate
        span = self.times[-1] - self.times[0] if len(self.times) > 1 else 0.0
        return (self.tokens or len(self.chunks)) / span if span > 0 else None


def _first(record: Mapping[str, Any], keys: Sequence[str], kinds: tuple[type, ...]) -> Any:
    return next((record[k] for k in keys if isinstance(record.get(k), kinds) and not isinstance(record[k], bool)), None)


def _texts(record: Mapping[str, Any]) -> tuple[str, str]:
    """Return (content, reasoning) of one JSON object in any of the known formats."""
    choices = record.get("choices")
    if isinstance(choices, list):
        pairs = [_texts(c) for c in choices if isinstance(c, Mapping)]
        return "".join(p[0] for p in pairs), "".join(p[1] for p in pairs)
    for inner in ("delta", "message", "data", "chunk", "response", "event"):
        if isinstance(record.get(inner), Mapping):
            return _texts(record[inner])
    return _first(record, TEXT_KEYS, (str,)) or "", _first(record, REASONING_KEYS, (str,)) or ""


def _flatten(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scalar fields of the record and of its nested objects, the outer fields first."""
    flat: dict[str, Any] = {}
    for key, value in record.items():
        children = value if isinstance(value, list) else [value]
        for child in children:
            if isinstance(child, Mapping):
                flat = _flatten(child) | flat
        if not isinstance(value, (list, Mapping)):
            flat[key] = value
    return flat


def _add(recording: Recording, value: Any) -> None:
    if isinstance(value, str):
        recording.content += value
        recording.chunks.append(value)
        return
    if not isinstance(value, Mapping):
        return
    content, reasoning = _texts(value)
    recording.content += content
    recording.reasoning += reasoning
    flat = _flatten(value)
    if content or reasoning:
        recording.chunks.append(content or reasoning)
        moment = _first(flat, TIME_KEYS, (int, float))
        if moment is not None:
            recording.times.append(float(moment))
    recording.finish_reason = _first(flat, ("finish_reason",), (str,)) or recording.finish_reason
    rate, tokens = _first(flat, RATE_KEYS, (int, float)), _first(flat, COUNT_KEYS, (int,))
    recording.rate = recording.rate if rate is None else float(rate)
    recording.tokens = recording.tokens if tokens is None else tokens
    if any(k in flat and not flat[k] for k in NO_CONTENT_KEYS):
        recording.content_tokens_missing = True
    if rate is not None and not content and not reasoning:
        recording.stats_only = True


def parse_recording(text: str) -> Recording:
    """Return the recording in the text of a file; text that is not one JSON value per line is one plain output."""
    values: list[Any] = []
    for raw in text.splitlines():
        line = raw.strip()
        if line.startswith(("event:", "id:", ": ")) or line == ":":
            continue
        line = line.removeprefix("data:").strip()
        if not line or line == "[DONE]":
            continue
        try:
            value = json.loads(line)
        except ValueError:
            return Recording(content=text)
        if not isinstance(value, (dict, str)):
            return Recording(content=text)
        values.append(value)
    if not values or (isinstance(values[0], dict) and not KNOWN_KEYS & {*values[0], *_flatten(values[0])}):
        return Recording(content=text)
    recording = Recording(structured=True)
    for value in values:
        _add(recording, value)
    return recording


def judge_recording(recording: Recording) -> list[Garbage]:
    """Return every sign that the output of this request is broken, from its text and from its chunks."""
    if recording.stats_only and not recording.content and not recording.reasoning:
        missing = recording.content_tokens_missing
        return [Garbage("no_content", 0, "the server counted no content tokens")] if missing else []
    if not recording.structured:
        return judge_text(recording.content)
    found: list[Garbage] = []
    if not recording.content.strip():
        thought = f" after {len(recording.reasoning)} characters of reasoning" if recording.reasoning else ""
        found.append(Garbage("no_content", 0, f"no content token arrived{thought}"))
    for text in (recording.reasoning, recording.content):
        if text.strip():
            found += judge_text(text)
    if not found:
        guard = StreamGuard()
        for chunk in recording.chunks:
            guard.feed(chunk)
        found += [guard.finding] if guard.finding else []
    return found


def judge_cell(recordings: Sequence[Recording]) -> list[Garbage]:
    """Return signs that appear only across the requests of one cell: equal texts, equal statistics, no normal end.

    The requests have different prompts, so equal texts are a sign. Streams that are cut by their limit decode in step,
    with the same count and rate; this is a sign only if their texts do not differ. If all requests end with ``length``,
    this is a sign only together with another one.
    """
    found: list[Garbage] = []
    if len(recordings) < 2:
        return found
    texts = [(rec.reasoning + rec.content).strip() for rec in recordings]
    rates = [f"{r:.2f}" for rec in recordings if (r := rec.tokens_per_second) is not None]
    counts = {rec.tokens or len(rec.chunks) for rec in recordings}
    (common, count), *others = Counter(texts).most_common()
    acquitted = bool(others) and all(texts) and all(rec.finish_reason != "stop" for rec in recordings)
    if len(rates) == len(recordings) >= 3 and len(set(rates)) == 1 and len(counts) == 1 and not acquitted:
        same = f"all {len(rates)} requests ran at {rates[0]} tok/s with the same number of tokens"
        found.append(Garbage("identical_statistics", 0, same))
    if count > len(recordings) / 2 and len(common) >= 40:
        found.append(Garbage("identical_output", 0, f"{count} of {len(recordings)} requests gave the same text"))
    if found and all(rec.finish_reason == "length" for rec in recordings):
        found.append(Garbage("all_length", 0, "every request ran into its token limit"))
    return found


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
