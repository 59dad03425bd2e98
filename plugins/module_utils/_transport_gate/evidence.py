# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Collect what a rank shows while its group hangs, for the supervisor, which judges it before it restarts the group.

There is no prompt in it and no environment: the counters of the rails, the last lines of NCCL's files, the names,
states and stacks of the server's processes (roles/sglang/files/witness.py), and how many operations each rank of a
communicator has begun, which NCCL itself knows (its RAS subsystem, ras.rst; as JSON since 2.28.7).
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from typing import Any

from .._rdma.counters import ERRORS, delta
from . import rails
from .nccl_files import NcclFiles, last_lines
from .state import Rail

PAGE = "/hang"
_WITNESS = "witness"
# Seconds between two readings of the counters, and in which the other sources have to answer.
_COUNTS, _WAIT = 10.0, 8.0
# NCCL_RAS_ADDR of the first process of the pod; the others of the pod can't listen there.
_RAS = ("localhost", 28028)
# Seconds that the other ranks have to tell theirs
_ASK_RAS = b"TIMEOUT 3\nSET FORMAT json\nVERBOSE STATUS\n"
_NO_COMMA = re.compile(r'([^\s,{\[])(\n\s*")')
_FILES, _LINES, _WIDTH = 8, 3, 300
# Bytes that are read of an answer; most communicators that are told
_MOST, _COMMUNICATORS = 1 << 20, 32


def _everything(link: socket.socket) -> str:
    """Return all that the other side writes until it ends the connection; raise OSError."""
    until, read = time.monotonic() + _WAIT, b""
    while (part := link.recv(_MOST)) and len(read) < _MOST:
        read += part
        link.settimeout(max(0.01, until - time.monotonic()))
    return read.decode(errors="replace")


def ask_witness(base: Path) -> dict[str, Any]:
    """Return what the processes of the rank do; raise OSError or ValueError."""
    # The path of a socket may not be longer than 107 characters.
    directory = os.open(base, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    try:
        with closing(socket.socket(socket.AF_UNIX)) as link:
            link.settimeout(_WAIT)
            link.connect(f"/proc/self/fd/{directory}/{_WITNESS}")
            return dict(json.loads(_everything(link)))
    finally:
        os.close(directory)


def ask_nccl(address: Any = _RAS) -> list[dict[str, Any]]:
    """Return the communicators of the group, as far as the processes of all ranks answer; raise OSError or ValueError.

    Each has ``hash`` and ``ranks`` with ``rank``, ``host`` and ``begun`` operations by name; a rank that does not
    answer NCCL has ``missing`` instead.
    """
    with socket.create_connection(address, timeout=_WAIT) as link:
        link.sendall(_ASK_RAS)
        text = _everything(link)
    # NCCL 2.28.9 forgets a comma after "nvml_dev" as soon as a rank is missing (seen 2026-11-29, tests/gpu/hang.py).
    told = json.loads(_NO_COMMA.sub(r"\1,\2", text[max(0, text.find("{")) :]))
    found = []
    for one in told["communicators"][:_COMMUNICATORS]:
        ranks = [
            {"rank": each["rank"], "host": each["host"], "begun": each["collective_counts"]} for each in one["ranks"]
        ]
        ranks += [{"rank": each["rank"], "host": each["host"], "missing": True} for each in one["missing_ranks"]]
        found.append({"hash": one["hash"], "ranks": ranks})
    return found


def last_words(base: Path) -> list[str]:
    """Return the last lines of the newest files that NCCL writes; raise OSError."""
    newest = NcclFiles(base).look().files[-_FILES:]
    return [line[:_WIDTH] for path in newest for line in last_lines(path, 1 << 13, _LINES)]


class Evidence:
    """Collects once at a time, because the server's processes are signalled for it."""

    def __init__(self, base: Path, planned: tuple[Rail, ...], sysfs_root: str) -> None:
        self._base, self._rails, self._sysfs = base, planned, sysfs_root
        self._lock = threading.Lock()

    def answer(self) -> tuple[int, str]:
        """Return status and text of the page."""
        if not self._lock.acquire(blocking=False):
            return HTTPStatus.TOO_MANY_REQUESTS, ""
        try:
            return HTTPStatus.OK, json.dumps(self.collect())
        finally:
            self._lock.release()

    def collect(self) -> dict[str, Any]:
        """Return everything; what can't be read is a reason in ``missing``."""
        sources: dict[str, Callable[[], Any]] = {
            "rails": self._moved,
            "witness": lambda: ask_witness(self._base),
            "communicators": ask_nccl,
            "nccl": lambda: last_words(self._base),
        }
        found: dict[str, Any] = {"missing": {}}
        with ThreadPoolExecutor(len(sources)) as pool:
            for name, source in {name: pool.submit(read) for name, read in sources.items()}.items():
                try:
                    found[name] = source.result()
                except Exception as error:
                    # Any error: the other sources are worth as much.
                    found["missing"][name] = repr(error)[:_WIDTH]
        return found

    def _moved(self) -> list[dict[str, Any]]:
        before = rails.counted(self._sysfs)["rdma"]
        time.sleep(_COUNTS)
        moved = delta(before, rails.counted(self._sysfs)["rdma"])
        return [
            {
                "interface": rail.interface,
                "device": rail.device,
                "address": rail.address,
                "down": "; ".join(rails.down([rail], self._sysfs, rdma=True)),
                "bytes": [moved.get(rail.device, {}).get(name) for name in ("xmit_bytes", "rcv_bytes")],
                "errors": {n: v for n, v in moved.get(rail.device, {}).items() if n in ERRORS and v},
            }
            for rail in self._rails
        ]
