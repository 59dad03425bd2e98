# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell whether a cell's outputs look like a baseline's: the same questions, another setting. Private to the collection.

Kernels that are a little wrong give text that no rule of its own calls broken. Its letters still drift: the same model
asked the same questions uses the same pairs of letters, whatever backend computes them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

KEPT = 300
"""Pairs that a fingerprint keeps; they carry nearly all of the weight in every language that was tried."""

ENOUGH = 3000
"""Characters below which a fingerprint says nothing: pieces of 1,200 of one text are up to 0.38 apart."""

FAR = 0.4
"""Divergence from which outputs are far from their baseline.

Measured on English reports and this repository, 0 to 1: the halves of one text 0.05 to 0.20, two texts of one subject
0.10 to 0.16, prose against a licence or against code 0.19 to 0.22, random syllables 0.48, German 0.51, another script
0.99.
"""


def fingerprint(texts: Iterable[str]) -> dict[str, Any]:
    """Return ``{characters, pairs: {pair: share}}`` of all the texts together; case and kind of blank don't count."""
    pairs: Counter[str] = Counter()
    characters = 0
    for text in texts:
        plain = " ".join(text.lower().split())
        characters += len(plain)
        pairs.update(map("".join, pairwise(plain)))
    total = sum(pairs.values())
    return {"characters": characters, "pairs": {p: round(n / total, 6) for p, n in pairs.most_common(KEPT)}}


def divergence(one: Mapping[str, Any], other: Mapping[str, Any]) -> float | None:
    """Return the Jensen-Shannon divergence of two fingerprints, 0 (alike) to 1; None where one has too little text."""
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
    """Return the shares with those of all pairs that were not kept as one, so that they sum up to 1."""
    return {**pairs, "": max(0.0, 1.0 - sum(pairs.values()))}
