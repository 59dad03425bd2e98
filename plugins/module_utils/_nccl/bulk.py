# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Count channel lines quickly in large logs. Private to the collection.

Nine of ten lines of an NCCL log are channel lines that differ only in channel and ranks. This module splits a block of
lines at these differing parts. Each remaining piece, such as ``NET/IB/0⏎host:pid:tid [dev]``, contains the path of one
line and the writer of the next line. Few pieces differ, so most of the work is counting equal ones.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable

# Matches from "NCCL INFO" to "via"; a line of another form is passed on unchanged. No part may contain a line end:
# otherwise the statement "Channel 00/02 : 0 1" and a prompt that says "] -> b] via NET/IB/0" would make one channel.
# A range and [^]\n] are faster than a class of characters.
_CHANNEL = re.compile(rb" NCCL INFO Channel [ -Z]*+\[[^\]\n]*+\] -> [ -Z]*+\[[^\]\n]*+\] (?:\[\w++\] )?+via ")
# Replaces the text that was split off when a line must be restored.
_ANY_CHANNEL = b" NCCL INFO Channel 00/0 : 0[0] -> 0[0] via "
_CACHE = 4096

Others = Callable[[list[bytes]], None]
Counted = Callable[[bytes, Iterable[tuple[bytes, int]]], None]


class ChannelBlocks:
    """Splits blocks of lines into channel lines, which are counted, and other lines, in the order of the log.

    ``counted(head, counts)`` receives the text before ``NCCL INFO``, and each text after ``via`` with its count.
    ``others(lines)`` receives all other lines up to the next channel line.
    """

    def __init__(self, others: Others, counted: Counted) -> None:
        self._others, self._counted = others, counted
        # {piece: (via, writer of the next line)} of pieces that contain nothing else
        self._simple: dict[bytes, tuple[bytes, bytes]] = {}
        # {writer: the pieces of its last run, with their texts after "via"}
        self._last: dict[bytes, list[tuple[bytes, bytes]]] = {}

    def take(self, block: bytes) -> None:
        """Process one block of whole lines."""
        pieces = _CHANNEL.split(block)
        *lines, head = pieces[0].split(b"\n")
        if lines:
            self._others(lines)
        # One byte per piece, because bytes are searched at memchr's speed.
        known = bytes(map(self._simple.__contains__, pieces))
        if known.count(0) > 2 + len(pieces) // 16:
            # Other lines alone would not cause so many unknown pieces: the block has a new writer.
            self._learn(set(pieces[1:]))
            known = bytes(map(self._simple.__contains__, pieces))
        place, end = 1, len(pieces)
        while place < end:
            if not known[place] or b"NCCL" in head:
                head = self._odd(head, pieces[place])
                place += 1
            else:
                stop = known.find(0, place)
                stop = end if stop < 0 else stop
                head = self._run(head, pieces[place:stop])
                place = stop
        if head:
            self._others([head])

    def _learn(self, pieces: set[bytes]) -> None:
        simple = self._simple
        if len(simple) >= _CACHE:
            simple.clear()
            self._last.clear()
        for piece in pieces:
            if piece not in simple:
                via, end, following = piece.partition(b"\n")
                # Cache a piece only if it is exactly the end of one line and the start of the next.
                if end and b"\n" not in following and b"NCCL" not in piece:
                    simple[piece] = via, following

    def _run(self, head: bytes, pieces: list[bytes]) -> bytes:
        """Count pieces that contain only channel lines; return the writer of the next one."""
        simple = self._simple
        # A writer repeats few pieces. Counting those of its last run takes half of Counter's time.
        counts = [(via, count) for piece, via in self._last.get(head, ()) if (count := pieces.count(piece))]
        if sum(count for _via, count in counts) == len(pieces):
            self._counted(head, counts)
            return head
        kinds = dict.fromkeys(pieces)
        if len(kinds) <= 8 and {simple[piece][1] for piece in kinds} == {head}:
            self._last[head] = [(piece, simple[piece][0]) for piece in kinds]
            return self._run(head, pieces)
        # Ranks alternate: the piece before a line contains the writer of that line.
        pairs = Counter(
            zip([head, *(simple[piece][1] for piece in pieces)], (simple[p][0] for p in pieces), strict=False)
        )
        for (writer, via), count in pairs.items():
            self._counted(writer, [(via, count)])
        return simple[pieces[-1]][1]

    def _odd(self, head: bytes, piece: bytes) -> bytes:
        """Process a piece that also contains other lines; return the writer of the next channel line."""
        via, *lines = piece.split(b"\n")
        if b"NCCL" in head or b"NCCL" in via or not lines:
            # Lines ran into each other: the head contains a statement too, or the line has no end of its own.
            head += _ANY_CHANNEL + via
            if not lines:
                return head
            self._others([head])
        else:
            self._counted(head, [(via, 1)])
        head = lines.pop()
        if lines:
            self._others(lines)
        return head
