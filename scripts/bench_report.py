#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show results: published tables (YAML) and sweep journals (JSONL) as Markdown, or as one self-contained HTML page.

A row of a published table may have ``cell``, the launch in the terms of a profile (``preset``, ``server_args``,
``topology``), and ``requests``, the statistics of its requests from its log. The report then has the remarks of
SGLang's resolver and of the output guards on the row.

The exit status is 0, or 2 if a file can't be read.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from _collection import IMPORT_ROOT, run

sys.path.insert(0, IMPORT_ROOT)

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import has_errors
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench import journal
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.judge import (
    judge_cell,
    judge_recording,
    parse_recording,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.plots import pictures
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.report import markdown, page
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.rows import Report, from_published, from_records
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.sweep import Resolved, cell_name, line_of
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile_files import load_profile


def resolver(profile: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Resolved]:
    """Return a function that resolves a change of the profile to its engine; it raises ValueError."""

    def as_sglang(overlay: Mapping[str, Any]) -> Resolved:
        key, resolved = line_of(profile, overlay)
        # A preset's status repeats the table's own statement, so only the other findings can confirm it.
        findings = [finding for finding in resolved.findings if finding.rule != "profile.broken"]
        return Resolved(key, findings, resolved.topology["nodes"])

    return as_sglang


def _guards(requests: list[Mapping[str, Any]]) -> list[str]:
    """Return the findings of the output guards about the statistics of the requests."""
    recordings = [parse_recording(json.dumps(dict(r))) for r in requests]
    alone = {g.kind: g.detail for recording in recordings for g in judge_recording(recording)}
    together = {g.kind: g.detail for g in judge_cell(recordings)}
    return [f"{kind}: {detail}" for kind, detail in (alone | together).items()]


def examined(table: Mapping[str, Any], as_sglang: Callable[[Mapping[str, Any]], Resolved]) -> Report:
    """Return the report of the table, with a remark on every row about which the resolver or the guards have findings.

    Rows with one command line, and those to which the table gives one ``key``, are one engine, so that they count as
    repetitions of each other. A row with broken output is not ranked, whatever its status in the table.
    """
    report = from_published(table)
    report.profile = str(table.get("profile", ""))
    first: dict[str, str] = {}
    for row, entry in zip(report.rows, table["rows"], strict=True):
        remarks = []
        cell = entry.get("cell")
        if cell is not None and report.profile:
            resolved = as_sglang(cell)
            row.overlay, row.key, row.nodes = dict(cell), row.key or resolved.key, resolved.nodes
            if has_errors(resolved.findings):
                reasons = dict.fromkeys(f.reason for f in resolved.findings if f.severity == "error")
                remarks.append("The resolver refuses it: " + "; ".join(reasons))
            elif row.key in first:
                remarks.append(f"It resolves to the same engine as {first[row.key]}")
            first.setdefault(row.key, cell_name(row.labels))
        signs = _guards(entry.get("requests", []))
        if signs:
            row.status = "garbage"
            remarks.append("The guards see " + "; ".join(signs))
        row.remark = ". ".join(remarks)
    return report


def load(path: Path) -> Report:
    """Return the report of one file. Raises OSError, ValueError, KeyError or yaml.YAMLError for other files."""
    if not path.is_file():
        raise FileNotFoundError("the file does not exist")
    if path.suffix == ".jsonl":
        return from_records(path.stem, journal.read(path))
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
