# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Count channel lines quickly in large logs. Private to the collection.

Nine of ten lines of an NCCL log are channel lines. This module splits a block of lines at ``NCCL INFO Channel``. Each
piece, such as ``00/0 : 0[0] -> 1[0] [send] via NET/IB/0⏎host:pid:tid [dev]``, contains the rest of one line and the
writer of the next line. Ranks set up many communicators alike, so most pieces are soon known: a block becomes a text
with one character per piece, which Python searches and counts at memchr's speed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise, repeat

from .scan import without_time

_START = b" NCCL INFO Channel "
# From "Channel" to "via"; a line of another form is passed on unchanged. No part may contain a line end: otherwise the
# statement "Channel 00/02 : 0 1" and a prompt that says "] -> b] via NET/IB/0" would make one channel.
# A range and [^]\n] are faster than a class of characters.
_PATH = rb"[ -Z]*+\[[^\]\n]*+\] -> [ -Z]*+\[[^\]\n]*+\] (?:\[\w++\] )?+via "
# The order of a ring, "Channel 00/02 : 0 1", has no path.
_to_via = re.compile(_PATH + rb"|[0-9/ ]++:[0-9 ]++(?=\n)").match
_CHANNEL = re.compile(_START + _PATH)
# Replaces the text that was split off when a line must be restored.
_ANY_CHANNEL = _START + b"00/0 : 0[0] -> 0[0] via "
# Limits the memory: numbers of different rests of channel lines, and of different pairs of path and writer.
_REPEATED, _MEANINGS = 1 << 15, 4096
# The character of a piece that also contains other lines, and the first one of the others.
_ODD, _FIRST = "\0", 0x100

Others = Callable[[list[bytes]], None]
Counted = Callable[[bytes, Iterable[tuple[bytes, int]]], None]


class ChannelBlocks:
    """Splits blocks of lines into channel lines, which are counted, and other lines, in the order of the log.

    ``counted(head, counts)`` receives the text before ``NCCL INFO``, and each text after ``via`` with its count.
    ``others(lines)`` receives all other lines up to the next channel line.
    """

    def __init__(self, others: Others, counted: Counted) -> None:
        self._others, self._counted = others, counted
        # Whether pieces begin after "Channel", which is fast if lines repeat; otherwise they begin after "via".
        self._whole = True
        # {piece that contains nothing else: its character}
        self._characters: dict[bytes, str] = {}
        # {(via, writer of the next line): character}, the inverse, and {writer of the next line: [(character, via)]}
        self._known: dict[tuple[bytes, bytes], str] = {}
        self._meanings: dict[str, tuple[bytes, bytes]] = {}
        self._by_writer: dict[bytes, list[tuple[str, bytes]]] = {}

    def take(self, block: bytes) -> None:
        """Process one block of whole lines."""
        if len(self._characters) > _REPEATED or len(self._known) > _MEANINGS:
            self._whole = False
            for known in (self._characters, self._known, self._meanings, self._by_writer):
                known.clear()
        pieces = block.split(_START) if self._whole else _CHANNEL.split(block)
        *lines, head = pieces[0].split(b"\n")
        if lines:
            self._others(lines)
        coded = self._coded(pieces)
        if coded.count(_ODD) > 2 + len(pieces) // 16:
            # Other lines alone would not cause so many unknown pieces.
            coded = self._learned(pieces, head)
        place, end = 1, len(pieces)
        while place < end:
            stop = coded.find(_ODD, place)
            stop = end if stop < 0 else stop
            if stop == place or b"NCCL" in head:
                head = self._odd(head, pieces[place])
                place += 1
            else:
                head = self._run(head, coded[place:stop])
                place = stop
        if head:
            self._others([head])

    def _coded(self, pieces: list[bytes]) -> str:
        """Return one character per piece."""
        return "".join(map(self._characters.get, pieces, repeat(_ODD)))

    def _learned(self, pieces: list[bytes], head: bytes) -> str:
        """Learn the pieces that are new; return one character per piece."""
        if without_time(head) != head:
            # Time stamps make all pieces different.
            timeless = without_time(b"\0".join(pieces)).split(b"\0")
            pieces = timeless if len(timeless) == len(pieces) else pieces
        for piece in set(pieces[1:]) - self._characters.keys():
            start = self._start_of_via(piece)
            via, end, following = piece[start:].partition(b"\n")
            # Learn a piece only if it is exactly the end of one line and the start of the next.
            if start >= 0 and end and b"\n" not in following and b"NCCL" not in piece:
                self._characters[piece] = self._character(via, following)
        return self._coded(pieces)

    def _start_of_via(self, piece: bytes) -> int:
        """Return where the text after ``via`` starts in a piece, or -1 if it is not the rest of a channel line."""
        if not self._whole:
            return 0
        found = _to_via(piece)
        return found.end() if found else -1

    def _character(self, via: bytes, following: bytes) -> str:
        character = self._known.get((via, following))
        if character is None:
            character = self._known[via, following] = chr(_FIRST + len(self._known))
            self._meanings[character] = via, following
            self._by_writer.setdefault(following, []).append((character, via))
        return character

    def _run(self, head: bytes, run: str) -> bytes:
        """Count pieces that contain only channel lines; return the writer of the next one."""
        own = self._by_writer.get(head) or self._by_writer.get(without_time(head), [])
        counts = [(via, count) for character, via in own if (count := run.count(character))]
        if sum([count for _via, count in counts]) == len(run):
            if used := [pair for pair in counts if pair[0]]:
                self._counted(head, used)
            return head
        # Ranks alternate: the piece before a line contains the writer of that line.
        lines = Counter({(head, self._meanings[run[0]][0]): 1})
        for (before, character), count in Counter(pairwise(run)).items():
            lines[self._meanings[before][1], self._meanings[character][0]] += count
        for (writer, via), count in lines.items():
            if via:
                self._counted(writer, [(via, count)])
        return self._meanings[run[-1]][1]

    def _odd(self, head: bytes, piece: bytes) -> bytes:
        """Process a piece that also contains other lines; return the writer of the next channel line."""
        rest, *lines = piece.split(b"\n")
        start = self._start_of_via(rest)
        via = rest[start:] if start >= 0 else b""
        if not via or b"NCCL" in head or b"NCCL" in via or not lines:
            # Not a channel line, or lines ran into each other: the head has a statement too, or the line has no end.
            head += (_START if self._whole else _ANY_CHANNEL) + rest
            if not lines:
                return head
            self._others([head])
        else:
            self._counted(head, [(via, 1)])
        head = lines.pop()
        if lines:
            self._others(lines)
        return head
