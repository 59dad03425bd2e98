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
from collections.abc import Callable

# From "NCCL INFO" to "via"; a line of any other form is handed on as it is.
_CHANNEL = re.compile(rb" NCCL INFO Channel \d[\d/]*+ : \d++\[\w++\] -> \d++\[\w++\] (?:\[\w++\] )?+via ")
# Stands for what was cut out, where a line has to be put together again.
_ANY_CHANNEL = b" NCCL INFO Channel 00/0 : 0[0] -> 0[0] via "
_CACHE = 4096


class ChannelBlocks:
    """Takes blocks of lines apart into channel lines, which come counted, and others, in the order of the log.

    ``counted(head, via, count)`` gets what stands before ``NCCL INFO``, what stands behind ``via``, and how often;
    ``other(line)`` gets any other line.
    """

    def __init__(self) -> None:
        # {piece: (via, who writes the next line)} of pieces that hold nothing else
        self._simple: dict[bytes, tuple[bytes, bytes]] = {}

    def take(self, block: bytes, other: Callable[[bytes], None], counted: Callable[[bytes, bytes, int], None]) -> None:
        """Take one block of whole lines."""
        pieces = _CHANNEL.split(block)
        *lines, head = pieces[0].split(b"\n")
        for line in lines:
            other(line)
        known = [*map(self._simple.get, pieces), None]
        if known.count(None) > 2 + len(pieces) // 16:
            # More new pieces than other lines explain: a writer that was not seen before.
            self._learn(set(pieces[1:]))
            known = [*map(self._simple.get, pieces), None]
        place, end = 1, len(pieces)
        while place < end:
            if known[place] is None or b"NCCL" in head:
                head = self._odd(head, pieces[place], other, counted)
                place += 1
            else:
                stop = known.index(None, place)
                head = self._run(head, pieces[place:stop], counted)
                place = stop
        if head:
            other(head)

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

    def _run(self, head: bytes, pieces: list[bytes], counted: Callable[[bytes, bytes, int], None]) -> bytes:
        """Count pieces that hold channel lines alone; return who writes the next one."""
        simple, counts = self._simple, Counter(pieces)
        heads = {simple[piece][1] for piece in counts}
        if heads == {head}:
            for piece, count in counts.items():
                counted(head, simple[piece][0], count)
            return head
        # Ranks take turns: the writer of a line stands in the piece before it.
        pairs = Counter(
            zip([head, *(simple[piece][1] for piece in pieces)], (simple[p][0] for p in pieces), strict=False)
        )
        for (writer, via), count in pairs.items():
            counted(writer, via, count)
        return simple[pieces[-1]][1]

    def _odd(
        self, head: bytes, piece: bytes, other: Callable[[bytes], None], counted: Callable[[bytes, bytes, int], None]
    ) -> bytes:
        """Take a piece that holds other lines too; return who writes the next channel line."""
        via, *lines = piece.split(b"\n")
        if b"NCCL" in head or b"NCCL" in via or not lines:
            # Lines ran into each other: the head is a statement too, or the next line begins where this one ends.
            head += _ANY_CHANNEL + via
            if not lines:
                return head
            other(head)
        else:
            counted(head, via, 1)
        for line in lines[:-1]:
            other(line)
        return lines[-1]
