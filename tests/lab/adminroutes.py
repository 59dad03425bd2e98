# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The routes of all catalogued releases of SGLang that a client must not reach."""

import json
import runpy

from labcommand import CHECKOUT

CATALOGUES = CHECKOUT / "plugins" / "profiles" / "catalogue"
DOOR = CHECKOUT / "roles" / "sglang" / "files" / "front_door.py"
POD = "10.42.0.1"


def closed_routes() -> list[str]:
    """Return what the door refuses; tests/unit/roles/sglang/test_front_door.py says which routes it must admit."""
    found: set[str] = set()
    for release in CATALOGUES.glob("*.json"):
        found |= set(json.loads(release.read_text(encoding="utf-8"))["routes"])
    admits = runpy.run_path(str(DOOR))["admits"]
    closed = [route for route in sorted(found) if not admits(route, "10.42.0.9", POD, frozenset({POD}))]
    assert len(closed) > 40
    return closed
