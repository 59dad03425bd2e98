# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell broken model output from healthy output, so that garbage never becomes a record. Private to us.

A model whose kernels are wrong collapses onto one token, loops, or emits noise, and is faster at it than at answers:
published matrices hold rows of 142-156 tok/s that were eight streams of ``!``. Guards that count words never see those,
since ``!`` is no word; everything here works on characters.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

SEED_LENGTH = 8
"""Length of the shingles by which repetition is found, in characters."""

RULE_CHARACTERS = frozenset("-=_*#.~+|: \u00a0\t\n\r─━═│┃┼—\u2013·•█▓░/\\<>")
"""Characters that healthy text repeats at length: rules, table borders, dot leaders, indentation, bars."""

SPECIAL_TOKEN = re.compile(
    r"<(?:unk|pad|s|/s|bos|eos|mask|extra_id_\d+|0x[0-9A-Fa-f]{2}|\|[^|<>\n]{1,40}\|)>|\[(?:PAD|UNK|MASK|CLS|SEP)\]"
)
SENTENCE_END = re.compile(r"[.!?\u3002\uff01\uff1f\n]+")
WORD = re.compile(r"[^\W\d_]+", re.UNICODE)
STUTTER = re.compile(r"\b([^\W\d_]{2,})(?:[ \t]+\1\b){2,}", re.IGNORECASE)


