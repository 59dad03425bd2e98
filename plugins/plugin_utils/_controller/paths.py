# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the collection's own data files are, in a checkout and as installed."""

from __future__ import annotations

from pathlib import Path

COLLECTION = Path(__file__).resolve().parents[3]
PLUGINS = COLLECTION / "plugins"
PROFILES = PLUGINS / "profiles"
SWEEPS = PLUGINS / "sweeps"
ROLES = COLLECTION / "roles"
MODULES = PLUGINS / "modules"
