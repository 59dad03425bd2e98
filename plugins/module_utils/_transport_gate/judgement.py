# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge the files of a rank, and read only those again that were written since."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any

from .._nccl.causes import kernel_refuses_pins
from .._nccl.log import NcclLog
from .._nccl.verdict import Expectation, judge_all
from .nccl_files import Look, open_file

# The node's, not the container's. Whether the server's locked memory is limited can't be seen from another container.
_MEMINFO = Path("/proc/meminfo")


class Judgement:
    """Judges the files of one rank.

    Each process of a server has a file, also after it ended, and NCCL only appends. So the logs of files that did not
    change are kept, and the number of files is not limited as the number of processes in one log is.
    ``changed`` names a file of this start whose bytes are not those that were read before.
    """

    def __init__(self, pod: str, rank: int, expect: Expectation) -> None:
        self._pod, self._places, self._expect = pod, {pod: rank}, expect
        # {start, name, size and time of a file: its log}
        self._read: dict[tuple[str, str, int, int], NcclLog] = {}
        # {name of a file: how many of its bytes were read, and their digest}
        self._digests: dict[str, tuple[int, bytes]] = {}
        self._start = self.changed = ""

    def judge(self, look: Look) -> dict[str, Any]:
        """Return the judgement of the files of a look; raise OSError."""
        if look.start != self._start:
            self._start, self._digests, self.changed = look.start, {}, ""
        written = zip(look.files, look.signature[1:], strict=True)
        keys = {(look.start, *signature): path for path, signature in written}
        self._read = {key: self._read.get(key) or self._log(path) for key, path in keys.items()}
        log = NcclLog.joined(self._read.values())
        for process in log.processes:
            # Whichever host name NCCL writes.
            process.pod = self._pod
        pins = {self._pod: "kernel"} if kernel_refuses_pins(_MEMINFO.read_text()) else {}
        return judge_all({self._pod: log}, self._expect, self._places, pins)

    def _log(self, path: Path) -> NcclLog:
        before, known = self._digests.get(path.name, (0, b""))
        digest, size = blake2b(), 0

        def hashed(limit: int) -> bytes:
            nonlocal size
            block = read(limit)
            rest = max(0, before - size)
            digest.update(block[:rest])
            if size < before <= size + len(block) and digest.digest() != known:
                self.changed = self.changed or f"{path.name} was overwritten"
            digest.update(block[rest:])
            size += len(block)
            return block

        with open_file(path) as read:
            log = NcclLog(one_start=True).read(hashed)
        self._digests[path.name] = size, digest.digest()
        return log
