# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse K3s versions, and tell whether the K3s service runs with the files on disk."""

from __future__ import annotations

from collections.abc import Iterable

from .._common.versions import Version

EXAMPLE = "v1.36.4+k3s1"
# Values of systemd's ActiveState at which the service has a process, or is about to
RUNNING = ("active", "activating", "reloading")


def parse_k3s_version(text: str) -> Version:
    """Return the version of ``v1.36.4+k3s1``; raise ValueError if the text is not a full K3s version."""
    version = Version.parse(text, EXAMPLE)
    if len(version.release) != 3:
        raise ValueError(f"{text!r} is not a full K3s version; write it like {EXAMPLE}")
    return version


def parse_properties(text: str) -> dict[str, str]:
    """Return {name: value} from the output of ``systemctl show``."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def is_stale(properties: dict[str, str], changed: Iterable[float]) -> bool:
    """Tell whether a running service was started before the last change of one of its files.

    ``properties`` come from ``systemctl show --timestamp=unix``, which prints whole seconds (``@1700000000``).
    ``changed`` are times of change in seconds. A file with the same second was written just before the start.
    """
    if properties.get("ActiveState") not in RUNNING:
        return False
    started = properties.get("ExecMainStartTimestamp", "").removeprefix("@")
    return started.isdigit() and any(int(time) > int(started) for time in changed)
