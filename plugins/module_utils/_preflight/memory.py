# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find out who holds memory outside Kubernetes, and what loads took, because GPU and CPU of a Spark share it."""

from __future__ import annotations

import json
import os
import re
import stat
from collections import Counter
from pathlib import Path
from typing import Any

from .._sriov.physical_functions import read_text
from .commands import Run
from .model import Holder, Taken

SMALLEST_KIB = 2 * 2**20
_DOCKER = re.compile(r"docker[-/](?P<id>[0-9a-f]{12,64})")
# Bytes of a ledger, of which watch_load.py writes a few hundred; most ledgers that are read.
_MOST, _LEDGERS = 1 << 14, 64
_SERVICE = re.compile(r"/(?P<unit>[\w@:.-]+\.service)\b")


def read_holders(proc: Path, run: Run) -> list[Holder]:
    """Return the containers of Docker, units and programs with 2 GiB or more of memory, the largest first.

    A process counts with its resident memory or with what nvidia-smi says of its GPU memory, whichever is larger. Pods
    of Kubernetes are left out.
    """
    of_gpu = _gpu_memory(run)
    sizes: Counter[tuple[str, str]] = Counter()
    names = _containers(run)
    for process in proc.glob("[0-9]*"):
        resident = re.search(r"^VmRSS:\s+(\d+) kB", read_text(process / "status") or "", re.MULTILINE)
        kib = max(int(resident[1]) if resident else 0, of_gpu.get(process.name, 0))
        group = read_text(process / "cgroup") or ""
        if kib and "kubepods" not in group:
            docker, service = _DOCKER.search(group), _SERVICE.search(group)
            name = read_text(process / "comm") or process.name
            if docker:
                holder = ("docker", names.get(docker["id"][:12], docker["id"][:12]))
            else:
                holder = ("unit", service["unit"]) if service else ("program", name)
            sizes[holder] += kib
    large = [(kind, name, kib) for (kind, name), kib in sizes.most_common() if kib >= SMALLEST_KIB]
    return [{"kind": kind, "name": name, "kib": kib} for kind, name, kib in large]


def _gpu_memory(run: Run) -> dict[str, int]:
    """Return ``{process id: KiB}`` of programs that use a GPU; a GB10 prints [N/A] for what it does not count."""
    answer = run(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"])
    rows = (line.replace(",", " ").split() for line in answer.output.splitlines())
    return {row[0]: int(row[1]) * 1024 for row in rows if len(row) == 2 and row[1].isdecimal()}


def _containers(run: Run) -> dict[str, str]:
    """Return ``{first 12 digits of the id: name}`` of Docker's running containers."""
    rows = (line.split() for line in run(["docker", "ps", "--format", "{{.ID}} {{.Names}}"]).output.splitlines())
    return {row[0]: row[1] for row in rows if len(row) == 2}


def read_loads(cache_dir: str) -> list[Taken]:
    """Return what watch_load.py kept in the directories of compiled kernels, the oldest first.

    The servers own these directories, so a link is not followed, and what was never written by that program is left
    out.
    """
    found = []
    for file in sorted(Path(cache_dir).glob("*/load-*.json"))[:_LEDGERS] if cache_dir else ():
        try:
            taken = _taken(json.loads(_regular(file)))
        except (OSError, LookupError, TypeError, ValueError, RecursionError):
            continue
        found.append(taken)
    return sorted(found, key=lambda taken: taken["at"])


def _regular(file: Path) -> bytes:
    """Return the beginning of a regular file; raise OSError for anything else."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{file} is not a regular file")
        return stream.read(_MOST)


def _taken(told: Any) -> Taken:
    """Return a ledger; raise LookupError, TypeError or ValueError for anything else."""
    phases = {str(name): float(peak["taken_gib"]) for name, peak in told["phases"].items()}
    most = max(phases, key=lambda name: phases[name])
    if told["state"] not in ("ready", "ended"):
        raise ValueError(f"no load ends as {told['state']!r}")
    return {
        "key": str(told["key"]),
        "state": str(told["state"]),
        "phase": str(told["phase"]) if told["state"] == "ended" else most,
        "at": str(told["at"]),
        "total_gib": float(told["total_gib"]),
        "before_gib": float(told["before_gib"]),
        "taken_gib": phases[most],
    }
