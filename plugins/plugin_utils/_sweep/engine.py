# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Identify the engine of a sweep's cell, and return the variables with which serving_plan serves it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .._sglang.profile import Library, ResolvedProfile, resolve


def serving_of(overlay: Mapping[str, Any], sglang_version: str = "") -> dict[str, Any]:
    """Return preset, version, transport and overrides of role serving_plan for a cell; the version is a default."""
    chosen = {"preset": "", "sglang_version": sglang_version, "transport": "roce"}
    overrides = {key: value for key, value in overlay.items() if key not in chosen}
    return {key: overlay.get(key, default) for key, default in chosen.items()} | {"overrides": overrides}


def engine_of(
    profile: Mapping[str, Any], overlay: Mapping[str, Any], sglang_version: str = "", library: Library | None = None
) -> tuple[str, ResolvedProfile]:
    """Return a key that is equal for two cells exactly when they have the same engine, and the resolved profile.

    ``ResolvedProfile.engine`` contains SGLang's own settings; the key adds transport, image and other variables.
    Raises ValueError for an unknown preset or version.
    """
    cell = serving_of(overlay, sglang_version)
    resolved = resolve(profile, cell["preset"] or None, cell["sglang_version"] or None, cell["overrides"], library)
    env = {name: value for name, value in resolved.env.items() if not name.startswith("SGLANG_")}
    return "|".join([resolved.engine, cell["transport"], resolved.image, json.dumps(env, sort_keys=True)]), resolved
