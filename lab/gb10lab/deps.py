# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Install the Debian packages that the lab needs on this machine."""

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from .shell import LabError, command, say

# both forms of apt's sources: "deb [options] URI suite …" and "URIs: URI"
_SOURCE = re.compile(r"^(?:deb\s+(?:\[[^]]*\]\s+)?|URIs:\s*)(https?://\S+/debian)/?(?:\s|$)", re.MULTILINE)
# program -> Debian package
PROGRAMS = {
    "podman": "podman",
    "runc": "runc",
    "conmon": "conmon",
    "mmdebstrap": "mmdebstrap",
    "gpg": "gpg",
    "ip": "iproute2",
    "ssh": "openssh-client",
    "nsenter": "util-linux",
    "sysctl": "procps",
}
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def missing(programs: Mapping[str, str] = PROGRAMS) -> list[str]:
    """Return the packages whose programs are not on PATH, sorted."""
    absent = {package for program, package in programs.items() if not shutil.which(program)}
    if not KEYRING.exists():
        absent.add("debian-archive-keyring")
    return sorted(absent)


def require_root() -> None:
    """Raise LabError unless run by root: namespaces and mounts need it."""
    if os.geteuid() != 0:
        raise LabError("the lab creates network namespaces and mounts, which needs root: run `sudo lab/labctl …`")


def require_no_overlay(*directories: Path) -> None:
    """Raise LabError for a directory on overlayfs, on which podman cannot mount another one."""
    for directory in directories:
        existing = next(path for path in [directory, *directory.parents] if path.exists())
        if command(["stat", "-f", "-c", "%T", str(existing)]).stdout.strip() == "overlayfs":
            raise LabError(
                f"{directory} is on overlayfs (the disk of a container?), where the hosts' disks cannot be. "
                "Set GB10_LAB_STATE and GB10_CACHE to directories on a mounted disk or volume."
            )


def install(programs: Mapping[str, str] = PROGRAMS) -> None:
    """Install what is missing with apt. Raise LabError if apt is not available."""
    require_root()
    packages = missing(programs)
    if not packages:
        say("all needed packages are installed")
        return
    if not shutil.which("apt-get"):
        raise LabError(f"this machine has no apt-get; install these programs yourself: {', '.join(packages)}")
    say(f"installing {' '.join(packages)}")
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    # no recommended packages: their services would keep running after the lab
    wait = ["-o", "DPkg::Lock::Timeout=300"]
    command(["apt-get", *wait, "update", "-q"], env=env, timeout=600)
    command(["apt-get", *wait, "install", "-y", "-q", "--no-install-recommends", *packages], env=env, timeout=900)
    if still := missing(programs):
        raise LabError(f"apt-get succeeded, but these packages are still missing: {', '.join(still)}")


def mirror(apt: Path = Path("/etc/apt")) -> str:
    """Return $GB10_DEBIAN_MIRROR, else the Debian mirror of this machine's apt. Raise LabError if there is none."""
    if chosen := os.environ.get("GB10_DEBIAN_MIRROR"):
        return chosen.rstrip("/")
    for path in [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]:
        if not path.is_file():
            continue
        text = "\n".join(line for line in path.read_text(errors="replace").splitlines() if not line.startswith("#"))
        if found := _SOURCE.search(text):
            return found.group(1)
    raise LabError("apt names no Debian mirror on this machine: set GB10_DEBIAN_MIRROR to one, http://…/debian")
