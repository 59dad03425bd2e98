# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the text of a cell's outputs with a baseline: the same questions with another setting.

Private to the collection. Slightly wrong kernels produce text that no single rule detects, but its letters drift: the
same model with the same questions uses the same pairs of letters, whatever backend computes them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

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
