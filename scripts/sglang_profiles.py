#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show which profiles and presets run on which SGLang versions, and why not.

    scripts/sglang_profiles.py                             every preset on every version, as a table
    scripts/sglang_profiles.py --sglang latest --reasons    one version, with every error and warning
    scripts/sglang_profiles.py --memory glm-4.7             memory of one GPU, on the release of each preset

Exits 0 when every preset is accepted on the version for which it was written, except those of status broken; else 1;
2 if a file is invalid or the arguments are wrong.
"""

import argparse
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from _collection import IMPORT_ROOT, directory, run

sys.path.insert(0, IMPORT_ROOT)

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, has_errors
from ansible_collections.gb10.cluster.plugins.module_utils._common.plain import align
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile import (
    Library,
    ResolvedProfile,
    merge,
    resolve,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile_files import (
    ProfileError,
    find_profiles,
    load_profile,
)

ANY_IMAGE = "any@sha256:any"
"""Replaces the image if a profile lists none: the flags are checked, not the list of images."""


SAID = ("version.nearest", "profile.image.unpinned")
"""Findings of severity info that are shown too: which release judged, and images without a digest."""


@dataclass(frozen=True)
class Cell:
    """One preset on one version; ``state`` is accepted, translated or refused."""

    profile: str
    preset: str
    sglang: str
    state: str
    status: str
    argv: tuple[str, ...]
    findings: tuple[Finding, ...]
    memory: Mapping[str, Any]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return short reasons why the preset is refused."""
        return tuple(f"{f.key}: {f.reason} [{f.rule}]" for f in self.findings if f.severity == "error")


def presets_of(profile: Mapping[str, Any]) -> list[str]:
    """Return the names of the presets; a profile without presets has one without a name."""
    return list(profile.get("presets") or {"": {}})


def own_release(profile: Mapping[str, Any], preset: str) -> str:
    """Return the release that a preset is written for. Raises ValueError if it is no version."""
    return str(Version.parse(str(merge(profile, preset, None)["sglang_version"])))


def judge_cell(profile: Mapping[str, Any], preset: str, sglang: str, library: Library) -> Cell:
    """Resolve one preset for one version."""
    listed = any(str(entry["sglang"]) == sglang for entry in profile.get("images") or [])
    overrides = None if listed or own_release(profile, preset) == sglang else {"image": ANY_IMAGE}
    return _cell(resolve(profile, preset, sglang, overrides, library))


def _cell(resolved: ResolvedProfile) -> Cell:
    said = tuple(f for f in resolved.findings if f.severity != "info" or f.rule in SAID)
    moved = any(f.rule == "translate.changed" for f in resolved.findings)
    return Cell(
        profile=resolved.name,
        preset=resolved.preset,
        sglang=resolved.sglang_version,
        state="refused" if has_errors(said) else "translated" if moved else "accepted",
        status=resolved.status,
        argv=tuple(resolved.argv),
        findings=said,
        memory=resolved.memory,
    )


def matrix(
    profiles: Iterable[Mapping[str, Any]],
    library: Library,
    versions: Sequence[str] = (),
    presets: Sequence[str] = (),
    own: bool = False,
) -> list[Cell]:
    """Check presets, by default all, on the given versions.

    Without a version, each is checked on every catalogued version and the profile's; with ``own``, on its own release.
    Raises ValueError if no profile has one of the presets.
    """
    profiles = list(profiles)
    if missing := set(presets).difference(*map(presets_of, profiles)):
        raise ValueError(f"--preset: none of the profiles has {', '.join(sorted(missing))}")
    known = [str(catalogue.version) for catalogue in library.knowledge.history.catalogues]
    cells: list[Cell] = []
    for profile in profiles:
        measured = str(profile["sglang_version"])
        all_versions = [*known, *([measured] if measured not in known else [])]
        for preset in presets_of(profile):
            if not presets or preset in presets:
                wanted = list(versions) or ([own_release(profile, preset)] if own else all_versions)
                cells += [judge_cell(profile, preset, version, library) for version in wanted]
    return cells


MARKS = {"accepted": "ok", "translated": "tr", "refused": "--"}
FAILED_ELSEWHERE = "??"


