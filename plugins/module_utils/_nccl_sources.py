# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Open the files that hold NCCL logs. Private to the collection."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, cast

_GZIP = b"\x1f\x8b"


def open_log(path: Path) -> BinaryIO:
    """Open a log, plain or gzip by its first bytes, whatever its name; raises OSError."""
    with path.open("rb") as stream:
        magic = stream.read(2)
    return cast(BinaryIO, gzip.open(path, "rb")) if magic == _GZIP else path.open("rb", buffering=0)


def expand(patterns: Iterable[str]) -> tuple[list[Path], list[str]]:
    """Return the files that paths and globs (``**`` too) name, each once, and the patterns that name none."""
    files: dict[Path, None] = {}
    empty: list[str] = []
    for pattern in patterns:
        path = Path(pattern).expanduser()
        anchor = Path(path.anchor or ".")
        named = (
            [path]
            if path.is_file()
            else sorted(p for p in anchor.glob(str(path.relative_to(path.anchor))) if p.is_file())
        )
        if not named:
            empty.append(pattern)
        files.update(dict.fromkeys(named))
    return list(files), empty
