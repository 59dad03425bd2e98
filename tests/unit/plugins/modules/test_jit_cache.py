# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that old compiled kernels are deleted only when they are too large and unused."""

import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.modules import jit_cache
from module_runs import Step, steps_of

OWN, OLD, OLDER = "0.5.12-arm64-0123456789ab", "0.5.11-arm64-0123456789ab", "0.5.10-arm64-0123456789ab"
MEGABYTE = 1_000_000


class Cache:
    """A directory with 2 MB of two images and a foreign directory; no process has mounts."""

    def __init__(self, place: Path, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(jit_cache, "PROC", place / "proc")
        self.place, self.root, self.last = place, place / "cache", dict[str, Any]()
        self.options = {"path": str(self.root), "key": OWN, "owner": os.getuid()}
        for age, name in enumerate((OLD, OLDER, "models")):
            write(self.root / name / "triton")
            os.utime(self.root / name, (1000 - age, 1000 - age))

    def shows(self) -> dict[str, Any]:
        return {
            "bytes": f"{self.last.get('bytes', 0) / MEGABYTE:.1f} MB",
            "here": sorted(path.name for path in self.root.glob("*")) if self.root.is_dir() else [],
        }


def write(directory: Path, accessed: int = 0) -> None:
    directory.mkdir(parents=True)
    (directory / "kernel.so").write_bytes(bytes(MEGABYTE))
    if accessed:
        os.utime(directory / "kernel.so", (accessed, 100))


def use(cache: Cache) -> None:
    (cache.place / "proc/7").mkdir(parents=True)
    line = f"1 2 259:2 /var/lib/{OLDER} /opt/gb10-cache rw - ext4 /dev/nvme0n1p2 rw\n"
    (cache.place / "proc/7/mountinfo").write_text(line)


def block(cache: Cache) -> None:
    cache.root.rename(cache.place / "away")
    cache.root.write_text("")


CASES: dict[str, list[Step]] = {
    "below the limit": [{"limit_gb": 1, "check": True}, {"limit_gb": 1}, {"limit_gb": 1}],
    "the oldest goes first": [
        {"limit_gb": 0.0015, "check": True},
        *({"limit_gb": limit} for limit in (0.0015, 0.0015, 0)),
    ],
    "a pod has the oldest": [use, {"limit_gb": 0.0001}],
    "the own kernels are of the driver": [lambda cache: write(cache.root / OWN / "cuda"), {"limit_gb": 0.0001}],
    "a link": [lambda cache: (cache.root / "0.5.9-arm64-0123456789ab").symlink_to("models"), {"limit_gb": 0}],
    **{f"key {key!r}": [{"key": key, "limit_gb": 0}] for key in ("", "..", "models", "a/b-0123456789ab")},
    "a file in the place of the directory": [block, {"limit_gb": 1}],
}
test_each_step_of_the_cache = steps_of(jit_cache=(jit_cache, Cache, CASES))


@pytest.mark.parametrize(
    ("images", "limit", "doomed", "left"),
    [
        ("own:4:9 a:2:1 b:2:2", 8, "", 8),
        ("own:4:9 a:2:2 b:2:1", 7, "b", 6),
        ("own:4:9 a:2:1* b:2:2", 7, "b", 6),
        ("own:4:9 a:2:1* b:2:2*", 7, "", 8),
        ("own:4:9 a:2:1", 2, "a k1 k2", 2),
        ("own:4:9* a:2:1", 2, "a", 4),
        ("own:4:9 a:2:1*", 3, "k1", 5),
        ("own:4:0", 0, "k1 k2 k3", 1),
    ],
)
def test_what_was_not_used_for_longest_goes_first_and_nothing_that_a_pod_has(
    images: str, limit: int, doomed: str, left: int
) -> None:
    """An image is NAME:SIZE:TIME, with a star if a pod has it; the own one has three kernels of one byte."""
    read = [[*each.rstrip("*").split(":"), each[-1]] for each in images.split()]
    parts = [jit_cache.Part(Path(name), int(size), float(used), end == "*") for name, size, used, end in read]
    kernels = [jit_cache.Part(Path(f"k{number}"), 1, number) for number in (3, 1, 2)]
    assert jit_cache.steps(parts, kernels, Path("own"), limit) == ([Path(name) for name in doomed.split()], left)


def test_kernels_are_directories_with_all_files_of_one_and_the_drivers_cache_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Cache(tmp_path, monkeypatch).root / OWN
    for age, name in enumerate(("triton/read", "triton/new", "flashinfer/ops/old", "cuda/a/0")):
        write(own / name, 9000 if age == 0 else 900 - age)
    images, kernels = jit_cache.observe(own.parent, own, 0)
    assert {image.path.name for image in images} == {OWN, OLD, OLDER}
    assert [str(one.path.relative_to(own)) for one in sorted(kernels, key=lambda one: -one.used)] == [
        "triton/read",
        "triton/new",
        "flashinfer/ops/old",
    ]
    assert jit_cache.observe(own.parent, own, 10 * MEGABYTE)[1] == []
