# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The finding type and the character sets that all output checks share. Private to the collection."""

from __future__ import annotations

import math
import re
import string
import unicodedata
import zlib
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

MIXED = re.compile("[a-z][A-Z]")
"""A capital letter after a small one: a quarter of random letters in mixed case, an eighth of names in code."""

PROTEIN = 20
"""Number of letters in the code of amino acids, in which sequences of proteins are written with capital letters."""

LONGEST_CODE = 32
"""Maximum characters of a password or code in a list of equally long ones."""

DRAWING = RULE_CHARACTERS | frozenset("[](),^`'o")
"""Characters of drawings, Morse code and board games that contain no letter or digit."""


def _undecodable(text: str) -> Garbage | None:
    odd = [i for i, c in enumerate(text) if unicodedata.category(c) in ("Cc", "Co", "Cn") and c not in "\n\r\t\f\x1b"]
    odd += [match.start() for match in BROKEN.finditer(text)]
    if len(odd) >= 10 or len(odd) > 0.02 * len(text):
        return Garbage("undecodable", min(odd), f"{len(odd)} characters are not text, or were decoded wrongly")
    return None


def _wordless(text: str) -> Garbage | None:
    """Check for output without any letter or digit, except drawings and Morse code."""
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
    if pictures >= 150 and len(kinds) >= 20:
        return Garbage("no_words", 0, f"{pictures} pictures and not one word")
    few = len(kinds) <= 3 or (len(stripped) >= 60 and len(kinds) <= len(stripped) // 8)
    if few and not kinds <= DRAWING and pictures < len(stripped):
        return Garbage("single_token", 0, f"no letter or digit in {len(stripped)} characters, only {shown!r}")
    return None


def _random(text: str) -> Garbage | None:
    """Check for random printable characters, which do not compress and have more punctuation than any format."""
    dense = text.encode()
    if len(text) < 800 or len(dense) != len(text):
        return None
    marks = sum(c in string.punctuation and c not in "+/=_-" for c in text) / len(text)
    ratio = len(dense) / len(zlib.compress(dense, 9))
    if ratio < 1.35 and marks > 0.12:
        return Garbage("noise", 0, f"{len(text)} characters compress {ratio:.2f}-fold and {marks:.0%} are punctuation")
    return None


def _unmatched(text: str) -> Garbage | None:
    """Check whether brackets match, which they do not in code that is assembled from random tokens.

    In 15,000 slices of sources and documentation, the highest share of wrong brackets was a quarter (a parser's test).
    Round and square brackets count as equal, because half-open intervals mix them. Closing brackets without an opening
    bracket are ignored, because a text that was cut may start with them.
    """
    opened: list[str] = []
    closed = wrong = 0
    for c in text:
        if c in "([{":
            opened.append(c)
        elif c in ")]}" and opened:
            closed += 1
            wrong += (opened.pop() == "{") != (c == "}")
    if closed >= 100 and wrong >= 0.4 * closed:
        return Garbage("noise", 0, f"{wrong} of {closed} brackets close one of another kind")
    return None


def _codes(words: list[str]) -> bool:
    """Return whether the words may be passwords or codes: all equally long; a stream may cut the first and the last."""
    return len(words) > 2 and len({*map(len, words[1:-1])}) == 1 and len(words[1]) <= LONGEST_CODE


def _alphanumerics(text: str) -> Garbage | None:
    """Check for random letters and digits, of which no format consists.

    Hexadecimal and base32 text has at most 33 different characters, base64 has marks, and names with digits compress
    better. Of 9,500 slices of sources and documentation without marks, only recordings of noise have these values.
    """
    words = text.split()
    joined = "".join(words)
    if len(joined) < 800 or not (joined.isascii() and joined.isalnum()) or len(set(joined)) <= 33 or _codes(words):
        return None
    switches = sum(a.isdigit() != b.isdigit() for a, b in pairwise(joined)) / len(joined)
    ratio = len(joined) / len(zlib.compress(joined.encode(), 9))
    if switches > 0.15 and ratio < 1.7:
        return Garbage("noise", 0, f"nothing but {len(joined)} random letters and digits")
    return None


def _letters(text: str) -> Garbage | None:
    """Check whether letters follow each other at random: no language does that, but DNA (four letters) and codes do.

    The test is Pearson's chi-squared for neighbouring letters. Per degree of freedom it was at least 1.4 in 12,700
    slices of sources and documentation with 300 or more neighbours, and grows with their number; random letters have 1.
    Letters in mixed case are judged without their case if the text has hardly anything else; base64 has digits.
    """
    if text.isupper() and len({*filter(str.isalpha, text)}) > PROTEIN and not any(map(str.isdigit, text)):
        text = text.lower()
    words = [word for word in WORD.findall(text) if word.isascii() and word.islower()]
    share = 0.7
    if len(MIXED.findall(text)) > 0.18 * len(text):
        words, share = [word.lower() for word in WORD.findall(text) if word.isascii()], 0.95
    if sum(map(len, words)) < share * len("".join(text.split())):
        return None
    if _codes(words) or _codes(text.split()):
        return None
    pairs = Counter(pair for word in words for pair in pairwise(word))
    total, first, second = pairs.total(), Counter[str](), Counter[str]()
    for (a, b), count in pairs.items():
        first[a] += count
        second[b] += count
    if total < 600 or len(first) < 5:
        return None
    observed = total * (sum(n * n / (first[a] * second[b]) for (a, b), n in pairs.items()) - 1)
    freedom = (len(first) - 1) * (len(second) - 1)
    if observed < freedom + 4 * math.sqrt(2 * freedom):
        return Garbage("noise", 0, f"the letters of {len(words)} words follow each other at random")
    return None


def find_digits(text: str) -> Garbage | None:
    """Return a finding if a whole output is random digits: one endless number, or numbers without any layout.

    Tables have lines or numbers of similar length, and few begin with a zero. Digits of pi have a decimal point.
    """
    numbers = re.split(r"[\s,;.]+", text.strip())
    joined = "".join(numbers)
    if len(joined) < 300 or not (joined.isascii() and joined.isdigit()):
        return None
    endless = all(len(number) >= 40 for number in numbers[:-1] or numbers)
    single = len(text.split("\n")) == 1 and all(len(number) == 1 for number in numbers)
    padded = sum(len(number) > 1 and number[0] == "0" for number in numbers)
    ragged = len({*map(len, numbers)}) >= 4 and padded >= 0.03 * len(numbers)
    # Random digits compress 1.8- to 2.0-fold.
    if (endless or single or ragged) and len(joined) / len(zlib.compress(joined.encode(), 9)) < 2.1:
        return Garbage("noise", 0, f"nothing but {len(joined)} random digits")
    return None


def find_noise(text: str) -> Garbage | None:
    """Return that the output is not text: undecodable bytes, leaked tokens, no words, or random characters."""
    return (
        _undecodable(text)
        or _wordless(text)
        or _random(text)
        or _unmatched(text)
        or _letters(text)
        or _alphanumerics(text)
    )


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
