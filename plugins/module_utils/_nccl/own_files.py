# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell NCCL's own files from the output of a server. Private to the collection."""

from __future__ import annotations

import re
from pathlib import Path

from .sources import UNREADABLE, SourceError, open_log

# With NCCL_DEBUG_FILE, NCCL begins each line itself (ncclDebugLogV in debug.cc of NCCL 2.17.1 to 2.32.3): time stamp in
# brackets, host:pid:tid, device. A warning has an empty line before it.
_OWN = re.compile(rb"(?:\[[^\]\n]*\] ?)?\S+:\d+:\d+ \[\d+\] .*NCCL [A-Z]+ |NCCL version |\s*$")
# A server's output has other lines long before this one.
_LINES = 100_000


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
