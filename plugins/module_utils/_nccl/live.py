# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge the logs of running pods repeatedly until the judgement is final. Private to the collection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .._kube.client import ClusterError
from .._kube.pod_logs import PodContainer
from .expectation import Expectation
from .overall import is_final, judge_all, nothing_read
from .sources import SourceError, Sources, read_source

SIDECAR = "transport"
"""The container of a rank's pod that reads NCCL's files; it also runs while the server is down."""
LOG_DIR = "/var/log/nccl"
"""The directory of NCCL's files in server and sidecar; each start of the server has its own directory below it."""
LOG_FILES = f"{LOG_DIR}/*/*"

Judgement = tuple[dict[str, Any], dict[str, list[bytes]]]
"""The result of ``judge_all``, and the NCCL lines of each source on which it is based."""


def pod_sources(containers: Iterable[PodContainer], log_file: str = "", **options: Any) -> Sources:
    """Return the logs of pods, or the files named by ``NCCL_DEBUG_FILE``; ``options`` are passed to the API.

    Where NCCL has files, the container's output is not read: a prompt that the server prints may quote NCCL's lines.
    """
    # A device such as /dev/stdout is the container's output, which is read in any case.
    file = "" if log_file.startswith(("/dev/", "/proc/")) else log_file
    pattern = file.replace("%h", "*").replace("%p", "*")
    return {each.pod: [each.open_files(pattern) if pattern else each.open_log(**options)] for each in containers}


def judge_sources(sources: Sources, expect: Expectation, places: Mapping[str, int | None]) -> Judgement:
    """Read and judge all sources; the keys of ``places`` are pods. Raise SourceError and ClusterError."""
    kept: dict[str, list[bytes]] = {name: [] for name in sources}
    logs = {name: read_source(name, opened, kept[name]) for name, opened in sources.items()}
    for name in places:
        # All processes in a pod's log belong to the pod, whichever host name the lines contain.
        for process in [*logs[name].processes, *logs[name].earlier]:
            process.pod = name
    return judge_all(logs, expect, places), kept


def judge_until_final(
    judge: Callable[[], Judgement], timeout: float, now: Callable[[], float], pause: Callable[[], None]
) -> Judgement:
    """Judge until waiting longer cannot change the verdict, or the time is over. Unreadable logs count as no logs."""
    deadline = now() + timeout
    while True:
        try:
            result, kept = judge()
            over = is_final(result)
        except (SourceError, ClusterError) as error:
            result, kept, over = nothing_read(str(error)), {}, False
        if over or now() >= deadline:
            return result, kept
        pause()
