# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Update a directory to match a mapping, changing only the files that differ."""

import shutil
from pathlib import Path
from typing import NamedTuple


class Symlink(NamedTuple):
    """A symbolic link; ``target`` as it is stored."""

    target: str


class Tree:
    """Files below ``root``: ``apply`` takes ``{relative path: text | Symlink}``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: dict[str, str | Symlink] = {}
        root.mkdir(parents=True, exist_ok=True)
        # keep the directory itself, because a pod may have mounted it
        for entry in root.iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()

    def apply(self, wanted: dict[str, str | Symlink]) -> None:
        """Remove unwanted files, then write those that are new or differ. A reader never sees an incomplete file."""
        for name in [name for name in self._known if name not in wanted]:
            self._remove(name)
        for name, value in wanted.items():
            if self._known.get(name) != value:
                self._write(name, value)

    def read(self, name: str) -> str:
        """Return the content of a file, which another program may have written; empty if the file is missing."""
        try:
            return (self.root / name).read_text()
        except FileNotFoundError:
            return ""

    def forget(self, name: str) -> None:
        """Make the next ``apply`` write the file again."""
        self._known.pop(name, None)

    def _write(self, name: str, value: str | Symlink) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        part.unlink(missing_ok=True)
        if isinstance(value, Symlink):
            part.symlink_to(value.target)
        else:
            part.write_text(value)
        part.replace(path)
        self._known[name] = value

    def _remove(self, name: str) -> None:
        path = self.root / name
        path.unlink(missing_ok=True)
        del self._known[name]
        parent = path.parent
        while parent != self.root and not any(parent.iterdir()):
            parent.rmdir()
            parent = parent.parent
