# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the release of DGX OS, the loaded kernel modules and the installed packages that combinations depend on."""

from __future__ import annotations

import re
from pathlib import Path

from .._sriov.physical_functions import read_text
from .commands import Run

# The other keys of this file tell the serial number among others.
_DGX_VERSION = re.compile(r'^DGX_(OTA|SWBUILD)_VERSION="?([^"\s]+)', re.MULTILINE)
# Starts of the names of packages that can make the difference between two hosts.
PACKAGES = (
    *("containerd", "cuda-", "dgx", "docker", "doca", "grub", "libibverbs", "libnccl", "libnvidia", "linux-", "mft"),
    *("mlnx", "netplan", "nvidia", "ofed", "rdma-core"),
)


def read_dgx_os(etc: Path) -> str | None:
    """Return the release of DGX OS: of the last update over the network, or as delivered. None on other systems."""
    found = _DGX_VERSION.findall(read_text(etc / "dgx-release") or "")
    # The file gets a line for each update; the last one holds.
    updates = [version for kind, version in found if kind == "OTA"]
    versions = updates or [version for _kind, version in found]
    return str(versions[-1]) if versions else None


def read_modules(proc: Path) -> list[str]:
    """Return the names of the loaded kernel modules."""
    return sorted(line.split()[0] for line in (read_text(proc / "modules") or "").splitlines() if line.strip())


def read_packages(run: Run) -> dict[str, str]:
    """Return ``{package: version}`` of the installed packages in PACKAGES; empty where dpkg does not answer."""
    answer = run(["dpkg-query", "--show", "--showformat=${Package} ${Version} ${db:Status-Status}\\n"])
    rows = (line.split() for line in answer.output.splitlines() if line.startswith(PACKAGES))
    return {row[0]: row[1] for row in rows if len(row) == 3 and row[2] == "installed"}
