# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the files that NCCL writes in the pod of a rank."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_BLOCK = 1 << 20
# start_rank.py names the files %h.%p: host name up to its first dot, and process number.
_NAME = re.compile(r"[\w-]+\.\d+", re.A)
Signature = tuple[tuple[str, int, int], ...]


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
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
    with opened(path) as stream:
        yield stream.read


def last_lines(path: Path, size: int, count: int) -> list[str]:
    """Return the last lines of a regular file, read from its last ``size`` bytes; raise OSError."""
    with opened(path) as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - size))
        return stream.read(size).decode(errors="replace").splitlines()[-count:]


@dataclass(frozen=True)
class Look:
    """The files at one moment.

    ``start`` is the name of the server's current start, empty if there is none. ``files`` are its regular files, oldest
    first. ``signature`` has the start, and then each file, and changes whenever one of them is written. ``changed``
    names a change to the evidence of this start that only the server can have made, empty if there is none: NCCL itself
    makes files and appends to them.
    """

    start: str
    files: tuple[Path, ...]
    signature: Signature
    changed: str


class NcclFiles:
    """The files of the server's current start, in the directory that start_rank.py made."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._offsets: dict[Path, int] = {}
        # Of each file of this start: its inode, and the largest size that was seen.
        self._known: dict[str, tuple[int, int]] = {}
        self._start = self._changed = ""

    def look(self) -> Look:
        """Return what is there now; raise OSError."""
        start, files, foreign = self._read()
        if start != self._start:
            self._start, self._known, self._changed = start, {}, ""
        gone = sorted(self._known.keys() - {path.name for path in files})
        changed = [*foreign, *(f"{name} is missing" for name in gone)]
        for path, found in files.items():
            inode, size = self._known.get(path.name, (found.st_ino, 0))
            if inode != found.st_ino:
                changed.append(f"{path.name} was replaced")
            elif found.st_size < size:
                changed.append(f"{path.name} shrank from {size} to {found.st_size} bytes")
            # What was seen first stays the evidence.
            self._known[path.name] = inode, max(size, found.st_size)
        # The time too: a file that was cut off may have its old size again.
        signature = ((start, 0, 0), *((path.name, found.st_size, found.st_mtime_ns) for path, found in files.items()))
        # What was changed once stays no evidence until the next start.
        self._changed = self._changed or "; ".join(changed)
        return Look(start, tuple(files), signature, self._changed)

    def _read(self) -> tuple[str, dict[Path, os.stat_result], list[str]]:
        """Return the name of the current start, its regular files, oldest first, and what no start makes."""
        starts = [path for path in self._base.iterdir() if path.is_dir() and not path.is_symlink()]
        # start_rank.py deletes the directory of the start before, and names the new one by its time.
        own = [path for path in starts if path.name.isascii() and path.name.isdigit()]
        foreign = [f"the directory {path.name!a} was added" for path in starts if path not in own]
        if not own:
            return "", {}, foreign
        first, *later = sorted(own, key=lambda path: int(path.name))
        foreign += [f"the directory {path.name} was added" for path in later]
        found = {path: path.lstat() for path in first.iterdir()}
        foreign += [f"{path.name!a} is no regular file" for path in found if not stat.S_ISREG(found[path].st_mode)]
        regular = [path for path in found if stat.S_ISREG(found[path].st_mode)]
        foreign += [f"the file {path.name!a} was added" for path in regular if not _NAME.fullmatch(path.name)]
        order = sorted(regular, key=lambda path: (found[path].st_mtime_ns, path.name))
        return first.name, {path: found[path] for path in order}, foreign

    def environment(self) -> bytes:
        """Return what start_rank.py wrote about the server's environment, empty if it can't be read."""
        try:
            with opened(self._base / "environment.json") as stream:
                return stream.read(_BLOCK)
        except OSError:
            return b""

    def new_lines(self) -> Iterator[bytes]:
        """Yield the whole lines that were written since the last call, at most 1 MiB of each file; raise OSError."""
        _start, files, _foreign = self._read()
        self._offsets = {path: self._offsets.get(path, 0) for path in files}
        for path in files:
            # Opening thousands of files of processes that ended takes longer than reading the others.
            if self._offsets[path] == files[path].st_size:
                continue
            with opened(path) as stream:
                if self._offsets[path] > os.fstat(stream.fileno()).st_size:
                    # It was cut off.
                    self._offsets[path] = 0
                stream.seek(self._offsets[path])
                block = stream.read(_BLOCK)
                end = block.rfind(b"\n") + 1 or (len(block) if len(block) == _BLOCK else 0)
                self._offsets[path] += end
                yield block[:end]
