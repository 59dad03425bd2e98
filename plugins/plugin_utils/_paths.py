# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the collection's own data files are, in a checkout and as installed. Private to the collection."""

from __future__ import annotations

from pathlib import Path

COLLECTION = Path(__file__).resolve().parents[2]
PROFILES = COLLECTION / "profiles"
SWEEPS = COLLECTION / "sweeps"
ROLES = COLLECTION / "roles"
MODULES = COLLECTION / "plugins" / "modules"
