# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Remove a lab, also an incomplete one or one whose start was killed at any time."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from . import network
from .lab import MARKER, Lab
from .shell import LabError, command

_MNT_DETACH = 2
_PATIENCE_S = 20.0


def remove(lab: Lab) -> bool:
    """Remove processes, mounts, namespaces, cgroups and files of the lab; return True if there were any.

    Raises LabError naming what would not go.
    """
    found = lab.run.exists() or (lab.state / MARKER).exists() or bool(network.namespaces(lab))
    _kill(lab)
    _unmount(lab)
    for path in network.namespaces(lab):
        command(["ip", "netns", "delete", path.name])
    _remove_cgroups(lab)
    for entry in Path("/run/runc").glob("*/state.json"):
        # runc keeps its own directory per container; its owner is told by the bundle's path
        if str(lab.state) + "/" in entry.read_text(errors="replace"):
            shutil.rmtree(entry.parent)
    if (lab.state / MARKER).exists():
        # the marker goes last: without it the rest would be somebody else's files to the next run
        for path in lab.state.iterdir():
            if path.name != MARKER:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        shutil.rmtree(lab.state)
    if lab.run.exists():
        shutil.rmtree(lab.run)
    return found


def _cgroups(lab: Lab) -> list[Path]:
    """The lab's cgroup in every hierarchy that the machine has mounted."""
    mounts = (line.split(" ") for line in Path("/proc/self/mountinfo").read_text().splitlines())
    roots = {Path(fields[4]) for fields in mounts if fields[fields.index("-") + 1] in {"cgroup", "cgroup2"}}
    return [root / lab.name for root in sorted(roots) if (root / lab.name).is_dir()]


def _processes_in(cgroups: Iterable[Path]) -> Iterator[int]:
    for top in cgroups:
        for path in [top, *top.rglob("*")]:
            if path.name in {"cgroup.procs"} or not path.is_dir():
                continue
            with contextlib.suppress(OSError):
                yield from (int(pid) for pid in (path / "cgroup.procs").read_text().split())


def _processes_inside(lab: Lab) -> Iterator[int]:
    """Processes whose network namespace is one of the lab's, except this one's own ancestors."""
    inodes = set()
    for path in network.namespaces(lab):
        with contextlib.suppress(OSError):
            inodes.add(path.stat().st_ino)
    spared = set(_ancestors())
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in spared:
            with contextlib.suppress(OSError):
                if (entry / "ns" / "net").stat().st_ino in inodes:
                    yield int(entry.name)


def _processes_of_store(lab: Lab) -> Iterator[int]:
    """conmon and podman processes of the lab, wherever their cgroup is."""
    ours = f"CONTAINERS_CONF={lab.run}/".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                program = Path(os.fsdecode((entry / "cmdline").read_bytes().partition(b"\0")[0])).name
                if program in {"conmon", "podman"} and ours in (entry / "environ").read_bytes():
                    yield int(entry.name)


def _ancestors() -> Iterator[int]:
    pid = os.getpid()
    while pid > 1:
        yield pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _kill(lab: Lab) -> None:
    give_up = time.monotonic() + _PATIENCE_S
    while True:
        # conmon first: it would start the container again
        pids = [*_processes_of_store(lab), *_processes_in(_cgroups(lab)), *_processes_inside(lab)]
        if not pids:
            return
        if time.monotonic() > give_up:
            raise LabError(f"these processes of lab {lab.name} will not end: {sorted(set(pids))}")
        for pid in dict.fromkeys(pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _unmount(lab: Lab) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for _ in range(10):
        targets = [line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        ours = [t for t in targets if t.startswith((f"{lab.state}/", f"{lab.run}/"))]
        if not ours:
            return
        for target in reversed(ours):
            libc.umount2(os.fsencode(target.replace("\\040", " ")), _MNT_DETACH)
    raise LabError(f"these mounts will not go: {ours}")


def _remove_cgroups(lab: Lab) -> None:
    give_up = time.monotonic() + _PATIENCE_S
    while tops := _cgroups(lab):
        for top in tops:
            for path in sorted((p for p in top.rglob("*") if p.is_dir()), reverse=True):
                with contextlib.suppress(OSError):
                    path.rmdir()
            with contextlib.suppress(OSError):
                top.rmdir()
        if time.monotonic() > give_up:
            raise LabError(f"these cgroups will not go: {tops}")
        time.sleep(0.02)
