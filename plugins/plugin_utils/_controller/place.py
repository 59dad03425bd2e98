# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tell in which file and line a user set a variable. Private to the collection."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

try:
    from ansible._internal._datatag import _tags
except ImportError:
    # Not a part of Ansible's interface. Without it, findings name no file.
    ORIGIN: Any = None
else:
    ORIGIN = _tags.Origin


def place_of(name: str, variables: Mapping[str, Any]) -> str:
    """Return ``inventory/mine/hosts.yml:12`` or ``option -e of the command``; empty if Ansible does not say.

    The name in the file tells it: a value may be a template, and true and false have no origin.
    """
    key = next((key for key in variables if key == name), None)
    origin = ORIGIN.get_tag(key) if ORIGIN and key is not None else None
    if origin is None:
        return ""
    if not origin.path:
        return "option -e of the command" if "-e" in str(origin.description) else ""
    path = Path(origin.path)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{shown}:{origin.line_num}" if origin.line_num else str(shown)
