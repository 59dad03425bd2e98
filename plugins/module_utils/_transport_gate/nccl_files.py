# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the files that NCCL writes in the pod of a rank."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_BLOCK = 1 << 20
Signature = tuple[tuple[str, int, int], ...]


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file; raise OSError for anything else.

    The server owns the directory. Links are not followed, because they could name files that only this container has;
    nor is the directory, which the server can replace by a link at any moment.
    """
    directory = os.open(path.parent, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    try:
        descriptor = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    finally:
        os.close(directory)
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a regular file")
        yield stream


@contextmanager
def open_file(path: Path) -> Iterator[Callable[[int], bytes]]:
    """Yield ``read(n)`` on a regular file."""
    with _opened(path) as stream:
        yield stream.read


class NcclFiles:
    """The files of the server's current start, in the directory that start_rank.py made."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._offsets: dict[Path, int] = {}

    def current(self) -> tuple[str, list[Path]]:
        """Return the name of the current start, empty if there is none, and its files, oldest first; raise OSError."""
        starts = [path for path in self._base.iterdir() if path.is_dir() and not path.is_symlink()]
        if not starts:
            return "", []
        start = max(starts, key=lambda path: path.name)
        files = {path: path.lstat() for path in start.iterdir()}
        regular = [path for path, found in files.items() if stat.S_ISREG(found.st_mode)]
        return start.name, sorted(regular, key=lambda path: (files[path].st_mtime_ns, path.name))

    def signature(self) -> Signature:
        """Return what changes whenever a file is written or the server starts again; raise OSError."""
        start, files = self.current()
        found = ((path.name, path.lstat()) for path in files)
        # The time too: a file that was cut off may have its old size again.
        return ((start, 0, 0), *((name, seen.st_size, seen.st_mtime_ns) for name, seen in found))

    def new_lines(self) -> Iterator[bytes]:
        """Yield the whole lines that were written since the last call, in blocks; raise OSError."""
        _start, files = self.current()
        self._offsets = {path: self._offsets.get(path, 0) for path in files}
        for path in files:
            with _opened(path) as stream:
                if self._offsets[path] > os.fstat(stream.fileno()).st_size:
                    # It was cut off.
                    self._offsets[path] = 0
                stream.seek(self._offsets[path])
                while block := stream.read(_BLOCK):
                    end = block.rfind(b"\n") + 1 or (len(block) if len(block) == _BLOCK else 0)
                    self._offsets[path] += end
                    yield block[:end]
                    if end < len(block):
                        break
