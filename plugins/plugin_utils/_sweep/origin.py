# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Return which release of the collection measured a cell."""

from __future__ import annotations

import json
from pathlib import Path

from ansible_collections.gb10.cluster.plugins.module_utils._host import system

from .._paths import COLLECTION
from .._yaml import read_yaml


def collection_version(root: Path = COLLECTION) -> str:
    """Return the collection's version from MANIFEST.json (installed collection) or galaxy.yml (checkout)."""
    manifest = root / "MANIFEST.json"
    if manifest.is_file():
        return str(json.loads(manifest.read_text(encoding="utf-8"))["collection_info"]["version"])
    return str(read_yaml(root / "galaxy.yml")["version"])


def commit(root: Path = COLLECTION) -> str:
    """Return the commit of a checkout; an empty string for an installed collection."""
    if not (root / ".git").exists():
        return ""
    return system.run(["git", "-C", str(root), "rev-parse", "HEAD"], check=False).stdout.strip()
