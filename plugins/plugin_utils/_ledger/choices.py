# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read from NCCL's own lines which algorithm and protocol it takes for which message. Private to the collection.

Rank 0 prints a line per collective with subsystem TUNING (NVIDIA/nccl src/enqueue.cc, 2.24.3 to 2.30.7; releases before
print numbers instead of names). The replay of a CUDA graph prints none. The size is that of a rank's own part, so an
all-gather of n ranks has n times these bytes. Every rank prints its trees with subsystem INIT (src/init.cc).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

_CHOICE = re.compile(
    r"(AllReduce|AllGather): (\d{1,15}) Bytes -> Algo (\w+) proto (\w+) channel\{Lo\.\.Hi\}=\{(\d{1,3})\.\.(\d{1,3})\}"
)
_TREES = re.compile(r"NCCL INFO Trees((?: \[\d{1,3}\] -?\d+/-?\d+/-?\d+->\d+->-?\d+)+)")
_TREE = re.compile(r"\[(\d+)\] (-?\d+)/(-?\d+)/(-?\d+)->\d+->(-?\d+)")
_KINDS = {"AllReduce": "reduce", "AllGather": "gather"}
PROTOCOLS = {"LL": 2.0, "LL128": 16 / 15, "SIMPLE": 1.0}
"""Bytes on the wire per byte of a message: LL sends four bytes of flags with four of data, LL128 eight with 120."""
_RINGS = {"RING", "PAT"}


class Choice(NamedTuple):
    """What NCCL takes for one size: its names of algorithm and protocol, and the channels that share the message."""

    algorithm: str
    protocol: str
    channels: tuple[int, int]

    @property
    def factor(self) -> float:
        """Return the bytes on the wire per byte of the message; raise ValueError for what is not modelled."""
        if self.algorithm not in {*_RINGS, "TREE"} or self.protocol not in PROTOCOLS:
            raise ValueError(f"NCCL takes {self.algorithm} with {self.protocol}, whose exchange is not known")
        return PROTOCOLS[self.protocol]

    @property
    def is_tree(self) -> bool:
        """Return whether ranks exchange different amounts, by their place in a tree."""
        return self.algorithm == "TREE"


@dataclass
class Choices:
    """NCCL's choices by kind and bytes of the result, and the neighbours in each channel's tree by pod."""

    ranks: int
    sizes: dict[str, dict[int, Choice]] = field(default_factory=lambda: {"reduce": {}, "gather": {}})
    neighbours: dict[str, dict[int, int]] = field(default_factory=dict)
    _disputed: set[tuple[str, int]] = field(default_factory=set)

    def read(self, pod: str, lines: Iterable[str]) -> Choices:
        """Add what a pod's lines say. What communicators answer differently is unknown: lines don't name them."""
        for line in lines:
            if match := _CHOICE.search(line):
                kind = _KINDS[match[1]]
                size = int(match[2]) * (self.ranks if kind == "gather" else 1)
                choice = Choice(match[3], match[4], (int(match[5]), int(match[6])))
                if self.sizes[kind].setdefault(size, choice) != choice:
                    self._disputed.add((kind, size))
            elif match := _TREES.search(line):
                trees = {int(tree[0]): sum(int(rank) >= 0 for rank in tree[1:]) for tree in _TREE.findall(match[1])}
                if self.neighbours.setdefault(pod, trees) != trees:
                    self.neighbours[pod] = {}
        return self

    def of(self, kind: str, size: float) -> Choice | None:
        """Return NCCL's choice for a size, or that of both neighbouring sizes if they agree; None if it is unknown."""
        known = {each: one for each, one in self.sizes[kind].items() if (kind, each) not in self._disputed}
        below = max((each for each in known if each <= size), default=None)
        above = min((each for each in known if each >= size), default=None)
        if below is None or above is None:
            return None
        return known[below] if known[below] == known[above] else None

    def edges(self, pod: str, channels: tuple[int, int]) -> float | None:
        """Return the mean number of a pod's neighbours in the trees of these channels; None if NCCL did not say."""
        trees = self.neighbours.get(pod, {})
        wanted = range(channels[0], channels[1] + 1)
        return sum(trees[each] for each in wanted) / len(wanted) if wanted and all(c in trees for c in wanted) else None
