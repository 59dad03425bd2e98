# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Build the hosts' root image from Debian packages with mmdebstrap, and cache it under a hash of its recipe."""

import fcntl
import hashlib
import os
from pathlib import Path

from . import deps
from .lab import CHECKOUT, Lab
from .podman import Podman
from .shell import command, say

SUITE = "trixie"  # Python 3.13 and netplan 1.1, the line of DGX OS 7
PACKAGES = (
    # an init system and what Ansible needs
    "systemd", "systemd-sysv", "dbus", "udev", "openssh-server", "python3", "sudo", "ca-certificates",
    # the network, as DGX OS has it
    "netplan.io", "network-manager", "dnsmasq-base", "iproute2", "ethtool", "iputils-ping", "iputils-arping",
    "nftables", "iptables", "ipset", "kmod", "pciutils",
    # what a K3s node uses
    "runc", "conntrack", "socat",
    # ordinary tools
    "procps", "psmisc", "jq", "zstd", "less",
)  # fmt: skip
ROOTFS = CHECKOUT / "lab" / "hosts" / "rootfs"
CUSTOMIZE = CHECKOUT / "lab" / "hosts" / "customize"


def recipe_key() -> str:
    """Return a hash of everything that the image is built from, except the packages' versions."""
    digest = hashlib.sha256(repr((SUITE, PACKAGES)).encode())
    for path in sorted([CUSTOMIZE, *(p for p in ROOTFS.rglob("*") if p.is_file())]):
        digest.update(str(path.relative_to(CHECKOUT)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def reference() -> str:
    """Return the name of the image in the cache's image store."""
    return f"localhost/gb10-lab-host:{recipe_key()}"


def store(lab: Lab) -> Path:
    """Return the image store that all labs with this cache read."""
    return lab.cache / "images"


def ensure(lab: Lab) -> str:
    """Build the image unless the cache has it; return its name. Two labs may start at the same time."""
    store(lab).mkdir(parents=True, exist_ok=True)
    name = reference()
    with (lab.cache / "images.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        podman = Podman(lab, graph_root=store(lab))
        if podman("image", "exists", name, check=False).returncode != 0:
            _build(lab, podman, name)
    return name


def _build(lab: Lab, podman: Podman, name: str) -> None:
    mirror = deps.mirror()
    say(f"building the hosts' image from Debian {SUITE} at {mirror}; once, about half a minute")
    for left in lab.cache.glob("host-*.tar"):
        left.unlink()
    tar = lab.cache / f"host-{os.getpid()}.tar"
    try:
        command(
            [
                "mmdebstrap", "--variant=minbase", "--mode=root", "--dpkgopt=force-unsafe-io", "--quiet",
                f"--keyring={deps.KEYRING}", f"--include={','.join(PACKAGES)}",
                f"--customize-hook=cp -a --no-preserve=ownership {ROOTFS}/. \"$1\"/",
                f"--customize-hook={CUSTOMIZE} \"$1\"",
                "--aptopt=Acquire::Languages \"none\"", "--dpkgopt=path-exclude=/usr/share/doc/*",
                "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
                SUITE, str(tar), f"deb {mirror} {SUITE} main",
            ],
            timeout=1800,
        )  # fmt: skip
        say("importing the image")
        podman("import", "--quiet", str(tar), name, timeout=300)
    finally:
        tar.unlink(missing_ok=True)
