# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read NCCL logs from files and texts, judge them, and keep trimmed copies. Private to the collection."""

from __future__ import annotations

import bz2
import codecs
import gzip
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, cast

from .log import NcclLog
from .verdict import Expectation, judge_all

# read(n) of an open log, like that of a binary file
Opened = AbstractContextManager[Callable[[int], bytes]]
Sources = dict[str, list[Opened]]
Judgement = tuple[dict[str, Any], dict[str, list[bytes]]]
"""The result of ``judge_all``, and the NCCL lines of each source on which it is based."""

_PACKED = ((b"\x1f\x8b", gzip.open), (b"\xfd7zXZ\x00", lzma.open), (b"BZh", bz2.open))
_ZSTD = b"\x28\xb5\x2f\xfd"
UNREADABLE = (OSError, EOFError, UnicodeError, lzma.LZMAError, zlib.error)
"""The exceptions raised while reading a damaged or missing log."""
_KEPT_BYTES = 4 << 20
# With NCCL_DEBUG_FILE, NCCL begins each line itself (ncclDebugLogV in debug.cc of NCCL 2.17.1 to 2.32.3): time stamp in
# brackets, host:pid:tid, device. A warning has an empty line before it.
_OWN = re.compile(rb"(?:\[[^\]\n]*\] ?)?\S+:\d+:\d+ \[\d+\] .*NCCL [A-Z]+ |NCCL version |\s*$")
# A server's output has other lines long before this one.
_LINES = 100_000


class SourceError(Exception):
    """A log that can't be read; its text is one sentence."""


def unpacked(stream: BinaryIO) -> BinaryIO:
    """Return a log's uncompressed bytes; the first bytes tell the format. Raise OSError for zstd.

    ``stream`` must have ``peek``, as files and standard input do.
    """
    magic = stream.peek(6)[:6]  # type: ignore[attr-defined]
    for start, open_packed in _PACKED:
        if magic.startswith(start):
            stream = cast(BinaryIO, open_packed(stream))
            magic = stream.peek(6)[:6]  # type: ignore[attr-defined]
    if magic.startswith(_ZSTD):
        raise OSError("it is compressed with zstd, which Python before 3.14 can't read. Unpack it: zstd -dc FILE > LOG")
    if magic.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return cast(BinaryIO, codecs.EncodedFile(stream, "utf-8", "utf-16"))
    if magic.startswith(codecs.BOM_UTF8):
        # Otherwise the mark would become a part of the first host's name.
        stream.read(len(codecs.BOM_UTF8))
    return stream


def open_log(path: Path) -> BinaryIO:
    """Open a log, compressed or not, regardless of its name; raises OSError."""
    return unpacked(path.open("rb"))


def expand(patterns: Iterable[str]) -> tuple[list[Path], list[str]]:
    """Return the files that match paths and globs (also ``**``), each once, and the patterns without a match."""
    files: dict[Path, None] = {}
    empty: list[str] = []
    for pattern in patterns:
        path = Path(pattern).expanduser()
        found = Path(path.anchor or ".").glob(str(path.relative_to(path.anchor)))
        named = [path] if path.is_file() else sorted(each for each in found if each.is_file())
        files |= dict.fromkeys(named)
        empty += [] if named else [pattern]
    return list(files), empty


@contextmanager
def _opened(given: Path | bytes) -> Iterator[Callable[[int], bytes]]:
    with BytesIO(given) if isinstance(given, bytes) else open_log(given) as stream:
        yield stream.read


def local_sources(patterns: Iterable[str], text: str | None) -> Sources:
    """Return files and a text as sources; raises SourceError for a pattern without a file."""
    paths, empty = expand(patterns)
    if empty:
        raise SourceError(f"no file matches {', '.join(empty)}; check the path on the host that runs this")
    found: Sources = {str(path): [_opened(path)] for path in paths}
    return found if text is None else found | {"text": [_opened(text.encode())]}


def read_source(name: str, opened: Iterable[Opened], kept: list[bytes], log: NcclLog) -> NcclLog:
    """Read all streams of a source into a log; append its NCCL lines to ``kept``, up to 4 MiB. Raise SourceError."""
    room = _KEPT_BYTES

    def keep(lines: list[bytes]) -> None:
        nonlocal room
        for line in lines:
            if room > 0:
                kept.append(line.rstrip(b"\r\n") + b"\n")
                room -= len(line)

    try:
        for stream in opened:
            with stream as read:
                log.read(read, keep=keep)
    except UNREADABLE as error:
        raise SourceError(f"{name} can't be read: {error}") from error
    return log


def judge_sources(
    sources: Sources,
    expect: Expectation,
    places: Mapping[str, int | None],
    one_start: bool = False,
    own_files: bool = False,
    pins: Mapping[str, str] | None = None,
) -> Judgement:
    """Read and judge all sources; the keys of ``places`` are pods. Raise SourceError, and what reading raises.

    ``own_files`` is true for files of NCCL (``NCCL_DEBUG_FILE``), and ``one_start`` for those of start_rank.py, which
    deletes the files of earlier starts. ``pins`` are those of ``judge_all``.
    """
    kept: dict[str, list[bytes]] = {name: [] for name in sources}
    logs = {
        name: read_source(name, opened, kept[name], NcclLog(one_start, own_files)) for name, opened in sources.items()
    }
    for name in places:
        # All processes in a pod's log belong to the pod, whichever host name the lines contain.
        for process in [*logs[name].processes, *logs[name].earlier]:
            process.pod = name
    return judge_all(logs, expect, places, pins), kept


def keep_evidence(directory: Path, result: Mapping[str, Any], kept: Mapping[str, list[bytes]]) -> list[str]:
    """Write the trimmed logs and the judgement with access for their owner only, and return the file names."""
    written = {
        directory / (re.sub(r"[^\w.-]+", "_", name).strip("_") + ".nccl.log"): b"".join(lines)
        for name, lines in kept.items()
    }
    written[directory / "transport.json"] = (json.dumps(result, indent=2, sort_keys=True) + "\n").encode()
    return [write_private(path, data) for path, data in written.items()]


def write_private(path: Path, data: bytes) -> str:
    """Write a file with access for its owner only, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_bytes(data)
    return str(path)


def written_by_nccl(path: Path) -> bool:
    """Return whether a file has NCCL's lines alone, as a file of NCCL_DEBUG_FILE has; raise SourceError."""
    seen = False
    try:
        with open_log(path) as stream:
            for _number, line in zip(range(_LINES), stream, strict=False):
                if not _OWN.match(line):
                    return False
                seen = seen or b"NCCL" in line
    except UNREADABLE as error:
        raise SourceError(f"{path} can't be read: {error}") from error
    return seen
