#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Throw mutated NCCL logs at the transport verdict: no exception, and no pass without a channel line.

The unit tests run a few hundred; this runs 100,000 or as many as asked for, and prints the seed of what it finds.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from pathlib import Path
from random import Random

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "unit" / "samples"), str(ROOT / "collections")]


def main() -> int:
    """Run; 0 when nothing was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=0, help="stop after so long; 0 runs all")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    # conftest makes the collection importable, as pytest does it before it loads the tests' helpers.
    importlib.import_module("conftest")
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
