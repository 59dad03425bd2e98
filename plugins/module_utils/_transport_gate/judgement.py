# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge the files of a rank, and read only those again that were written since."""

from __future__ import annotations

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
    """

    def __init__(self, pod: str, rank: int, expect: Expectation) -> None:
        self._pod, self._places, self._expect = pod, {pod: rank}, expect
        # {start, name, size and time of a file: its log}
        self._read: dict[tuple[str, str, int, int], NcclLog] = {}

    def judge(self, look: Look) -> dict[str, Any]:
        """Return the judgement of the files of a look; raise OSError."""
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
        with open_file(path) as read:
            return NcclLog(one_start=True).read(read)
