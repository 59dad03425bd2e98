# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check every preset of every profile on every version: accepted, translated, or refused with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, has_errors
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile import Library, ResolvedProfile, resolve

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
    changes: tuple[str, ...]
    engine: str
    memory: Mapping[str, Any]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Return short reasons why the preset is refused."""
        return tuple(f"{f.key}: {f.reason} [{f.rule}]" for f in self.findings if f.severity == "error")

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, without the engine key."""
        names = ("profile", "preset", "sglang", "state", "status", "argv", "reasons", "changes", "memory")
        plain = {name: list(value) if isinstance(value := getattr(self, name), tuple) else value for name in names}
        return plain | {"findings": [finding.as_dict() for finding in self.findings]}


def judge_cell(profile: Mapping[str, Any], preset: str, sglang: str, library: Library) -> Cell:
    """Resolve one preset for one version."""
    measured = resolve(profile, preset, None, None, library).sglang_version == sglang
    listed = any(str(entry["sglang"]) == sglang for entry in profile.get("images") or [])
    overrides = None if measured or listed else {"image": ANY_IMAGE}
    resolved = resolve(profile, preset, sglang, overrides, library)
    return _cell(resolved)


def _cell(resolved: ResolvedProfile) -> Cell:
    said = tuple(f for f in resolved.findings if f.severity != "info" or f.rule in SAID)
    moved = [f"{f.key}: {f.reason}" for f in resolved.findings if f.rule == "translate.changed"]
    return Cell(
        profile=resolved.name,
        preset=resolved.preset,
        sglang=resolved.sglang_version,
        state="refused" if has_errors(said) else "translated" if moved else "accepted",
        status=resolved.status,
        argv=tuple(resolved.argv),
        findings=said,
        changes=tuple(moved),
        engine=resolved.engine,
        memory=resolved.memory,
    )


def matrix(profiles: Iterable[Mapping[str, Any]], library: Library, versions: Sequence[str] = ()) -> list[Cell]:
    """Check all presets on the given versions; by default on every catalogued version and the measured one."""
    cells: list[Cell] = []
    for profile in profiles:
        known = [str(catalogue.version) for catalogue in library.knowledge.history.catalogues]
        measured = str(profile["sglang_version"])
        wanted = list(versions) or [*known, *([measured] if measured not in known else [])]
        for preset in profile.get("presets") or {"": {}}:
            cells += [judge_cell(profile, preset, version, library) for version in wanted]
    return cells


def duplicates(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Return the groups of presets of one profile that configure the same engine on the same version."""
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.profile, cell.sglang, cell.engine), []).append(cell)
    return [group for group in groups.values() if len(group) > 1]
