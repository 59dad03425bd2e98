#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check verdicts on mutated NCCL logs: no exception, and no pass without a channel line.

The unit tests run a few hundred logs. This program runs 100,000 by default and prints the seed of each failure. Every
log has a time limit, and every thousandth one is repeated with new numbers to 1 MiB, which must cost no memory.
"""

import argparse
import importlib
import re
import resource
import sys
import time
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "unit" / "samples"), str(ROOT / "collections")]


# Limits in seconds of CPU time for a log of about 20 KiB and for one of 1 MiB. Usual times are 0.002 and 0.1 seconds.
LIMITS = (0.5, 5.0)
MEMORY_MIB = 100


def repeated(data: bytes, size: int = 1 << 20) -> bytes:
    """Repeat a log up to ``size`` bytes, with different numbers in each copy, so that no line occurs twice."""

    def copy(number: int) -> bytes:
        return re.sub(rb"\d{3,6}", lambda found: str(int(found[0]) + number).encode(), data)

    copies = bytearray()
    for number in range(max(1, size // len(data)) if data else 0):
        copies += copy(number)
    return bytes(copies)


def peak_mib() -> float:
    """Return the peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    """Run the logs; return 0 if there was no failure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=0, help="stop after this time; 0 means no limit")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    helpers = importlib.import_module("nccl_mutations")
    logs, started, found, done, slowest = helpers.seeds(), time.monotonic(), 0, 0, 0.0
    for done in range(1, options.count + 1):
        chance = Random(options.seed + done)
        data = helpers.mutate(chance.choice(logs), chance.choice(logs), chance)
        large = done % 1000 == 0
        data = repeated(data) if large else data
        begun = time.process_time()
        try:
            report = helpers.read(data)
            trouble = helpers.broken_promise(data, report)
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
        took = time.process_time() - begun
        slowest = max(slowest, 0.0 if large else took)
        trouble = trouble or (f"{took:.1f} s for {len(data)} bytes" if took > LIMITS[large] else "")
        if trouble:
            found += 1
            print(f"seed {options.seed + done}: {trouble}")
        if options.seconds and time.monotonic() - started > options.seconds:
            break
    found += peak_mib() > MEMORY_MIB
    print(
        f"{done} logs in {time.monotonic() - started:.0f} s, {found} found; the slowest took {slowest:.3f} s, "
        f"peak memory {peak_mib():.0f} MiB"
    )
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
