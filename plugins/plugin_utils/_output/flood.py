# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find output that repeats itself with small changes: loops, repeated sentences, empty lists, stuttered words.

Private to the collection.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from .garbage import WORD, Garbage, share_of_letters

SENTENCE_END = re.compile(r"[.!?]+(?=\s|$)|[\u3002\uff01\uff1f\n]+")
ITEM = re.compile(r"^[ \t]*(?:\d{1,4}[.)]|[-*\u2022])(?!\S)[ \t]*(.*)$", re.MULTILINE)
CODE = re.compile(r"[<>{};=|]")
DIGITS = re.compile(r"\d+")
STUTTER = re.compile(r"\b([^\W\d_]{2,})(?:[ \t]+\1\b){2,}", re.IGNORECASE)

HEADER = re.compile(
    r"^[ \t]*(?:(?!(?:if|for|while|switch|catch|elif|else|with|return|try|except|case|match)\b)"
    r"[\w<][^\n(){};=]*\([^()\n;]*\)[^;()\n]*(?:[:{]|\n[ \t]*\{)"
    r"|def \w[^\n=]*$"
    r"|(?:export )?(?:const |let |var )?\w+ = (?:lambda\b|(?:async )?(?:\w+|\([^()\n]*\)) =>)"
    r"|CREATE (?:OR REPLACE )?(?:FUNCTION|PROCEDURE)\b)",
    re.MULTILINE | re.IGNORECASE,
)
"""First line of a function in Python, C, Java, JavaScript, Go, Rust, PHP, Ruby or SQL."""

PIECE = re.compile(r'"{3}[\s\S]*?"{3}|(?:#|//)[^\n]*|"[^"\n]*"|\'[^\'\n]*\'|[^\W\d]\w*|\d[\w.]*|\S')

VALUE = re.compile(r"""["'\d].*""")

LONGEST_COUNTER = 18
"""Maximum digits of a number that may be a counter."""


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


def _sentences(text: str) -> Garbage | None:
    """Check for sentences that repeat unchanged, or with only a counter that increases.

    Sentences that occur at most once per line may repeat more often: songs have refrains, logs and lists have rows.
    """
    lines = [
        [s for s in map(str.strip, SENTENCE_END.split(line)) if len(s) >= 15 and len(WORD.findall(s)) >= 4]
        for line in text.splitlines()
    ]
    sentences = [s for line in lines for s in line]
    running = {form for line in lines for form, n in Counter(map(_form, line)).items() if n > 1}
    total = sum(map(len, sentences))
    counts = Counter(s for s in sentences if not CODE.search(s))
    flooded = {s: n for s, n in counts.items() if n >= (10 if _form(s) in running else 20)}
    if flooded and sum(len(s) * n for s, n in flooded.items()) >= 0.5 * total:
        worst = max(flooded, key=lambda s: len(s) * flooded[s])
        return Garbage("sentence_flood", text.find(worst), f"{worst[:60]!r} occurs {flooded[worst]} times")
    same = {s: n for s, n in _counted(sentences).items() if n >= (40 if s in running else 120)}
    if same and sum(len(s) * n for s, n in same.items()) >= 0.7 * total:
        worst = max(same, key=lambda s: same[s])
        reason = f"{worst[:60]!r} occurs {same[worst]} times, and only a counter changes"
        return Garbage("sentence_flood", 0, reason)
    return None


def _form(sentence: str) -> str:
    """Return the sentence with every number replaced by 0."""
    return DIGITS.sub("0", sentence)


def _counted(sentences: Iterable[str]) -> Counter[str]:
    """Return for each form of a sentence how often its numbers continue the step of the two sentences before it.

    Rows of a log or of a table have the same form too, but their numbers carry information.
    """
    before: dict[str, tuple[list[int], list[int]]] = {}
    counted: Counter[str] = Counter()
    for sentence in sentences:
        digits = DIGITS.findall(sentence)
        if not digits or CODE.search(sentence) or max(map(len, digits)) > LONGEST_COUNTER:
            continue
        form = _form(sentence)
        numbers = [int(d) for d in digits]
        last, step = before.get(form, ([], []))
        now = [b - a for a, b in zip(last, numbers, strict=False)]
        counted[form] += bool(now) and now == step
        before[form] = numbers, now
    return counted


def _items(text: str) -> Garbage | None:
    """Check for lists whose items are empty or all equal; short answers (``pass``, ``True``) may repeat more often."""
    items = [(m.start(), m.group(1).strip()) for m in ITEM.finditer(text)]
    if len(items) < 20:
        return None
    common, count = Counter(item for start, item in items).most_common(1)[0]
    answer = 0 < len(common.split()) <= 2
    if count >= len(items) - 1 >= 60 if answer else count >= max(20, 0.6 * len(items)):
        at = next(start for start, item in items if item == common)
        shown = repr(common[:60]) if common else "nothing"
        return Garbage("list_flood", at, f"{count} of {len(items)} items of a list say {shown}")
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
    """Return a stretch that repeats itself: loops with small changes, repeated sentences, empty lists, few words."""
    return _squeezed(text, window) or _sentences(text) or _items(text) or _poverty(text)


def _shape(function: str) -> str:
    """Return the function without comments, values and operators, its names numbered as they occur."""
    names: dict[str, str] = {}
    pieces = [piece for piece in PIECE.findall(function) if not piece.startswith(('"""', "#", "//"))]
    return " ".join(
        names.setdefault(piece, f"v{len(names)}")
        if piece.isidentifier()
        else "+"
        if piece in "+-*/%"
        else VALUE.sub("0", piece)
        for piece in pieces
    )


def find_functions(text: str) -> Garbage | None:
    """Return an endless row of functions that differ only in names and values.

    Of 58,700 slices of sources and documentation with 12,000 characters, only five files have so many functions of so
    few shapes: generated code, tables, and tests of one line.
    """
    starts = [match.start() for match in HEADER.finditer(text)]
    functions = [text[start:end] for start, end in pairwise(starts)]
    size = sum(map(len, functions))
    if len(functions) < (60 if size < 5000 else 30) or size < 0.5 * len(text):
        return None
    shapes = set(map(_shape, functions))
    if len(shapes) > 0.05 * len(functions):
        return None
    return Garbage("flood", starts[0], f"{len(functions)} functions differ only in names and values")


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
