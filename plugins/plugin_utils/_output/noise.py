# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find output that is not text: broken bytes, leaked tokens, punctuation without words. Private to the collection."""

from __future__ import annotations

import math
import re
import string
import unicodedata
import zlib
from collections import Counter
from itertools import pairwise

from .garbage import RULE_CHARACTERS, WORD, Garbage

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
