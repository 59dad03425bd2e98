#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check sweep files and list their cells, without a host, SGLang or a GPU.

    scripts/sweep_check.py my-sweep.yml
    scripts/sweep_check.py --dir my-profiles plugins/sweeps/*.yml

Exits 0 if every file can be measured, 1 if one is wrong or SGLang accepts none of its cells, 2 if the arguments are
wrong.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from _collection import IMPORT_ROOT, columns, directory, run

sys.path.insert(0, IMPORT_ROOT)

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, has_errors
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.sweep import cell_name, examine
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.screen import render_findings
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile_files import read_yaml


def check_file(path: Path, directories: Sequence[Path], sglang: str) -> bool:
    """Print the findings about one file and its cells; return whether it can be measured."""
    try:
        examined = examine(read_yaml(path), directories, sglang)
    except ValueError as problem:
        print(problem)
        return False
    if has_errors(examined.findings):
        print(f"{path}: wrong", render_findings(examined.findings, columns()), sep="\n")
        return False
    planned = examined.planned
    shown = f"{planned.count('run')} to measure, {planned.count('invalid')} refused, {planned.count('duplicate')} twice"
    print(f"{path}: {len(planned.cells)} cells: {shown}")
    for cell in planned.cells:
        if cell.status == "duplicate":
            print(f"  {cell_name(cell.labels)}: has the command line of {cell.duplicate_of}")
        for reason in cell.reasons if cell.status == "invalid" else []:
            if reason["severity"] == "error":
                print(f"  {cell_name(cell.labels)}: {Finding(**reason)}")
    return True


def main(words: Sequence[str] | None = None) -> int:
    """Check all files; return the exit status."""
    parser = argparse.ArgumentParser(description="Check sweep files without a host.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="sweep files")
    parser.add_argument("--dir", action="append", default=[], type=directory, help="directory of your own profiles")
    parser.add_argument("--sglang", default="", metavar="VERSION", help="release for cells that name none")
    asked = parser.parse_args(words)
    good = [check_file(path, asked.dir, asked.sglang) for path in asked.files]
    return 0 if all(good) else 1


if __name__ == "__main__":
    run(main)
