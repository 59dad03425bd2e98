# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compute the kubelet's thresholds for disk space from the size of the disk.

By default K3s evicts pods at 5 % free space, the kubelet deletes unused images at 85 % used space, and an eviction
frees 10 %. On a disk of 4 TB full of models these are 200, 600 and 400 GB: DiskPressure although there is enough space.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

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
