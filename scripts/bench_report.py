#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show results: published tables (YAML) and sweep journals (JSONL) as Markdown, or as one self-contained HTML page.

The exit status is 0, or 2 if a file can't be read.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import yaml
from _collection import IMPORT_ROOT, run

sys.path.insert(0, IMPORT_ROOT)

from _published import examined, resolver
from ansible_collections.gb10.cluster.plugins.plugin_utils._report.html import page
from ansible_collections.gb10.cluster.plugins.plugin_utils._report.plots import pictures
from ansible_collections.gb10.cluster.plugins.plugin_utils._report.rows import Report, from_published, from_records
from ansible_collections.gb10.cluster.plugins.plugin_utils._report.sections import markdown
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile_files import load_profile
from ansible_collections.gb10.cluster.plugins.plugin_utils._sweep import journal


def load(path: Path) -> Report:
    """Return the report of one file. Raises OSError, ValueError, KeyError or yaml.YAMLError for other files."""
    if not path.is_file():
        raise FileNotFoundError("the file does not exist")
    if path.suffix == ".jsonl":
        return from_records(path.stem, journal.read(path).records)
    table = yaml.safe_load(path.read_text(encoding="utf-8"))
    if "profile" not in table:
        return from_published(table)
    return examined(table, resolver(load_profile(table["profile"])))


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a table (.yml) or a journal (.jsonl)")
    parser.add_argument("--html", type=Path, metavar="OUT", help="write one HTML page instead of printing Markdown")
    options = parser.parse_args(argv)
    reports = []
    for path in options.files:
        try:
            reports.append(load(path))
        except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
            print(f"bench_report: {path}: {error}", file=sys.stderr)
            return 2
    if options.html:
        options.html.write_text(page([(r, pictures(r)) for r in reports]), encoding="utf-8")
    else:
        print("\n".join(markdown(r) for r in reports))
    return 0


if __name__ == "__main__":
    run(main)
