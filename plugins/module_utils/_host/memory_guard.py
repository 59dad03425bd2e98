# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Drop the page cache before it starves CUDA. A unit on the host runs this; standard library only.

It looks every second, so a model never meets a full page cache: not before it loads, and not while its files fill the
cache again. Root may write both files of /proc/sys/vm without any capability.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from pathlib import Path

from .._common.memory import History, Limits, Reading, ladder


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
