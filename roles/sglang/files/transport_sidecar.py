# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Repeat the lines that NCCL writes to files, so that `kubectl logs -c transport` shows them.

Runs beside the server of every rank, with the same files mounted read-only; standard library only.
"""

from __future__ import annotations

import argparse
import os
import signal
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_BLOCK = 1 << 20


def files_of(base: Path) -> list[Path]:
    """Return NCCL's files in the directory of the container's current start."""
    starts = [path for path in base.iterdir() if not path.is_symlink()]
    return sorted(path for start in starts for path in start.glob("*") if not path.is_symlink())


def blocks_of(path: Path, offset: int) -> Iterator[bytes]:
    """Yield what follows ``offset`` in a regular file.

    The server owns the directory. Links are not followed, because they could name files that only this container has.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as stream:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            stream.seek(offset)
            yield from iter(lambda: stream.read(_BLOCK), b"")


class Repeater:
    """Writes the lines of all files to ``out``, each line once and whole."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._offsets: dict[Path, int] = {}

    def new_lines(self) -> Iterator[bytes]:
        """Yield the whole lines that were written since the last call, in blocks."""
        found = files_of(self._base)
        self._offsets = {path: self._offsets.get(path, 0) for path in found}
        for path in found:
            for block in blocks_of(path, self._offsets[path]):
                end = block.rfind(b"\n") + 1 or (len(block) if len(block) == _BLOCK else 0)
                self._offsets[path] += end
                yield block[:end]
                if end < len(block):
                    break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nccl-logs", required=True, type=Path, metavar="DIRECTORY")
    parser.add_argument("--interval", type=float, default=2)
    options = parser.parse_args()
    # Process 1 of a container ignores SIGTERM unless it has a handler.
    signal.signal(signal.SIGTERM, lambda *_signal: sys.exit(0))
    repeater = Repeater(options.nccl_logs)
    while True:
        try:
            for block in repeater.new_lines():
                sys.stdout.buffer.write(block)
            sys.stdout.buffer.flush()
        except OSError as error:
            # A start of the server deletes the files of the start before it.
            print(f"NCCL's files can't be read, trying again: {error}", file=sys.stderr, flush=True)
        time.sleep(options.interval)


if __name__ == "__main__":
    main()
