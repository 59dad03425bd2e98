# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find random words: mixed writing systems, words that never repeat, no grammar. Private to the collection."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

from .garbage import WORD, Garbage

ARTICLES = frozenset({"the", "a", "an"})
NEVER_AFTER_ARTICLE = frozenset(
    {"of", "and", "to", "is", "in", "that", "for", "with", "or", "at", "by", "from", "are", "was", "were", "be", "it"}
    | {"as", "on", "this", "the", "an"}
)
SENTENCE_LINE = re.compile(r"^\W{0,4}\w.*[.!?]\W?$")
HAN_RUN = re.compile(r"[\u4e00-\u9fff]{20,}")
HANGUL = re.compile(r"[\uac00-\ud7a3]")
JOINED = re.compile(r"[a-z\u00df-\u00ff\u0430-\u044f\u03b1-\u03c9]{250,}")
ENOUGH_WORDS = 150
MARK = re.compile(r"[^\w \t]|[\d_]")


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
    mixed = [w for w in words if len(w) >= 4 and len(_scripts_of(w)) > 1]
    if len(mixed) >= 8 and len(mixed) >= 0.05 * len(words):
        detail = f"{len(mixed)} words mix writing systems, first {mixed[0][:30]!r}"
        return Garbage("word_salad", text.find(mixed[0]), detail)
    return None


def _scripts_of(word: str) -> set[str]:
    """Return the writing systems of a word, without CJK (usual beside Latin) and one Greek letter (a unit)."""
    counts = Counter(script(c) for c in word)
    return {s for s, n in counts.items() if s not in ("CJK", "MICRO", "OHM", "MODIFIER") and (s != "GREEK" or n > 1)}


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


def _drawn_from_a_hat(text: str) -> Garbage | None:
    """Check text without punctuation: are its words in random order?

    Two tests: natural text rarely repeats a word at once, and it repeats the same pair of words more often than random
    text does. Measured: of 4,900 pieces of documentation whose punctuation was removed, only indexes, tables and lists
    of names fail both. Of 20 random texts (400 words, drawn from 29), 19 fail both.
    """
    for piece in MARK.split(text):
        words = piece.lower().split()
        total = len(words)
        if total < ENOUGH_WORDS:
            continue
        pairs = Counter(pairwise(words))
        alike = sum(n * (n - 1) for n in Counter(words).values()) / (total * (total - 1))
        doubles, expected = sum(n for (a, b), n in pairs.items() if a == b), alike * total
        again, by_chance = sum(n * (n - 1) for n in pairs.values()) / 2, (alike * total) ** 2 / 2
        if doubles >= max(3, 0.5 * expected) and again <= 1.4 * by_chance:
            reason = f"{total} words without a mark follow one another as chance has it: {doubles} of them themselves"
            return Garbage("word_salad", text.find(piece), reason)
    return None


def _characters_at_random(text: str) -> Garbage | None:
    for name, kind in (("Chinese characters", HAN_RUN), ("syllables", HANGUL)):
        characters = "".join(kind.findall(text))
        if len(characters) >= 200 and len(set(characters)) > 0.85 * min(len(characters), 1000):
            return Garbage("word_salad", 0, f"{len(set(characters))} different ones among {len(characters)} {name}")
    joined = JOINED.search(text)
    if joined and len(set(joined.group())) >= 10:
        reason = f"a word of {len(joined.group())} letters: {joined.group()[:30]!r}"
        return Garbage("word_salad", joined.start(), reason)
    return None


def find_salad(text: str) -> Garbage | None:
    """Return text with changing writing systems, with words that never repeat, without grammar, or of random words."""
    words = WORD.findall(text)
    return (
        _mixed_scripts(text, words) or _without_grammar(text) or _drawn_from_a_hat(text) or _characters_at_random(text)
    )
