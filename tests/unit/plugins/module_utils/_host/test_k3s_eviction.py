# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the kubelet's thresholds and the space that a download of models leaves free."""

import shutil
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host.k3s import (
    disk_space,
    eviction_threshold,
    kubelet_args,
    model_reserve,
)

GIB = 2**30


@pytest.mark.parametrize(
    ("disk", "free", "high"),
    [(20, 1, 90), (100, 4, 92), (252, 5.04, 96), (1000, 16, 96), (4000, 16, 99)],
)
def test_thresholds_of_disks_in_gib(disk: int, free: float, high: int) -> None:
    assert eviction_threshold(disk * GIB) == pytest.approx(free * GIB, rel=0.01)
    arguments = dict(argument.split("=", 1) for argument in kubelet_args(disk * GIB, []))
    size = f"{eviction_threshold(disk * GIB) // 2**20}Mi"
    assert arguments["eviction-hard"] == f"imagefs.available<{size},nodefs.available<{size}"
    assert (int(arguments["image-gc-high-threshold"]), int(arguments["image-gc-low-threshold"])) == (high, high - 2)


@pytest.mark.parametrize("disk", [20, 100, 252, 1000, 4000])
def test_a_full_model_directory_neither_deletes_images_nor_evicts_pods(disk: int) -> None:
    arguments = dict(argument.split("=", 1) for argument in kubelet_args(disk * GIB, []))
    assert model_reserve(disk * GIB) > eviction_threshold(disk * GIB)
    assert model_reserve(disk * GIB) >= (100 - int(arguments["image-gc-high-threshold"])) * disk * GIB // 100


def test_given_arguments_win() -> None:
    arguments = kubelet_args(1000 * GIB, ["eviction-hard=nodefs.available<5%", "fail-cgroupv1=false"])
    assert [argument.partition("=")[0] for argument in arguments] == [
        "eviction-minimum-reclaim",
        "image-gc-high-threshold",
        "image-gc-low-threshold",
        "eviction-hard",
        "fail-cgroupv1",
    ]


@pytest.mark.parametrize(("given", "reserved"), [(0, 0), (2, 2 * 10**9), (1.5, 1_500_000_000)])
def test_a_given_reserve_replaces_the_computed_one(tmp_path: Path, given: float, reserved: int) -> None:
    assert disk_space(tmp_path / "not" / "yet", given)[1] == reserved


def test_the_reserve_is_computed_from_the_disk_of_a_directory_that_will_exist(tmp_path: Path) -> None:
    free, reserved = disk_space(tmp_path / "not" / "yet", -1)
    assert reserved == model_reserve(shutil.disk_usage(tmp_path).total) and free > 0
    assert list(tmp_path.iterdir()) == []
