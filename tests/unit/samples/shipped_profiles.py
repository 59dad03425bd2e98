# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The profiles of the collection, read once for all tests of a process: 30 files of YAML take a second."""

from __future__ import annotations

from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile_files import find_profiles, load_profile

SHIPPED = {name: load_profile(name) for name in find_profiles()}
PRESETS = [(name, preset) for name, profile in SHIPPED.items() for preset in profile["presets"]]
