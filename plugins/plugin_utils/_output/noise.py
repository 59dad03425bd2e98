# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find output that is not text: broken bytes, leaked tokens, punctuation without words. Private to the collection."""

from __future__ import annotations

import re
import string
import unicodedata
import zlib

from .garbage import RULE_CHARACTERS, Garbage

BROKEN = re.compile(
    "\ufffd|"
    # UTF-8 that was read as Latin-1 or Windows-1252
    "\u00c3[\u0080-\u00bf\u0152\u0153\u0178\u201a-\u2122]|\u00c2[\u0080-\u00bf]|\u00e2\u20ac|\u00f0\u0178|"
    # the fourth and every further accent of one letter
    "(?<=[\u0300-\u036f]{3})[\u0300-\u036f]"
)

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


def find_noise(text: str) -> Garbage | None:
    """Return that the output is not text: undecodable bytes, leaked tokens, no words, or random characters."""
    return _undecodable(text) or _wordless(text) or _random(text) or _unmatched(text)
