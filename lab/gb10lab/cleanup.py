# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Remove a lab, also after an incomplete or killed start."""

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

    Raise LabError with the names of what could not be removed.
    """
    found = lab.run.exists() or (lab.state / MARKER).exists() or bool(network.namespaces(lab))
    _kill(lab)
    _unmount(lab)
    for path in network.namespaces(lab):
        command(["ip", "netns", "delete", path.name])
    _remove_cgroups(lab)
    for entry in Path("/run/runc").glob("*/state.json"):
        # runc has a directory per container; the bundle's path in it shows which lab it belongs to
        if str(lab.state) + "/" in entry.read_text(errors="replace"):
            shutil.rmtree(entry.parent)
    if (lab.state / MARKER).exists():
        # remove the marker last: without it the next run would take the remaining files for another program's
        for path in lab.state.iterdir():
            if path.name != MARKER:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        shutil.rmtree(lab.state)
    if lab.run.exists():
        shutil.rmtree(lab.run)
    return found


def _cgroups(lab: Lab) -> list[Path]:
    """Return the lab's cgroup in every mounted hierarchy."""
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
    """Yield processes in the lab's network namespaces, except this process and its ancestors."""
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
    """Yield the conmon and podman processes of the lab, in any cgroup."""
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
        # conmon first, because it restarts the container
        pids = [*_processes_of_store(lab), *_processes_in(_cgroups(lab)), *_processes_inside(lab)]
        if not pids:
            return
        if time.monotonic() > give_up:
            raise LabError(f"these processes of lab {lab.name} do not end: {sorted(set(pids))}")
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
    raise LabError(f"these mounts cannot be removed: {ours}")


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
            raise LabError(f"these cgroups cannot be removed: {tops}")
        time.sleep(0.02)
