#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check recorded model outputs for signs of a broken model, for example repeated tokens or random words.

The exit status is 0 if every output is healthy, 1 if one is not, and 2 if a file can't be read.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from _collection import IMPORT_ROOT, run

sys.path.insert(0, IMPORT_ROOT)

from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.judge import (
    judge_cell,
    judge_recording,
    parse_recording,
)


def read(name: str) -> str:
    """Return the text of a file, or of standard input for ``-``; invalid UTF-8 becomes U+FFFD."""
    data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    return data.decode("utf-8", errors="replace")


def judge_files(names: list[str], batch: bool) -> list[dict[str, Any]]:
    """Return ``{file, ok, findings}`` for every file; ``batch`` adds findings from comparing the files."""
    recordings = [parse_recording(read(name)) for name in names]
    together = judge_cell(recordings) if batch else []
    report = []
    for name, recording in zip(names, recordings, strict=True):
        findings = [*judge_recording(recording), *together]
        report.append({"file": name, "ok": not findings, "findings": [asdict(f) for f in findings]})
    return report


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="plain text, or one JSON chunk per line; - reads standard input"
    )
    parser.add_argument("--json", action="store_true", help="print a list of {file, ok, findings}")
    parser.add_argument("--batch", action="store_true", help="the files are the requests of one cell: compare them too")
    options = parser.parse_args(argv)
    try:
        report = judge_files(options.files, options.batch)
    except OSError as error:
        print(f"output_guard: {error.filename}: {error.strerror}. Name files that can be read.", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        for entry in report:
            print(f"{'ok     ' if entry['ok'] else 'GARBAGE'} {entry['file']}")
            for finding in entry["findings"]:
                print(f"        {finding['kind']} at {finding['at']}: {finding['detail']}")
        print(f"{sum(not entry['ok'] for entry in report)} of {len(report)} outputs are garbage")
    return 0 if all(entry["ok"] for entry in report) else 1


if __name__ == "__main__":
    run(main)
