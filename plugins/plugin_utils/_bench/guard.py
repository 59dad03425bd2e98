# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Distinguish broken model output from healthy output, so that invalid results are never recorded.

Private to the collection. A model with wrong kernels repeats one token, loops, or emits noise, and does so faster than
it answers: published matrices contain rows of 142-156 tok/s that were eight streams of ``!``. Checks that count words
miss those rows, because ``!`` is not a word; all checks here work on characters.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from .garbage import DATA_CHARACTERS, RULE_CHARACTERS, WORD, Garbage, find_noise, find_salad, share_of_letters

CODE = re.compile(r"[<>{};=|]")
STUTTER = re.compile(r"\b([^\W\d_]{2,})(?:[ \t]+\1\b){2,}", re.IGNORECASE)


def _squeezed(text: str, window: int) -> Garbage | None:
    """Check the compression ratio: prose has 2 to 3, code up to 7, tables 10, markup 14; loops have 15 and more."""
    for start in range(0, max(1, len(text) - window // 2), window // 2):
        piece = text[start : start + window]
        raw = piece.encode()
        if len(piece) < 600 or share_of_letters(piece) < 0.2:
            continue
        ratio = len(raw) / len(zlib.compress(raw, 9))
        marked = len(CODE.findall(piece)) > 0.02 * len(piece)
        if ratio >= (18 if marked else 13):
            reason = f"{len(piece)} characters compress {ratio:.0f}-fold: the text repeats itself"
            return Garbage("flood", start, reason)
    return None


def _poverty(text: str) -> Garbage | None:
    """Check for prose that uses only a few different words again and again."""
    words = [w.lower() for w in WORD.findall(text)]
    if len(words) < 250 or len(CODE.findall(text)) > 0.01 * len(text):
        return None
    if sum(map(str.isdigit, text)) > 0.005 * len(text):
        return None
    kinds = len(set(words))
    if kinds <= max(12, 0.04 * len(words)) and kinds <= 40:
        return Garbage("flood", 0, f"{len(words)} words, only {kinds} different ones")
    return None


def find_flood(text: str, window: int = 3000) -> Garbage | None:
    """Return a stretch that repeats itself with small changes, or that has few words."""
    return _squeezed(text, window) or _poverty(text)


def find_stutter(text: str) -> Garbage | None:
    """Return words that are said three or more times in a row (``retire retire retire``), or all said twice.

    A single repeated word may be a refrain.
    """
    words = len(WORD.findall(text))
    hits = list(STUTTER.finditer(text))
    kinds = {h.group(1).lower() for h in hits}
    if len(hits) >= 4 and len(kinds) >= 3 and sum(len(WORD.findall(h.group())) for h in hits) >= 0.05 * words:
        detail = f"{len(hits)} words are said three or more times in a row, first {hits[0].group()[:40]!r}"
        return Garbage("stutter", hits[0].start(), detail)
    return None


SEED_LENGTH = 8
"""Length in characters of the shingles that are compared to find repetition."""


@dataclass(frozen=True)
class Run:
    """A stretch of text that repeats itself exactly: ``length`` characters from ``start`` with the given ``period``."""

    start: int
    length: int
    period: int

    @property
    def end(self) -> int:
        """Return the offset after the last character."""
        return self.start + self.length

    @property
    def repeats(self) -> float:
        """Return how often the period occurs."""
        return self.length / self.period


def periodic_runs(text: str) -> Iterator[Run]:
    """Yield every maximal stretch that is exactly periodic and longer than twice its period, in one pass.

    Consecutive positions whose shingle last occurred the same distance before form one run; the distance is its period.
    """
    seen: dict[str, int] = {}
    start, gap = 0, 0
    last = len(text) - SEED_LENGTH
    for i in range(last + 1):
        shingle = text[i : i + SEED_LENGTH]
        back = i - seen.get(shingle, i)
        seen[shingle] = i
        if back == gap or (gap and text[i - gap : i - gap + SEED_LENGTH] == shingle):
            continue
        if gap and i - start >= gap:
            yield Run(start - gap, i - start + gap + SEED_LENGTH - 1, gap)
        start, gap = i, back
    if gap and last + 1 - start >= gap:
        yield Run(start - gap, last + 1 - start + gap + SEED_LENGTH - 1, gap)


def _limits(period: str, at_end: bool, share: float) -> tuple[int, int]:
    """Return how many characters and repeats of this period are still healthy.

    The limits are lower for loops that continue to the end of the output, because they never recovered, and for loops
    that make up most of the text. Borders, leaders and numeric data may repeat longer.
    """
    size = len(period)
    if not period.strip():
        return (60, 8) if "\n" in period else (400, 8)
    if set(period) <= DATA_CHARACTERS and any(c.isdigit() or c in RULE_CHARACTERS - {" "} for c in period):
        return (150, 8) if at_end and share >= 0.9 else (200, 8) if at_end and share >= 0.7 else (800, 8)
    wordy = any(c.isalpha() for c in period)
    data = any(c.isdigit() or c in RULE_CHARACTERS - {" "} for c in period)
    if size == 1:
        return (100 if at_end else 200, 1) if wordy else (30 if at_end else 130, 1)
    if size <= 8:
        return (64 if data else 48, 8) if at_end else (200 if data else 96, 12)
    if size <= 60:
        # Healthy text may repeat a whole line ten times: prayers, refrains, lines to copy out.
        least = 12 if "\n" in period else 5
        return (110, least) if at_end else (240, max(8, least)) if share >= 0.5 else (240, max(10, least))
    return (200, 3) if at_end or share >= 0.5 else (400, 4)


def find_loop(text: str) -> Garbage | None:
    """Return the first exact loop that healthy text does not contain: a character, word, sentence or whole answer."""
    for run in periodic_runs(text):
        period = text[run.start : run.start + run.period]
        at_end = len(text.rstrip()) - run.end <= 3
        length, repeats = _limits(period, at_end, run.length / len(text))
        if run.length >= length and run.repeats >= repeats:
            kind = "single_token" if run.period <= 2 else "suffix_loop" if at_end else "loop"
            shown = period if len(period) <= 60 else period[:57] + "..."
            return Garbage(kind, run.start, f"{shown!r} repeats {run.repeats:.0f} times over {run.length} characters")
    return None


def judge_text(text: str) -> list[Garbage]:
    """Return every sign that one finished output is broken; an empty list for a healthy output."""
    if not text.strip():
        return [Garbage("no_content", 0, "the output is empty")]
    checks = (find_noise, find_loop, find_flood, find_stutter, find_salad)
    return [found for check in checks if (found := check(text)) is not None]


class StreamGuard:
    """Check an output while it arrives, so that a broken server is not timed for 3072 tokens.

    Call `feed` with the chunks of one stream; the object keeps the first finding. The work per chunk is constant,
    because only the tail is checked, once per ``every`` new characters.
    """

    def __init__(self, tail: int = 2400, every: int = 400, same_chunks: int = 32) -> None:
        self.finding: Garbage | None = None
        self._tail, self._every, self._same_limit = tail, every, same_chunks
        self._text, self._dropped, self._fresh = "", 0, 0
        self._last, self._same = "", 0

    def feed(self, chunk: str) -> Garbage | None:
        """Add the next chunk and return the finding, if there is one."""
        if self.finding or not chunk:
            return self.finding
        self._same = self._same + 1 if chunk == self._last else 1
        self._last = chunk
        self._text += chunk
        self._fresh += len(chunk)
        if self._same >= self._patience(chunk):
            at = self._dropped + len(self._text) - self._same * len(chunk)
            self.finding = Garbage("single_token", at, f"{self._same} chunks in a row are {chunk[:20]!r}")
        elif self._fresh >= self._every:
            self._fresh = 0
            cut = max(0, len(self._text) - self._tail)
            self._text, self._dropped = self._text[cut:], self._dropped + cut
            for check in (find_noise, find_loop, find_flood):
                found = check(self._text)
                if found:
                    self.finding = Garbage(found.kind, found.at + self._dropped, found.detail)
                    break
        return self.finding

    def _patience(self, chunk: str) -> float:
        """Return how often a chunk may repeat in a row: number columns and borders do so often, words rarely."""
        if set(chunk) <= RULE_CHARACTERS:
            return float("inf")
        if set(chunk) <= DATA_CHARACTERS or "\\x" in chunk:
            return 5 * self._same_limit
        return 4 * self._same_limit if len(chunk) == 1 and chunk.isalpha() else self._same_limit
