# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The profiles of the collection, read once for all tests of a process: 30 files of YAML take a second."""

from functools import cache

from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile import ResolvedProfile, resolve
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile_files import find_profiles, load_profile

SHIPPED = {name: load_profile(name) for name in find_profiles()}
PRESETS = [(name, preset) for name, profile in SHIPPED.items() for preset in profile["presets"]]


@cache
def shipped(name: str, preset: str | None = None) -> ResolvedProfile:
    """Return a preset as it is shipped."""
    return resolve(SHIPPED[name], preset)