def table(cells: Sequence[Cell], refused: Container[str] = ()) -> str:
    """Return the table: one row per preset, one column per version; all of a profile whose file is refused are."""
    versions = list(dict.fromkeys(cell.sglang for cell in cells if cell.sglang[0].isdigit()))
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for cell in cells:
        doubtful = cell.status == "broken" and cell.state != "refused"
        state = "refused" if cell.profile in refused else cell.state
        mark = FAILED_ELSEWHERE if doubtful and state != "refused" else MARKS[state]
        rows.setdefault((cell.profile, cell.preset, cell.status), {})[cell.sglang] = mark
    legend = "ok accepted as written, tr in the version's spelling, ?? failed on another version, -- refused"
    columns = [version.removeprefix("0.5.").replace(".post", "p")[:9] for version in versions]
    lines = [["", "status", "0.5.", *columns]]
    for (profile, preset, status), marks in rows.items():
        lines.append([f"{profile}/{preset}", status, "", *(marks.get(version, "") for version in versions)])
    return "\n".join([legend, *align(lines)])


def surprises(cells: Sequence[Cell], own: dict[tuple[str, str], str]) -> list[str]:
    """Return presets that are refused on their own version, but are not marked as broken; equal reasons once."""
    found: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        if cell.sglang != own[cell.profile, cell.preset]:
            continue
        if cell.status != "broken" and cell.state == "refused":
            told = f"{cell.status} on {cell.sglang}, but {'; '.join(cell.reasons)}"
            found.setdefault((cell.profile, told), []).append(cell.preset)
    return [f"{profile}/{', '.join(presets)}: {told}" for (profile, told), presets in found.items()]


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


def read_all(names: Sequence[str], directories: Sequence[Path]) -> tuple[list[Mapping[str, Any]], dict[str, str]]:
    """Return the profiles and, by name, the problems of invalid files, of which the valid part is checked too."""
    profiles: list[Mapping[str, Any]] = []
    problems: dict[str, str] = {}
    for name in names:
        try:
            profiles.append(load_profile(name, directories))
        except ProfileError as problem:
            usable = problem.usable
            problems[str(usable["name"]) if usable else name] = str(problem)
            profiles += [usable] if usable else []
    return profiles, problems


def main(argv: Sequence[str] | None = None) -> int:
    """Print the requested view; return the exit status."""
    parser = argparse.ArgumentParser(description="Check profiles against SGLang versions.")
    parser.add_argument("names", nargs="*", metavar="PROFILE", help="profiles (default: all)")
    parser.add_argument("--dir", action="append", default=[], type=directory, help="directory of your own profiles")
    parser.add_argument(
        "--sglang", action="append", default=[], metavar="VERSION", help="only this version; latest is the newest"
    )
    parser.add_argument("--reasons", action="store_true", help="print every error and warning, with remedy and source")
    parser.add_argument("--preset", action="append", default=[], metavar="NAME", help="only this preset")
    parser.add_argument(
        "--memory", action="store_true", help="estimate the memory of one GPU, by default on the release of each preset"
    )
    asked = parser.parse_args(argv)
    invalid: dict[str, str] = {}
    try:
        profiles, invalid = read_all(asked.names or list(find_profiles(asked.dir)), asked.dir)
        library = Library.load(asked.dir)
        versions = [library.knowledge.history.release(name) for name in asked.sglang]
        cells = matrix(profiles, library, versions, asked.preset, own=asked.memory and not asked.reasons)
    except ValueError as problem:
        print(*invalid.values(), problem, sep="\n", file=sys.stderr)
        return 2
    own = {(str(one["name"]), preset): own_release(one, preset) for one in profiles for preset in presets_of(one)}
    wrong = surprises(cells, own)
    if asked.memory:
        print(memory(cells))
    elif cells:
        print(table(cells, invalid))
    if asked.reasons:
        print(*reasons(cells), sep="\n")
    for line in (*invalid.values(), *wrong):
        print(line, file=sys.stderr)
    return 2 if invalid else 1 if wrong else 0


if __name__ == "__main__":
    run(main)
