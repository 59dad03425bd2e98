# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find out who holds memory outside Kubernetes, because GPU and CPU of a Spark share it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from .._sriov.physical_functions import read_text
from .commands import Run
from .model import Holder

SMALLEST_KIB = 2 * 2**20
_DOCKER = re.compile(r"docker[-/](?P<id>[0-9a-f]{12,64})")
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
