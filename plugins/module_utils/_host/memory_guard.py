# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drop the page cache before it starves CUDA. A unit on the host runs this; standard library only.

It looks every second, also while a model loads, whose files fill the cache again. Root may write both files of
/proc/sys/vm without any capability.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# Decide what to do about a node whose memory runs out: warn, drop caches, or stop the group that serves on it.
#
# A GB10 has one memory for CPU and GPU. CUDA takes free memory only, so it also fails, or the node stalls, while the
# page cache holds the memory (NVIDIA/open-gpu-kernel-modules#1358). A node whose available memory runs out freezes.

Step = Literal["none", "warn", "drop_caches", "stop_group"]

# A warning ends only this many percent above its threshold, so that it does not come and go with every request.
_CLEAR = 1.0
_MEMINFO = re.compile(r"^(MemTotal|MemFree|MemAvailable|SwapFree):\s+(\d+) kB$", re.M)
_PRESSURE = re.compile(r"^(some|full) avg10=([\d.]+)", re.M)


@dataclass(frozen=True)
class Reading:
    """Memory and free swap of a node in KiB.

    ``some`` and ``full`` are the percentages of the last 10 seconds in which some or all tasks waited for memory.
    """

    total: int
    free: int
    available: int
    some: float = 0.0
    full: float = 0.0
    swap: int = 0

    @classmethod
    def parse(cls, meminfo: str, pressure: str) -> Reading:
        """Return what /proc/meminfo and /proc/pressure/memory say; raise ValueError without all three sizes.

        A kernel without pressure information gives an empty text.
        """
        sizes = {name: int(size) for name, size in _MEMINFO.findall(meminfo)}
        if not {"MemTotal", "MemFree", "MemAvailable"} <= sizes.keys() or not sizes["MemTotal"]:
            raise ValueError("/proc/meminfo lacks MemTotal, MemFree or MemAvailable")
        waits = {name: float(share) for name, share in _PRESSURE.findall(pressure)}
        return cls(
            sizes["MemTotal"],
            sizes["MemFree"],
            sizes["MemAvailable"],
            waits.get("some", 0.0),
            waits.get("full", 0.0),
            sizes.get("SwapFree", 0),
        )

    def percent(self, size: int) -> float:
        """Return a size as a percentage of all memory."""
        return 100 * size / self.total

    def __str__(self) -> str:
        """Return the figures for a message."""
        sizes = [f"{size / 2**20:.1f}" for size in (self.available, self.total, self.free)]
        return (
            f"{sizes[0]} of {sizes[1]} GiB are available ({self.percent(self.available):.1f} %), {sizes[2]} GiB are "
            f"free, and all tasks waited for memory in {self.full:.0f} % of the last 10 s"
        )


@dataclass(frozen=True)
class Limits:
    """When each step is due; 0 switches a step off. Times are in seconds, the other values are percentages.

    ``warn`` and ``stop`` are of available memory. Memory is also too low while all tasks wait in ``full`` % of the time
    and less than ``warn`` is available. ``hold`` is how long it must be too low before the group is stopped. Caches are
    dropped if less than ``free`` is free and caches hold at least that much, at most once in ``pause``. So many GiB of
    free ``swap`` count as available: the weights of a few models are swapped out for a moment while they load.
    """

    warn: float = 5.0
    stop: float = 0.0
    full: float = 0.0
    hold: float = 10.0
    free: float = 0.0
    # A model's files fill a tenth of the memory within seconds.
    pause: float = 2.0
    swap: float = 0.0


@dataclass
class History:
    """What the ladder remembers between two readings."""

    warned: bool = False
    stopping: bool = False
    low_since: float | None = None
    drop_after: float = float("-inf")


@dataclass(frozen=True)
class Verdict:
    """The step that is due, and the reason with its figures."""

    step: Step
    reason: str


def descending(percent: Sequence[float]) -> bool:
    """Return whether these are two percentages of available memory, that of the milder step first."""
    return len(percent) == 2 and 0 < percent[1] < percent[0] < 50


def ladder(seen: Reading, limits: Limits, history: History, now: float) -> Verdict:
    """Return the step that is due; update ``history``.

    ``stop_group`` stays due until there is clearly more memory again, because the program that stops the group may have
    to wait before it may do so once more.
    """
    spare = min(seen.swap, int(limits.swap * 2**20))
    available, free = seen.percent(seen.available + spare), seen.percent(seen.free)
    history.warned = available < limits.warn + (_CLEAR if history.warned else 0)
    waits = 0 < limits.full <= seen.full
    low = available < limits.stop or (waits and available < limits.warn)
    history.low_since = (now if history.low_since is None else history.low_since) if low else None
    held = history.low_since is not None and now - history.low_since >= limits.hold
    history.stopping = held or (history.stopping and history.warned)
    if history.stopping:
        return Verdict("stop_group", str(seen))
    if free < limits.free <= available - free and now >= history.drop_after:
        history.drop_after = now + limits.pause
        return Verdict("drop_caches", str(seen))
    return Verdict("warn" if history.warned else "none", str(seen))


def read(proc: Path) -> Reading:
    """Return the node's memory now; raise OSError or ValueError."""
    pressure = ""
    # A kernel that was started with psi=0 has this file, but refuses to open it.
    with contextlib.suppress(OSError):
        pressure = (proc / "pressure/memory").read_text(encoding="ascii")
    return Reading.parse((proc / "meminfo").read_text(encoding="ascii"), pressure)


def look(proc: Path, limits: Limits, history: History, now: float) -> str:
    """Drop caches and compact free memory if that is due; return a line for the journal or nothing."""
    warned = history.warned
    verdict = ladder(read(proc), limits, history, now)
    if verdict.step == "drop_caches":
        # 3: page cache, inodes and entries of directories. Compaction turns the freed pages into large ones.
        (proc / "sys/vm/drop_caches").write_text("3\n", encoding="ascii")
        (proc / "sys/vm/compact_memory").write_text("1\n", encoding="ascii")
        after = read(proc)
        return f"dropped caches and compacted memory: {verdict.reason}. Now {after.free / 2**20:.1f} GiB are free"
    if history.warned != warned:
        return f"{'low memory' if history.warned else 'enough memory again'}: {verdict.reason}"
    return ""


def main() -> None:
    """Watch the memory until the unit is stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--free", type=float, required=True, help="percentage of free memory below which caches go")
    parser.add_argument("--interval", type=float, default=1)
    parser.add_argument("--proc", type=Path, default=Path("/proc"))
    options = parser.parse_args()
    limits, history = Limits(free=options.free), History()
    while True:
        if said := look(options.proc, limits, history, time.monotonic()):
            sys.stdout.write(f"{said}\n")
            sys.stdout.flush()
        time.sleep(options.interval)


if __name__ == "__main__":
    main()
