# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse and order the versions of SGLang, Python packages, K3s, NCCL and kernels.

The grammar is ``[v]RELEASE[STAGE][BUILD]``:

- RELEASE: one to four numbers with dots: ``0.5.12``, ``1.36.4``, ``6.17.0``.
- STAGE: ``dev``, ``rc`` or ``post`` with an optional number: ``.post1``, ``rc0``, ``-dev``, ``.dev155``.
- BUILD: ``-`` or ``+`` and any text: ``+k3s1``, ``+cuda13.0``, ``-1014-nvidia``. Only K3s's order depends on it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache

_VERSION = re.compile(
    r"v?(?P<release>\d+(?:\.\d+){0,3})"
    r"(?:[._-]?(?P<stage>dev|rc|post)[._-]?(?P<number>\d*))?"
    r"(?:\+k3s(?P<revision>\d+)|[-+][\w.+-]*)?"
)
_STAGES = {"dev": -2, "rc": -1, None: 0, "post": 1}


@dataclass(frozen=True, order=True)
class Version:
    """One version; equal and ordered by release, stage, the stage's number and K3s's revision."""

    text: str = field(compare=False)
    release: tuple[int, ...]
    stage: int = 0
    number: int = 0
    revision: int = 0

    @classmethod
    def parse(cls, text: str, example: str = "0.5.12 or 0.5.12.post1") -> Version:
        """Return the version; for any other text, raise ValueError with an example of a valid version."""
        match = _VERSION.fullmatch(text.strip())
        if match is None or "." not in match["release"]:
            raise ValueError(f"{text!r} is not a version; write it like {example}")
        release = tuple(int(part) for part in match["release"].split("."))
        number, revision = int(match["number"] or 0), int(match["revision"] or 0)
        return cls(text.strip(), release, _STAGES[match["stage"]], number, revision)

    @classmethod
    def find(cls, text: str | None) -> Version | None:
        """Return the version that a program printed about itself; None if the text is None or not a version."""
        try:
            return cls.parse(text or "")
        except ValueError:
            return None

    def __str__(self) -> str:
        return self.text

    def means(self, other: Version) -> bool:
        """Tell whether a build may report the other version: all development builds of 0.5.13 report ``0.5.13-dev``."""
        if self.stage == _STAGES["dev"] and not self.number:
            return (self.release, self.stage) == (other.release, other.stage)
        return self == other

    def within(self, first: str | None, last: str | None) -> bool:
        """Tell whether the release is in a closed range; post and development builds count as their release."""
        return (first is None or self.release >= _release(first)) and (last is None or self.release <= _release(last))


@cache
def _release(text: str) -> tuple[int, ...]:
    """Return the release of a version that this collection names."""
    return Version.parse(text).release
