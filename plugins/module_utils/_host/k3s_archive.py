# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide what the archive of a backup may contain, and unpack it below a directory of its own."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

STATE = ("db", "tls", "cred", "token")
"""The state of a server below data-dir/server, as task Backup archives it."""
CONFIG_DIR = "etc/rancher/k3s"
PASSWORD = "etc/rancher/node/password"  # of the node; the restored cluster refuses another one
SNAPSHOTS = "db/snapshots"
FILES = 20_000  # a backup has about 60 files besides the snapshots, of which K3s keeps five
BYTES = 64 * 2**30  # etcd refuses to hold more than 8 GiB
DEPTH = 16
_READ = 2**20  # bytes at once; headers of GNU tar that are longer are not read
_HEADERS = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.GNUTYPE_LONGNAME)
_SPECIAL = 0o7000  # setuid, setgid and sticky bits


class Refused(ValueError):
    """The archive contains what a backup cannot contain; the text names it."""


class Damaged(ValueError):
    """The archive cannot be read."""


@dataclass
class Content:
    """The files of an archive with their sizes in bytes, and its directories."""

    files: dict[str, int] = field(default_factory=dict)
    directories: set[str] = field(default_factory=set)
    size: int = 0  # bytes of all files


class _Header(tarfile.TarInfo):
    """A header that GNU tar writes for a file, a directory or a long name; others are refused before they are read."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> _Header:
        header = super().frombuf(buf, encoding, errors)
        if header.type not in _HEADERS:
            raise Refused(f"{_shown(header.name)} is neither a file nor a directory (type {_shown(header.type)})")
        return header


class _Bounded:
    """A stream that never reads much at once, because a header may announce any number of bytes."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.tell, self.seek = stream.tell, stream.seek

    def read(self, size: int) -> bytes:
        """Return the next bytes. Raise Refused for more than a name or a part of a file may have."""
        if not 0 <= size <= _READ:
            raise Refused(f"a header announces {size} bytes")
        return self._stream.read(size)


def _shown(value: object) -> str:
    return ascii(value)[:100]


@contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with gzip.open(path) as stream:
            bounded: Any = _Bounded(stream)  # type: ignore[arg-type]
            with tarfile.open(fileobj=bounded, mode="r:", tarinfo=_Header) as archive:
                yield archive
    except Refused:
        raise
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError, RecursionError) as error:
        raise Damaged(str(error) or "it ends too early") from None


def read(path: Path, data_dir: str) -> Content:
    """Return what the archive contains. Raise Refused if a backup of ``data_dir`` cannot contain it, or Damaged.

    A backup has the files of CONFIG_DIR, PASSWORD and STATE in the server's directory; no links and no devices.
    """
    with _opened(path) as archive:
        content = Content()
        for member in archive:
            _add(content, member, _server_dir(data_dir))
        return content


def _server_dir(data_dir: str) -> str:
    return f"{data_dir.strip('/')}/server"


def _add(content: Content, member: tarfile.TarInfo, server_dir: str) -> None:
    name, parts = member.name, member.name.split("/")
    shown = _shown(name)
    # GNU tar writes relative names, and tarfile removes the slash at the end of a directory's one.
    if len(parts) > DEPTH or any(part in {"", ".", ".."} or not part.isprintable() for part in parts):
        raise Refused(f"{shown} is not a relative path of at most {DEPTH} plain names")
    if not _allowed(name, member.isdir(), server_dir):
        raise Refused(f"{shown} is none of the files of K3s's state and configuration")
    if member.mode & _SPECIAL:
        raise Refused(f"{shown} has mode {member.mode:o}")
    if member.size < 0 or (member.isdir() and member.size):
        raise Refused(f"{shown} has a size of {member.size}")
    above = ["/".join(parts[:length]) for length in range(1, len(parts))]
    if any(path in content.files for path in (name, *above)) or (name in content.directories and not member.isdir()):
        raise Refused(f"{shown} is there twice")
    content.directories.update(above)
    if member.isdir():
        content.directories.add(name)
    else:
        content.files[name] = member.size
        content.size += member.size
    if len(content.files) + len(content.directories) > FILES or content.size > BYTES:
        raise Refused(f"it has more than {FILES} files or {BYTES // 2**30} GiB")


def _allowed(name: str, is_directory: bool, server_dir: str) -> bool:
    if name in {PASSWORD, f"{server_dir}/token"}:
        return not is_directory
    trees = (CONFIG_DIR, *(f"{server_dir}/{part}" for part in STATE if part != "token"))
    return any(name.startswith(f"{tree}/") or (name == tree and is_directory) for tree in trees)


def lacks(content: Content, data_dir: str) -> list[str]:
    """Return what a backup of ``data_dir`` has and this archive has not; empty for a whole backup."""
    server = _server_dir(data_dir)
    missing = [] if f"{server}/token" in content.files else [f"{server}/token"]
    return missing if is_single(content, data_dir) or snapshots(content, data_dir) else [*missing, "the datastore"]


def is_single(content: Content, data_dir: str) -> bool:
    """Tell whether a single server was backed up: that of several has a snapshot of etcd and no certificates."""
    return any(name.startswith(f"{_server_dir(data_dir)}/tls/") for name in content.files)


def snapshots(content: Content, data_dir: str) -> list[str]:
    """Return the names of the snapshots that playbook backup took, the newest last: a name ends with its time."""
    start = f"{_server_dir(data_dir)}/{SNAPSHOTS}/"
    names = [name.removeprefix(start) for name in content.files if name.startswith(f"{start}gb10-")]
    return sorted((name for name in names if "/" not in name), key=_time)


def _time(name: str) -> tuple[int, str]:
    digits = name.rpartition("-")[2].removesuffix(".zip")
    return (int(digits) if digits.isascii() and digits.isdigit() else 0, name)


def unpack(path: Path, data_dir: str, targets: Mapping[str, Path]) -> Content:
    """Write the files whose paths begin with a key of ``targets`` below its value, an empty directory.

    Files belong to the user of this process and are not writable for others. Raise Refused or Damaged as ``read``
    does, and Refused if a disk has too little space; then a part of the files may be written.
    """
    content = read(path, data_dir)
    for target in targets.values():
        if content.size > (free := shutil.disk_usage(target).free):
            raise Refused(f"it needs {content.size} bytes, and {target} has {free}")
    with _opened(path) as archive:
        for member in archive:
            # The file may have changed since it was read: nothing is written that ``read`` did not see.
            if member.name not in (content.directories if member.isdir() else content.files):
                raise Refused(f"{_shown(member.name)} appeared while the archive was read")
            for prefix, target in targets.items():
                if member.name == prefix or member.name.startswith(f"{prefix}/"):
                    _write(archive, member, target / member.name, content)
    return content


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path, content: Content) -> None:
    if member.isdir():
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        target.chmod(member.mode & 0o755 | 0o700)
        return
    if member.size != content.files[member.name]:
        raise Refused(f"{_shown(member.name)} has another size than before")
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    source = archive.extractfile(member)
    with target.open("xb") as file:
        if source is not None:
            shutil.copyfileobj(source, file, _READ)
    target.chmod(member.mode & 0o755 | 0o600)
