# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find output that is no text: undecodable characters, none that is a letter, mixed scripts, no grammar.

Private to the collection.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

RULE_CHARACTERS = frozenset("-=_*#.~+|: \u00a0\t\n\r─━═│┃┼—\u2013·•█▓░▒⬛⬜/\\<>")
"""Characters that healthy text may repeat: rules, table borders, dot leaders, indentation, bars, drawings."""

DATA_CHARACTERS = RULE_CHARACTERS | frozenset("0123456789,;'\"()[]{}")
"""The same characters, and those of rows of numbers."""

WORD = re.compile(r"[^\W\d_]+", re.UNICODE)


@dataclass(frozen=True)
class Garbage:
    """One sign of broken output: its ``kind``, the character offset ``at`` which it begins, and what was found."""

    kind: str
    at: int
    detail: str


def share_of_letters(text: str) -> float:
    """Return the share of letters in the text: about 0.8 in prose, 0.5 in code, almost 0 in data."""
    return sum(map(str.isalpha, text)) / max(1, len(text))


BROKEN = re.compile(
    "\ufffd|"
    # UTF-8 that was read as Latin-1 or Windows-1252
    "\u00c3[\u0080-\u00bf\u0152\u0153\u0178\u201a-\u2122]|\u00c2[\u0080-\u00bf]|\u00e2\u20ac|\u00f0\u0178|"
    # the fourth and every further accent of one letter
    "(?<=[\u0300-\u036f]{3})[\u0300-\u036f]"
)

DRAWING = RULE_CHARACTERS | frozenset("[](),^`'o")
"""Characters of drawings that contain no letter or digit."""


def _undecodable(text: str) -> Garbage | None:
    odd = [i for i, c in enumerate(text) if unicodedata.category(c) in ("Cc", "Co", "Cn") and c not in "\n\r\t\f\x1b"]
    odd += [match.start() for match in BROKEN.finditer(text)]
    if len(odd) >= 10 or len(odd) > 0.02 * len(text):
        return Garbage("undecodable", min(odd), f"{len(odd)} characters are not text, or were decoded wrongly")
    return None


def _wordless(text: str) -> Garbage | None:
    """Check for output without any letter or digit, except drawings."""
    stripped = "".join(text.split())
    kinds = set(stripped)
    shown = "".join(sorted(kinds))[:10]
    lines = {line.strip() for line in text.splitlines() if line.strip()}
    drawn = kinds <= DRAWING and len(lines) >= (2 if any(" " in line for line in lines) else 3)
    if len(stripped) >= 8 and len(kinds) == 1 and not drawn:
        return Garbage("single_token", 0, f"nothing but {stripped[0]!r}")
    if len(stripped) < 4 or any(c.isalnum() for c in stripped):
        return None
    pictures = sum(ord(c) > 0x1F000 for c in stripped)
    few = len(kinds) <= 3 or (len(stripped) >= 60 and len(kinds) <= len(stripped) // 8)
    if few and not kinds <= DRAWING and pictures < len(stripped):
        return Garbage("single_token", 0, f"no letter or digit in {len(stripped)} characters, only {shown!r}")
    return None


ARTICLES = frozenset({"the", "a", "an"})
NEVER_AFTER_ARTICLE = frozenset(
    {"of", "and", "to", "is", "in", "that", "for", "with", "or", "at", "by", "from", "are", "was", "were", "be", "it"}
    | {"as", "on", "this", "the", "an"}
)
SENTENCE_LINE = re.compile(r"^\W{0,4}\w.*[.!?]\W?$")
ENOUGH_WORDS = 150


@lru_cache(maxsize=4096)
def script(character: str) -> str:
    """Return the writing system of a letter by its Unicode name; Chinese, Japanese and Korean count as one."""
    name = unicodedata.name(character, "").split(" ", 1)[0]
    return "CJK" if name in ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "HALFWIDTH", "FULLWIDTH", "IDEOGRAPHIC") else name


def _neighbours(text: str) -> Iterator[tuple[str, str]]:
    """Yield the scripts of neighbouring words that are separated only by white space."""
    for line in text.splitlines():
        words = list(WORD.finditer(line))
        for one, two in pairwise(words):
            if line[one.end() : two.start()].isspace():
                yield script(one.group()[0]), script(two.group()[0])


def _mixed_scripts(text: str, words: list[str]) -> Garbage | None:
    pairs = [(a, b) for a, b in _neighbours(text) if a != b]
    # A list of translations alternates between Latin and another script; only word salad jumps between two others.
    jumps = sum("LATIN" not in pair for pair in pairs)
    if len(words) >= 20 and jumps >= 8 and jumps >= 0.1 * len(words):
        kinds = ", ".join(sorted({s for pair in pairs for s in pair}))
        return Garbage("word_salad", 0, f"the writing system jumps {jumps} times in {len(words)} words: {kinds}")
    letters = Counter(script(c) for w in words for c in w)
    if letters["LATIN"] >= 0.7 * letters.total() and len(words) >= 40:
        # Healthy text puts names and terms of another script in quotes or brackets; many without them are a sign.
        inside = sum(len({script(c) for c in w} & {"LATIN", "CJK"}) == 2 for w in words)
        bare = inside + sum(a == "LATIN" and b != "GREEK" for a, b in pairs)
        if bare >= 10 and bare >= 0.06 * len(words):
            return Garbage("word_salad", 0, f"another writing system occurs {bare} times in {len(words)} words")
    return None


def _prose(text: str) -> list[str]:
    """Return the words of all lines of prose, which are long lines and lines that end like a sentence."""
    out: list[str] = []
    for line in text.splitlines():
        words = WORD.findall(line)
        sentence = len(words) >= 5 and SENTENCE_LINE.match(line.strip())
        if (len(words) >= 40 or sentence) and line.count(",") < len(words) / 4 and not re.search(r"[{};<>|=]", line):
            out += [w.lower() for w in words]
    return out


def _without_grammar(text: str) -> Garbage | None:
    prose = _prose(text)
    if len(prose) < ENOUGH_WORDS or any(script(w[0]) in ("CJK", "THAI", "LAO", "KHMER", "MYANMAR") for w in prose):
        return None
    common = sum(count for word, count in Counter(prose).most_common(10)) / len(prose)
    if common < 0.08:
        reason = f"the ten commonest of {len(prose)} words make {common:.0%}: no language repeats its own so rarely"
        return Garbage("word_salad", 0, reason)
    articles = [(a, b) for a, b in pairwise(prose) if a in ARTICLES]
    wrong = [pair for pair in articles if pair[1] in NEVER_AFTER_ARTICLE]
    if len(wrong) >= 4 and len(wrong) >= 0.2 * len(articles):
        reason = f"{len(wrong)} of {len(articles)} articles precede words such as {wrong[0][1]!r}"
        return Garbage("word_salad", 0, reason)
    return None


def find_noise(text: str) -> Garbage | None:
    """Return that the output is not text: undecodable bytes, leaked tokens, no words."""
    return _undecodable(text) or _wordless(text)


def find_salad(text: str) -> Garbage | None:
    """Return text with changing writing systems, with words that never repeat, or without grammar."""
    return _mixed_scripts(text, WORD.findall(text)) or _without_grammar(text)
