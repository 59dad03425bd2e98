# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Select the runtime patches that a version needs, in the order in which they run. Private to the collection."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common import plain
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version


@dataclass(frozen=True)
class Patch:
    """A change to an installed SGLang, applied before the server starts; the range names the releases that need it."""

    name: str
    order: int
    file: str
    reason: str
    source: str
    first: str | None = None
    last: str | None = None


@dataclass
class Selection:
    """The patches of a profile in order, each marked as needed or not, and the findings about the list."""

    chosen: list[dict[str, Any]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


@lru_cache(maxsize=4)
def load_patches(path: Path, *own: Path) -> tuple[Patch, ...]:
    """Read the lists of patches, own ones where the file exists; raise ValueError if one is invalid."""
    patches: list[Patch] = []
    for file in (path, *(file for file in own if file.is_file())):
        folder = "profiles/patches" if file == path else str(file.parent.absolute())
        try:
            for raw in json.loads(file.read_text(encoding="utf-8"))["patches"]:
                place = {"file": f"{folder}/{raw['file']}", "first": raw.get("from"), "last": raw.get("to")}
                patches.append(plain.load(Patch, {**raw, **place}))
        except (OSError, KeyError, TypeError, ValueError) as problem:
            raise ValueError(f"{file}: not a list of patches: {problem}") from problem
    return tuple(sorted(patches, key=lambda patch: patch.order))


def select_patches(
    known: Sequence[Patch], names: Sequence[str], version: Version, where: str, carries: Sequence[str] = ()
) -> Selection:
    """Return the named patches in order; patches that the version or the image does not need are marked so."""
    selection = Selection()
    by_name = {patch.name: patch for patch in known}
    for name in names:
        if name not in by_name:
            close = get_close_matches(name, by_name, n=1)
            remedy = f"Did you mean {close[0]}?" if close else f"Choose one of {', '.join(by_name)}"
            finding = Finding("error", "patch.unknown", "patches", name, "no patch has this name", remedy, where)
            selection.findings.append(finding)
    for patch in known:
        if patch.name not in names:
            continue
        in_range = version.within(patch.first, patch.last)
        needed = in_range and patch.name not in carries
        why = patch.reason if needed else f"the image carries it: {patch.reason}"
        if not in_range:
            limits = [f"from {patch.first}" if patch.first else "", f"up to {patch.last}" if patch.last else ""]
            extent = " ".join(part for part in limits if part)
            why = f"SGLang {version} does not need it (only {extent}): {patch.reason}"
            reason, remedy = f"not needed: it is for releases {extent}", "Nothing to do: it is not applied"
            told = Finding("info", "patch.obsolete", "patches", patch.name, reason, remedy, where, patch.source)
            selection.findings.append(told)
        selection.chosen.append({"name": patch.name, "path": patch.file, "needed": needed, "why": why})
    return selection
