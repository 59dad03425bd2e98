#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare two result sets, sweep journals (JSONL) or published tables (YAML), row by row.

The exit status is 0 if nothing is worse, 1 if something is worse or missing, and 2 if a file can't be read.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import yaml
from _collection import IMPORT_ROOT, run

sys.path.insert(0, IMPORT_ROOT)

import bench_report
from ansible_collections.gb10.cluster.plugins.plugin_utils._report.rank import comparison_lines, regressions


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the earlier set")
    parser.add_argument("after", type=Path, help="the later set")
    parser.add_argument("--tolerance", type=float, default=0.05, help="relative difference that counts as the same")
    parser.add_argument(
        "--json", action="store_true", help="print a list with row, workload, figure, before, after, verdict"
    )
    options = parser.parse_args(argv)
    reports = []
    for path in (options.before, options.after):
        try:
            reports.append(bench_report.load(path))
        except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
            print(f"bench_compare: {path}: {error}", file=sys.stderr)
            return 2
    rows = regressions(reports[0], reports[1], options.tolerance)
    if not rows:
        print(f"bench_compare: {options.before} has no healthy row to compare with", file=sys.stderr)
        return 2
    print(json.dumps(rows, indent=2) if options.json else "\n".join(comparison_lines(rows)))
    return 1 if any(r["verdict"] in ("worse", "missing") for r in rows) else 0


if __name__ == "__main__":
    run(main)
