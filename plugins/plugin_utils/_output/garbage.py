# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the judges of outputs share: the finding, and which characters mean nothing by themselves. Private to us."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

RULE_CHARACTERS = frozenset("-=_*#.~+|: \u00a0\t\n\r─━═│┃┼—\u2013·•█▓░▒⬛⬜/\\<>")
"""Characters that healthy text repeats at length: rules, table borders, dot leaders, indentation, bars, drawings."""

DATA_CHARACTERS = RULE_CHARACTERS | frozenset("0123456789,;'\"()[]{}")
"""Those, and what rows of numbers are made of."""

WORD = re.compile(r"[^\W\d_]+", re.UNICODE)


@dataclass(frozen=True)
class Garbage:
    """One sign of broken output: its ``kind``, the character offset ``at`` which it begins, and what was seen."""

    kind: str
    at: int
    detail: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


def share_of_letters(text: str) -> float:
    """Return which part of the text is letters: about 0.8 in prose, 0.5 in code, next to nothing in data."""
    return sum(map(str.isalpha, text)) / max(1, len(text))