@dataclass(frozen=True)
class Garbage:
    """One sign of broken output: its ``kind``, the character offset ``at`` which it begins, and what was seen."""

    kind: str
    at: int
    detail: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


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

    Positions whose shingle was last seen the same distance back form one run; the distance is its period.
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

    Loops that run to the end of the output never recovered and are judged more strictly than loops inside it;
    so are those that make up most of the text. Borders, leaders and numeric data may repeat for long.
    """
    data = any(c.isdigit() or c in RULE_CHARACTERS for c in period)
    meaningful = not data or any(
        c not in RULE_CHARACTERS and not c.isdigit() and c not in ",;'\"()[]{}" for c in period
    )
    wordy = any(c.isalpha() for c in period)
    size = len(period)
    if not meaningful:
        return (100, 8) if at_end and share >= 0.7 else (800, 8)
    if size == 1:
        return (100 if wordy else 30 if at_end else 130, 1)
    if size <= 8:
        return (48, 8) if at_end else (96, 12)
    if size <= 60:
        return (110, 5) if at_end or share >= 0.5 else (240, 10)
    return (200, 3) if at_end or share >= 0.5 else (400, 4)


def find_loop(text: str) -> Garbage | None:
    """Return the first exact loop that no healthy text has: one character, a word, a sentence or a whole answer."""
    for run in periodic_runs(text):
        period = text[run.start : run.start + run.period]
        at_end = len(text.rstrip()) - run.end <= 3
        length, repeats = _limits(period, at_end, run.length / len(text))
        if run.length >= length and run.repeats >= repeats:
            kind = "single_token" if run.period <= 2 else "suffix_loop" if at_end else "loop"
            shown = period if len(period) <= 60 else period[:57] + "..."
            return Garbage(kind, run.start, f"{shown!r} repeats {run.repeats:.0f} times over {run.length} characters")
    return None


def find_flood(text: str, window: int = 3000) -> Garbage | None:
    """Return a stretch that says almost nothing new: loops with small changes, sentences in turn.

    Measured in this repository's corpus: prose compresses 2-3 fold, code up to 7, tables up to 10; loops 15 and more.
    """
    for start in range(0, max(1, len(text) - window // 2), window // 2):
        piece = text[start : start + window]
        raw = piece.encode()
        if len(piece) < 600 or not WORD.search(piece):
            continue
        ratio = len(raw) / len(zlib.compress(raw, 9))
        if ratio >= 13:
            return Garbage(
                "flood", start, f"{len(piece)} characters compress {ratio:.0f}-fold: almost nothing new is said"
            )
    sentences = [s for s in map(str.strip, SENTENCE_END.split(text)) if len(s) >= 15 and len(WORD.findall(s)) >= 4]
    counts = Counter(sentences)
    flooded = {s: n for s, n in counts.items() if n >= 10}
    share = sum(len(s) * n for s, n in flooded.items()) / max(1, sum(map(len, sentences)))
    if share >= 0.5:
        worst = max(flooded, key=lambda s: len(s) * flooded[s])
        return Garbage("sentence_flood", text.find(worst), f"{worst[:60]!r} stands there {flooded[worst]} times")
    return None


def find_stutter(text: str) -> Garbage | None:
    """Return words said three and more times in a row again and again (``retire retire retire``)."""
    hits = list(STUTTER.finditer(text))
    words = len(WORD.findall(text))
    if len(hits) >= 4 and sum(len(WORD.findall(h.group())) for h in hits) >= 0.05 * words:
        return Garbage(
            "stutter",
            hits[0].start(),
            f"{len(hits)} words are said three or more times in a row, first {hits[0].group()[:40]!r}",
        )
    return None


def find_noise(text: str) -> Garbage | None:
    """Return bytes that are no text: replacement and control characters, special tokens, no word at all."""
    odd = [
        i
        for i, c in enumerate(text)
        if c == "\ufffd" or (unicodedata.category(c) in ("Cc", "Co", "Cn") and c not in "\n\r\t\f\x1b")
    ]
    if len(odd) >= 10 or len(odd) > 0.02 * len(text):
        return Garbage("undecodable", odd[0], f"{len(odd)} characters are no text")
    tokens = list(SPECIAL_TOKEN.finditer(text))
    if len(tokens) >= 20 or sum(len(t.group()) for t in tokens) > 0.3 * len(text):
        return Garbage(
            "special_tokens", tokens[0].start(), f"{len(tokens)} special tokens, first {tokens[0].group()!r}"
        )
    stripped = "".join(text.split())
    if (
        len(stripped) >= 4
        and not any(c.isalnum() for c in stripped)
        and len(set(stripped)) <= max(3, len(stripped) // 8)
    ):
        return Garbage(
            "single_token",
            0,
            f"no letter or digit in {len(stripped)} characters, only {''.join(sorted(set(stripped)))[:10]!r}",
        )
    if len(stripped) >= 8 and len(set(stripped)) == 1:
        return Garbage("single_token", 0, f"nothing but {stripped[0]!r}")
    return None


def _script(character: str) -> str:
    """Return the writing system of a letter, by its Unicode name; Chinese, Japanese and Korean are one."""
    name = unicodedata.name(character, "").split(" ", 1)[0]
    return "CJK" if name in ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "HALFWIDTH", "FULLWIDTH", "IDEOGRAPHIC") else name


def find_salad(text: str) -> Garbage | None:
    """Return text whose writing system changes from word to word, or whose words never come back."""
    words = WORD.findall(text)
    scripts = [_script(w[0]) for w in words]
    # A list of translations goes from Latin to another script and back; only salad jumps between the others.
    jumps = sum(a != b and "LATIN" not in (a, b) for a, b in pairwise(scripts))
    if len(words) >= 20 and jumps >= 8 and jumps >= 0.15 * len(words):
        kinds = ", ".join(sorted(set(scripts)))
        return Garbage("word_salad", 0, f"the writing system jumps {jumps} times in {len(words)} words: {kinds}")
    mixed = [w for w in words if len({_script(c) for c in w} - {"CJK"}) > 1]
    if len(mixed) >= 8 and len(mixed) >= 0.05 * len(words):
        return Garbage(
            "word_salad", text.find(mixed[0]), f"{len(mixed)} words mix writing systems, first {mixed[0][:30]!r}"
        )
    prose = [
        w.lower()
        for line in text.splitlines()
        if (ws := WORD.findall(line)) and len(ws) >= 40 and line.count(",") < len(ws) / 4
        for w in ws
    ]
    if len(prose) >= 150 and len(set(prose)) > 0.92 * len(prose) and "CJK" not in scripts:
        return Garbage(
            "word_salad",
            0,
            f"{len(set(prose))} different words among {len(prose)}: no language repeats its words so rarely",
        )
    return None


def judge_text(text: str) -> list[Garbage]:
    """Return every sign that one finished output is broken; an empty list for a healthy one."""
    if not text.strip():
        return [Garbage("no_content", 0, "the output is empty")]
    checks = (find_noise, find_loop, find_flood, find_stutter, find_salad)
    return [found for check in checks if (found := check(text)) is not None]


class StreamGuard:
    """Judge an output while it arrives, so that a collapsed server is not timed for 3072 tokens.

    Feed it the chunks of one stream; it remembers the first finding. Work per chunk is constant: the tail is
    looked at once for every ``every`` new characters.
    """

    def __init__(self, tail: int = 2400, every: int = 400, same_chunks: int = 32) -> None:
        self.finding: Garbage | None = None
        self._tail, self._every, self._same_limit = tail, every, same_chunks
        self._text, self._dropped, self._fresh = "", 0, 0
        self._last, self._same = "", 0

    def feed(self, chunk: str) -> Garbage | None:
        """Take the next chunk and return the finding, once there is one."""
        if self.finding or not chunk:
            return self.finding
        self._same = self._same + 1 if chunk == self._last else 1
        self._last = chunk
        self._text += chunk
        self._fresh += len(chunk)
        if self._same >= self._same_limit and not set(chunk) <= RULE_CHARACTERS:
            at = self._dropped + len(self._text) - self._same * len(chunk)
            self.finding = Garbage("single_token", max(0, at), f"{self._same} chunks in a row are {chunk[:20]!r}")
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


def judge_all(texts: Iterable[str]) -> list[list[Garbage]]:
    """Return the findings of each text, in order."""
    return [judge_text(text) for text in texts]
