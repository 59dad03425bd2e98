#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check verdicts on mutated NCCL logs: no exception, and no pass without a channel line and a finished communicator.

The unit tests run a few hundred logs. This script runs 100,000 by default and prints the seed of each failure.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from random import Random

from _collection import IMPORT_ROOT, ROOT

sys.path[:0] = [str(ROOT / "tests" / "unit" / "samples"), IMPORT_ROOT]


def main() -> int:
    """Run the logs; return 0 if there was no failure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=0, help="stop after this time; 0 means no limit")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    helpers = importlib.import_module("nccl_mutations")
    logs, started, found, done = helpers.seeds(), time.monotonic(), 0, 0
    for done in range(1, options.count + 1):
        chance = Random(options.seed + done)
        data = helpers.mutate(chance.choice(logs), chance.choice(logs), chance)
        try:
            trouble = helpers.broken_promise(data, helpers.read(data))
        except Exception as error:
            trouble = f"{type(error).__name__}: {error}"
        if trouble:
            found += 1
            print(f"seed {options.seed + done}: {trouble}")
        if options.seconds and time.monotonic() - started > options.seconds:
            break
    print(f"{done} logs in {time.monotonic() - started:.0f} s, {found} found")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
