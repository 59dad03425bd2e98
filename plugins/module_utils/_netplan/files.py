# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep and restore whole files: content, mode, owner, or the place to which a link points.

A path has its old or its new content at any time, because only complete files are renamed onto it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from .._host import system


@dataclass(frozen=True)
class Attributes:
    """What a path has besides its content; an owner of -1 is not compared. ``target`` is that of a symbolic link."""

    mode: int
    uid: int = -1
    gid: int = -1
    target: str = ""


def kept(path: Path) -> Path:
    """Return the name under which the old file is kept."""
    return path.with_name(f".{path.name}.gb10-old")


def staged(path: Path) -> Path:
    """Return the name under which the new file waits."""
    return path.with_name(f".{path.name}.gb10-new")


def read(path: Path) -> tuple[str | None, Attributes | None]:
    """Return a path's content, None if it has none, and its attributes, None if nothing is there.

    A dangling link has attributes and no content. Raise HostError if the path is no file, OSError if it is unreadable.
    """
    try:
        info = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None, None
    target = str(path.readlink()) if stat.S_ISLNK(info.st_mode) else ""
    attributes = Attributes(stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid, target)
    if target and not path.exists():
        return None, attributes
    if not path.is_file():
        raise system.HostError(f"{path} is not a file; move it away, and run this again")
    # Bytes that are not UTF-8 survive, for example those of a comment in another encoding.
    return path.read_bytes().decode("utf-8", "surrogateescape"), attributes


def holds(path: Path, content: str | None, attributes: Attributes | None) -> bool:
    """Tell whether a path has this content and these attributes."""
    try:
        now, seen = read(path)
    except (system.HostError, OSError):
        return False
    if seen is None or (content is None and attributes is None):
        return seen is None and content is None and attributes is None
    if seen.target or (attributes and attributes.target):
        # What a link points to is not part of the change.
        return attributes is not None and seen.target == attributes.target
    if attributes is None:
        return now == content
    owners = (wanted in (-1, found) for wanted, found in ((attributes.uid, seen.uid), (attributes.gid, seen.gid)))
    return now == content and seen.mode == attributes.mode and all(owners)


def stage(path: Path, content: str | None, attributes: Attributes) -> Path:
    """Write a file durably beside ``path``; renaming it to ``path`` then needs no disk space. Raise HostError."""
    new = staged(path)
    try:
        system.make_parents(path)
        new.unlink(missing_ok=True)
        if attributes.target:
            new.symlink_to(attributes.target)
            return new
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as handle:
            handle.write((content or "").encode("utf-8", "surrogateescape"))
            # A change of the owner clears some bits of the mode.
            os.fchown(handle.fileno(), attributes.uid, attributes.gid)
            os.fchmod(handle.fileno(), attributes.mode)
            handle.flush()
            os.fsync(handle.fileno())
    except OSError as error:
        with contextlib.suppress(OSError):  # a leftover file has no effect, and the next run replaces it
            new.unlink(missing_ok=True)
        raise system.HostError(f"Cannot write {system.explain(error, path)}") from error
    return new


def keep(path: Path) -> None:
    """Keep the present file, or link, under a second name. A hard link needs no disk space when it is renamed back."""
    kept(path).unlink(missing_ok=True)
    if os.path.lexists(path):
        os.link(path, kept(path), follow_symlinks=False)
    if path.parent.is_dir():
        system.sync_directory(path.parent)


def put_back(path: Path, content: str | None, attributes: Attributes | None) -> None:
    """Restore one path; needs no disk space while the kept file exists. May be repeated. Raise HostError or OSError."""
    if not holds(path, content, attributes):
        if attributes is None and content is None:
            path.unlink(missing_ok=True)
        elif os.path.lexists(kept(path)):
            kept(path).replace(path)
        else:
            stage(path, content, attributes or Attributes(default_mode(path))).replace(path)
    if path.parent.is_dir():
        system.sync_directory(path.parent)


def default_mode(path: Path) -> int:
    """Return the mode for a file of this collection: netplan warns of files that other users can read."""
    return 0o600 if path.suffix == ".yaml" else 0o644
