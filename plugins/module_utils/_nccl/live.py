# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge the logs of running pods repeatedly until the judgement is final. Private to the collection."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .._kube.client import ClusterError, at_once
from .._kube.pod_logs import PodContainer
from .sources import Judgement, SourceError, Sources
from .verdict import is_final, nothing_read

LOG_DIR = "/var/log/nccl"
"""The directory of NCCL's files in server and sidecar; each start of the server has its own directory below it."""
LOG_FILES = f"{LOG_DIR}/*/*"


def pod_sources(containers: Iterable[PodContainer], log_file: str = "") -> Sources:
    """Return the logs of pods, or the files named by ``NCCL_DEBUG_FILE``.

    Where NCCL has files, the container's output is not read: a prompt that the server prints may quote NCCL's lines.
    """
    # A device such as /dev/stdout is the container's output, which is read in any case.
    file = "" if log_file.startswith(("/dev/", "/proc/")) else log_file
    pattern = file.replace("%h", "*").replace("%p", "*")
    places = list(containers)
    opened = at_once(lambda each: each.open_files(pattern), places)
    return {each.pod: [one] for each, one in zip(places, opened, strict=True)}


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
