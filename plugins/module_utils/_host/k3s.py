# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read an air-gap directory of K3s: the files of the release with their checksums."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from .._common.findings import Finding, Rule, Rules
from .._common.versions import Version

RULES = Rules(
    {
        "k3s.airgap.directory": Rule(
            "the directory does not exist on the controller",
            "Create it from the release, or set k3s_airgap_dir to an empty text to download",
            "k3s_airgap_dir",
        ),
        "k3s.airgap.binary": Rule(
            "the K3s binary for {arch} is missing", "Copy it there from the release page, with its sha256sum file"
        ),
        "k3s.airgap.checksum.missing": Rule(
            "no sha256sum*.txt in the directory names this file",
            "Add the release's sha256sum-{arch}.txt, or a line that `sha256sum {key}` prints",
        ),
        "k3s.airgap.checksum.wrong": Rule(
            "the file does not match its checksum, so it is damaged or was replaced",
            "Download it again; do not use it",
        ),
    }
)
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


_IMAGE_SUFFIXES = (".tar", ".tar.zst", ".tar.gz", ".tzst", ".tgz")
_ARCHES = ("amd64", "arm64")


@dataclass(frozen=True)
class Airgap:
    """The files for one architecture, with absolute paths; ``binary`` is empty if it is missing."""

    binary: str
    images: tuple[str, ...]
    findings: tuple[Finding, ...]
    sums: dict[str, str] = field(default_factory=dict)
    """The sha256 of the binary and the images, by name."""


def parse_sums(text: str) -> dict[str, str]:
    """Return {file name: sha256} from the text of a ``sha256sum`` file."""
    sums = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2:
            sums[words[1].lstrip("*").removeprefix("./")] = words[0].lower()
    return sums


def holds(path: Path, wanted: str) -> bool:
    """Tell whether there is a file with this sha256 in lower-case hexadecimal text."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == wanted


def read_airgap(directory: Path, arch: str) -> Airgap:
    """Read and verify the directory: every file that would be used must match its checksum.

    The checksums come from all ``sha256sum*.txt`` files in the directory; K3s publishes them under such names.
    """
    findings: list[Finding] = []
    where = str(directory)
    if not directory.is_dir():
        return Airgap("", (), (RULES.finding("k3s.airgap.directory", where, where),))
    sums: dict[str, str] = {}
    for path in sorted(directory.glob("sha256sum*.txt")):
        sums.update(parse_sums(path.read_text(encoding="utf-8")))
    binary = directory / ("k3s" if arch == "amd64" else f"k3s-{arch}")
    if not binary.is_file():
        findings.append(RULES.finding("k3s.airgap.binary", None, where, key=binary.name, arch=arch))
    # An image archive without an architecture in its name is for all.
    others = [other for other in _ARCHES if other != arch]
    archives = [path for path in sorted(directory.iterdir()) if path.name.endswith(_IMAGE_SUFFIXES)]
    images = [path for path in archives if not any(other in path.name for other in others)]
    for path in filter(Path.is_file, [binary, *images]):
        if path.name not in sums:
            findings.append(RULES.finding("k3s.airgap.checksum.missing", None, where, key=path.name, arch=arch))
        elif not holds(path, sums[path.name]):
            findings.append(RULES.finding("k3s.airgap.checksum.wrong", None, where, key=path.name))
    used = {path.name: sums[path.name] for path in [binary, *images] if path.name in sums}
    return Airgap(str(binary) if binary.is_file() else "", tuple(map(str, images)), tuple(findings), used)


# Compute the kubelet's thresholds for disk space from the size of the disk.
#
# By default K3s evicts pods at 5 % free space, the kubelet deletes unused images at 85 % used space, and an eviction
# frees 10 %. On a disk of 4 TB full of models these are 200, 600 and 400 GB: DiskPressure although there is enough
# space.

_GIB = 2**30
# Enough for logs and the layers of a starting pod. Staging leaves three times this space free (model_reserve).
LARGEST_GIB = 16
SMALLEST_GIB = 4


def eviction_threshold(disk_bytes: int) -> int:
    """Return the free bytes below which the kubelet evicts: 2 % of the disk, within 4 to 16 GiB, at most 5 %."""
    within = min(max(disk_bytes // 50, SMALLEST_GIB * _GIB), LARGEST_GIB * _GIB)
    return min(within, disk_bytes // 20)


def model_reserve(disk_bytes: int) -> int:
    """Return the bytes that a download of models must leave free.

    The kubelet deletes images when less than two thresholds are free; the third is for compiled kernels and logs.
    """
    return 3 * eviction_threshold(disk_bytes)


def disk_space(directory: Path, reserve_gb: float) -> tuple[int, int]:
    """Return the free bytes of the file system that contains a directory, or will contain it, and the bytes to reserve.

    A negative ``reserve_gb`` means ``model_reserve``.
    """
    while not directory.exists():
        directory = directory.parent
    disk = shutil.disk_usage(directory)
    return disk.free, int(reserve_gb * 1e9) if reserve_gb >= 0 else model_reserve(disk.total)


def kubelet_args(disk_bytes: int, given: Iterable[str]) -> list[str]:
    """Return the kubelet's arguments for a disk of this size, followed by the given ones, which override them."""
    free = eviction_threshold(disk_bytes)
    size = f"{free // 2**20}Mi"
    high = 100 - -(-2 * free * 100 // disk_bytes)
    computed = {
        "eviction-hard": f"imagefs.available<{size},nodefs.available<{size}",
        "eviction-minimum-reclaim": f"imagefs.available={size},nodefs.available={size}",
        "image-gc-high-threshold": str(high),
        "image-gc-low-threshold": str(high - 2),
    }
    own = list(given)
    names = {argument.partition("=")[0] for argument in own}
    return [f"{name}={value}" for name, value in computed.items() if name not in names] + own
