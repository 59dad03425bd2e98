#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show which profiles and presets run on which SGLang versions, and why not.

    scripts/sglang_profiles.py                             every preset on every version, as a table
    scripts/sglang_profiles.py --sglang 0.5.23 --reasons    one version, with every error and warning
    scripts/sglang_profiles.py --same                       presets that SGLang would run as one engine
    scripts/sglang_profiles.py --memory glm-4.7             memory of one GPU, on the release of each preset
    scripts/sglang_profiles.py --json glm-4.7               one profile as JSON, memory included

Exits 0 when every preset is accepted on the version for which it was written, except those of status broken; else 1;
2 if a file is invalid or the arguments are wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from _collection import IMPORT_ROOT, directory, run

sys.path.insert(0, IMPORT_ROOT)

from _matrix import Cell, duplicates, matrix
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile import Library, merge
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile_files import (
    ProfileError,
    find_profiles,
    load_profile,
)

MARKS = {"accepted": "ok", "translated": "tr", "refused": "--"}
FAILED_ELSEWHERE = "??"


def table(cells: Sequence[Cell]) -> str:
    """Return the table: one row per preset, one column per version."""
    versions = list(dict.fromkeys(cell.sglang for cell in cells if cell.sglang[0].isdigit()))
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for cell in cells:
        doubtful = cell.status == "broken" and cell.state != "refused"
        mark = FAILED_ELSEWHERE if doubtful else MARKS[cell.state]
        rows.setdefault((cell.profile, cell.preset, cell.status), {})[cell.sglang] = mark
    width = max((len(f"{profile}/{preset}") for profile, preset, _status in rows), default=0)
    legend = "ok accepted as written, tr in the version's spelling, ?? failed on another version, -- refused"
    columns = [version.removeprefix("0.5.").replace(".post", "p")[:9] for version in versions]
    head = " ".join(f"{column:>{max(4, len(column))}}" for column in columns)
    lines = [legend, f"{'':<{width}}  {'status':<9} 0.5.{head}"]
    for (profile, preset, status), marks in rows.items():
        shown = " ".join(f"{marks.get(v, ''):>{max(4, len(c))}}" for v, c in zip(versions, columns, strict=True))
        lines.append(f"{profile + '/' + preset:<{width}}  {status:<9}     {shown}")
    return "\n".join(lines)


def surprises(cells: Sequence[Cell], own: dict[tuple[str, str], str]) -> list[str]:
    """Return presets that are refused on their own version, but are not marked as broken."""
    found = []
    for cell in cells:
        if cell.sglang != own[cell.profile, cell.preset]:
            continue
        if cell.status != "broken" and cell.state == "refused":
            found.append(f"{cell.profile}/{cell.preset}: {cell.status} on {cell.sglang}, but {'; '.join(cell.reasons)}")
    return found


def only(cells: list[Cell], presets: Sequence[str]) -> list[Cell]:
    """Return the cells of the named presets, or all cells; raise ValueError for a name that no profile has."""
    missing = set(presets) - {cell.preset for cell in cells}
    if missing:
        raise ValueError(f"--preset: none of the profiles has {', '.join(sorted(missing))}")
    return [cell for cell in cells if not presets or cell.preset in presets]


def memory(cells: Sequence[Cell]) -> str:
    """Return the estimates with their arithmetic; presets with equal estimates are listed together."""
    groups: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for cell in cells:
        groups.setdefault((cell.profile, cell.sglang, tuple(cell.memory["lines"])), []).append(cell.preset)
    return "\n".join(
        "\n  ".join((f"{profile} on {sglang}, one GPU: {', '.join(presets)}", *lines))
        for (profile, sglang, lines), presets in groups.items()
    )


def reasons(cells: Sequence[Cell]) -> list[str]:
    """Return every error and warning once, with its source and the versions on which it was found."""
    versions: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        for finding in cell.findings:
            source = f" (source: {finding.source})" if finding.source else ""
            told = str(replace(finding, where="")) + source
            versions.setdefault((f"{cell.profile}/{cell.preset}", told), []).append(cell.sglang)
    return [f"{name} on {', '.join(dict.fromkeys(found))}: {told}" for (name, told), found in versions.items()]


def read_all(names: Sequence[str], directories: Sequence[Path]) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Return the profiles and the problems of invalid files, of which the valid part is checked too."""
    profiles: list[Mapping[str, Any]] = []
    problems = []
    for name in names:
        try:
            profiles.append(load_profile(name, directories))
        except ProfileError as problem:
            problems.append(str(problem))
            profiles += [problem.usable] if problem.usable else []
    return profiles, problems


def main(argv: Sequence[str] | None = None) -> int:
    """Print the requested view; return the exit status."""
    parser = argparse.ArgumentParser(description="Check profiles against SGLang versions.")
    parser.add_argument("names", nargs="*", metavar="PROFILE", help="profiles (default: all)")
    parser.add_argument("--dir", action="append", default=[], type=directory, help="directory of your own profiles")
    parser.add_argument("--sglang", action="append", default=[], metavar="VERSION", help="only this version")
    parser.add_argument("--reasons", action="store_true", help="print every error and warning, with remedy and source")
    parser.add_argument("--same", action="store_true", help="only list presets that are one engine")
    parser.add_argument("--preset", action="append", default=[], metavar="NAME", help="only this preset")
    parser.add_argument(
        "--memory", action="store_true", help="estimate the memory of one GPU, by default on the release of each preset"
    )
    parser.add_argument("--json", action="store_true", help="answer as JSON")
    asked = parser.parse_args(argv)
    invalid: list[str] = []
    try:
        profiles, invalid = read_all(asked.names or list(find_profiles(asked.dir)), asked.dir)
        cells = only(matrix(profiles, Library.load(asked.dir), asked.sglang), asked.preset)
    except ValueError as problem:
        print(*invalid, problem, sep="\n", file=sys.stderr)
        return 2
    own = {
        (str(profile["name"]), preset): str(merge(profile, preset, None)["sglang_version"])
        for profile in profiles
        for preset in profile.get("presets") or {"": {}}
    }
    wrong = surprises(cells, own)
    if asked.json:
        print(json.dumps([cell.as_dict() for cell in cells], indent=1))
    elif asked.same:
        for group in duplicates(cell for cell in cells if cell.state != "refused"):
            print(f"{group[0].profile} on {group[0].sglang}: {' = '.join(cell.preset for cell in group)}")
    elif asked.memory:
        print(memory([cell for cell in cells if asked.sglang or cell.sglang == own[cell.profile, cell.preset]]))
    elif cells:
        print(table(cells))
    if asked.reasons:
        print(*reasons(cells), sep="\n")
    for line in (*invalid, *wrong):
        print(line, file=sys.stderr)
    return 2 if invalid else 1 if wrong else 0


if __name__ == "__main__":
    run(main)
