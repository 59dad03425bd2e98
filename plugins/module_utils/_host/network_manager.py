# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stop NetworkManager from managing the fabric's interfaces."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from . import system

DIRECTORY = Path("/etc/NetworkManager")
SERVICE = "NetworkManager.service"


def unmanaged(names: Collection[str]) -> str:
    """Return the drop-in that makes interfaces unmanaged (NetworkManager.conf(5), unmanaged-devices)."""
    return "[keyfile]\nunmanaged-devices+=" + ";".join(f"interface-name:{name}" for name in names) + "\n"


def reload() -> None:
    """Make NetworkManager, if it runs, reload the list of unmanaged interfaces; other connections are not affected."""
    if system.is_active(SERVICE):
        system.run(["nmcli", "general", "reload", "conf"])
