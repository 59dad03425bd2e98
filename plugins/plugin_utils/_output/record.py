# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read recorded outputs and compare the requests of one cell with each other. Private to the collection.

A recording is plain text or one JSON value per line: chunks of an OpenAI-compatible stream (with or without ``data:``),
this collection's own chunk records, or one statistics record per request as in the published test logs.

Slightly wrong kernels produce text that no single rule detects, but its letters drift: the same model with the same
questions uses the same pairs of letters, whatever backend computes them.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from .garbage import Garbage
from .guard import StreamGuard, judge_text

KEPT = 300
"""Number of pairs in a fingerprint; they cover nearly all text in every language that was tried."""

ENOUGH = 3000
"""Minimum number of characters of a fingerprint: pieces of 1,200 characters of one text differ by up to 0.38."""

FAR = 0.4
"""Divergence from which outputs count as far from their baseline.

Measured on English reports and this repository, 0 to 1: the halves of one text 0.05 to 0.20, two texts on one subject
0.10 to 0.16, prose and a licence or code 0.19 to 0.22, random syllables 0.48, German 0.51, another script 0.99.
"""


def fingerprint(texts: Iterable[str]) -> dict[str, Any]:
    """Return ``{characters, pairs: {pair: share}}`` of all texts, ignoring case and the kind of white space."""
    pairs: Counter[str] = Counter()
    characters = 0
    for text in texts:
        plain = " ".join(text.lower().split())
        characters += len(plain)
        pairs.update(map("".join, pairwise(plain)))
    total = sum(pairs.values())
    return {"characters": characters, "pairs": {p: round(n / total, 6) for p, n in pairs.most_common(KEPT)}}


def divergence(one: Mapping[str, Any], other: Mapping[str, Any]) -> float | None:
    """Return the Jensen-Shannon divergence of two fingerprints, 0 (alike) to 1; None if one has too little text."""
    if min(one.get("characters", 0), other.get("characters", 0)) < ENOUGH:
        return None
    p, q = _whole(one["pairs"]), _whole(other["pairs"])
    total = 0.0
    for key in p.keys() | q.keys():
        a, b = p.get(key, 0.0), q.get(key, 0.0)
        middle = (a + b) / 2
        total += sum(x * math.log2(x / middle) / 2 for x in (a, b) if x)
    return total


def _whole(pairs: Mapping[str, float]) -> dict[str, float]:
    """Return the shares with an entry for all pairs that were not kept, so that they sum up to 1."""
    return {**pairs, "": max(0.0, 1.0 - sum(pairs.values()))}


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
