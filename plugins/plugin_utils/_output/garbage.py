# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The finding type and the character sets that all output checks share. Private to the collection."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
