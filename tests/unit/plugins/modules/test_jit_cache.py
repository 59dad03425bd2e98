# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that old compiled kernels are deleted only when they are too large and unused."""

import os
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.modules import jit_cache
from module_runs import run_module

Capture = pytest.CaptureFixture[str]
OWN, OLD, OLDER = "0.5.12-arm64-0123456789ab", "0.5.11-arm64-0123456789ab", "0.5.10-arm64-0123456789ab"
MEGABYTE = 1_000_000


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with 2 MB of two images and a foreign directory; no process has mounts."""
    monkeypatch.setattr(jit_cache, "PROC", tmp_path / "proc")
    cache = tmp_path / "cache"
    for age, name in enumerate((OLD, OLDER, "models")):
        (cache / name / "triton").mkdir(parents=True)
        (cache / name / "triton" / "kernel.so").write_bytes(bytes(MEGABYTE))
        os.utime(cache / name, (1000 - age, 1000 - age))
    return cache


def run(capsys: Capture, root: Path, limit_gb: float, **more: Any) -> tuple[int, dict[str, Any]]:
    given = {"path": str(root), "key": OWN, "owner": os.getuid(), "limit_gb": limit_gb}
    return run_module(jit_cache, capsys, **given | more)


def test_the_directory_is_created_once_and_nothing_is_deleted_below_the_limit(capsys: Capture, root: Path) -> None:
    assert run(capsys, root, 1)[1]["changed"] is True
    status, result = run(capsys, root, 1)
    assert (status, result["changed"], result["removed"]) == (0, False, [])
    assert result["bytes"] >= 2 * MEGABYTE
    assert {path.name for path in root.iterdir()} == {OWN, OLD, OLDER, "models"}


def test_the_oldest_goes_first_and_foreign_directories_stay(capsys: Capture, root: Path) -> None:
    assert run(capsys, root, 0.0015, check=True)[1]["removed"] == [OLDER]
    assert (root / OLDER).exists()
    assert run(capsys, root, 0.0015)[1]["removed"] == [OLDER]
    assert run(capsys, root, 0)[1]["removed"] == [OLD]
    assert {path.name for path in root.iterdir()} == {OWN, "models"}


def test_a_directory_that_a_pod_uses_stays_and_a_warning_says_so(
    capsys: Capture, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda _module, text: said.append(text))
    assert run(capsys, root, 1)[1]["removed"] == [] == said
    (tmp_path / "proc" / "7").mkdir(parents=True)
    line = f"1 2 259:2 /var/lib/{OLDER} /opt/gb10-cache rw - ext4 /dev/nvme0n1p2 rw\n"
    (tmp_path / "proc" / "7" / "mountinfo").write_text(line)
    result = run(capsys, root, 0.0001)[1]
    assert result["removed"] == [OLD]
    assert f"sglang_cache_limit_gb is 0.0001. Pods use {OLDER}, so these were kept" in said[0]


def test_what_no_pod_uses_and_cannot_be_deleted_by_age_is_not_said_to_be_used(
    capsys: Capture, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda _module, text: said.append(text))
    (root / OWN / "cuda").mkdir(parents=True)
    (root / OWN / "cuda/index").write_bytes(bytes(MEGABYTE))
    assert run(capsys, root, 0.0001)[1]["removed"] == [OLDER, OLD]
    assert "Pods use" not in said[0]
    assert f"delete {root / OWN} on the host" in said[0]


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


def test_kernels_are_directories_with_all_files_of_one_and_the_drivers_cache_is_none(root: Path) -> None:
    for age, name in enumerate(("triton/read", "triton/new", "flashinfer/ops/old", "cuda/a/0")):
        (root / OWN / name).mkdir(parents=True)
        (root / OWN / name / "kernel.so").write_bytes(bytes(MEGABYTE))
        os.utime(root / OWN / name / "kernel.so", (9000 if age == 0 else 900 - age, 100))
    images, kernels = jit_cache.observe(root, root / OWN, 0)
    assert {image.path.name for image in images} == {OWN, OLD, OLDER}
    assert [str(one.path.relative_to(root / OWN)) for one in sorted(kernels, key=lambda one: -one.used)] == [
        "triton/read",
        "triton/new",
        "flashinfer/ops/old",
    ]
    assert jit_cache.observe(root, root / OWN, 10 * MEGABYTE)[1] == []


def test_a_link_is_not_followed(capsys: Capture, root: Path) -> None:
    (root / "0.5.9-arm64-0123456789ab").symlink_to(root / "models")
    run(capsys, root, 0)
    assert (root / "models" / "triton" / "kernel.so").exists()


@pytest.mark.parametrize("key", ["", "..", "models", "a/b-0123456789ab"])
def test_a_key_of_another_form_is_refused(capsys: Capture, root: Path, key: str) -> None:
    status, result = run(capsys, root, 0, key=key)
    assert (status, (root / OLD).exists()) == (1, True)
    assert "12 hexadecimal digits" in result["msg"]


def test_a_directory_that_cannot_be_written_has_a_remedy(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, result = run(capsys, tmp_path / "file", 1)
    assert status == 1
    assert "sglang_cache_dir" in result["msg"]
