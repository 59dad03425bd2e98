# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Count channel lines by the thousand. Private to the collection.

Nine of ten lines of an NCCL log are channel lines that differ only in channel and ranks. Split at what differs, a block
falls into pieces such as ``NET/IB/0⏎host:pid:tid [dev]``: what one line runs over, and who wrote the next. Few of them
differ, so that most of the work is counting equal ones.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable

# From "NCCL INFO" to "via"; a line of any other form is handed on as it is. [^]] is three times as fast as a class of
# characters; it may run over the end of a torn line, but only into the rest of a channel line, which is what it lacks.
_CHANNEL = re.compile(rb" NCCL INFO Channel [^\]]*+\] -> [^\]]*+\] (?:\[\w++\] )?+via ")
# Stands for what was cut out, where a line has to be put together again.
_ANY_CHANNEL = b" NCCL INFO Channel 00/0 : 0[0] -> 0[0] via "
_CACHE = 4096

Others = Callable[[list[bytes]], None]
Counted = Callable[[bytes, Iterable[tuple[bytes, int]]], None]


class ChannelBlocks:
    """Takes blocks of lines apart into channel lines, which come counted, and others, in the order of the log.

    ``counted(head, counts)`` gets what stands before ``NCCL INFO``, and how often each text stands behind ``via``;
    ``others(lines)`` gets all other lines up to the next channel line.
    """

    def __init__(self, others: Others, counted: Counted) -> None:
        self._others, self._counted = others, counted
        # {piece: (via, who writes the next line)} of pieces that hold nothing else
        self._simple: dict[bytes, tuple[bytes, bytes]] = {}

    def take(self, block: bytes) -> None:
        """Take one block of whole lines."""
        pieces = _CHANNEL.split(block)
        *lines, head = pieces[0].split(b"\n")
        if lines:
            self._others(lines)
        # A byte a piece, since bytes are searched at memchr's speed.
        known = bytes(map(self._simple.__contains__, pieces))
        if known.count(0) > 2 + len(pieces) // 16:
            # More new pieces than other lines explain: a writer that was not seen before.
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
        for piece in pieces:
            if piece not in simple:
                via, end, following = piece.partition(b"\n")
                # Anything that is more than one line's end and one line's start is taken apart each time.
                if end and b"\n" not in following and b"NCCL" not in piece:
                    simple[piece] = via, following

    def _run(self, head: bytes, pieces: list[bytes]) -> bytes:
        """Count pieces that hold channel lines alone; return who writes the next one."""
        simple, kinds = self._simple, dict.fromkeys(pieces)
        # For so few kinds list.count takes half of Counter's time.
        if len(kinds) <= 8 and {simple[piece][1] for piece in kinds} == {head}:
            self._counted(head, [(simple[piece][0], pieces.count(piece)) for piece in kinds])
            return head
        # Ranks take turns: the writer of a line stands in the piece before it.
        pairs = Counter(
            zip([head, *(simple[piece][1] for piece in pieces)], (simple[p][0] for p in pieces), strict=False)
        )
        for (writer, via), count in pairs.items():
            self._counted(writer, [(via, count)])
        return simple[pieces[-1]][1]

    def _odd(self, head: bytes, piece: bytes) -> bytes:
        """Take a piece that holds other lines too; return who writes the next channel line."""
        via, *lines = piece.split(b"\n")
        if b"NCCL" in head or b"NCCL" in via or not lines:
            # Lines ran into each other: the head is a statement too, or the next line begins where this one ends.
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
