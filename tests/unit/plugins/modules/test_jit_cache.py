# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that old compiled kernels are deleted only when they are too large and unused."""

from __future__ import annotations

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
    assert "sglang_cache_limit_gb is 0.0001. Pods use them, so nothing more was deleted" in said[0]


@pytest.mark.parametrize("used", [False, True])
def test_the_kernels_of_its_own_image_that_were_not_used_for_long_go_unless_a_pod_uses_them(
    capsys: Capture, root: Path, tmp_path: Path, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda _module, text: said.append(text))
    for age, name in enumerate(("triton/new", "triton/read", "flashinfer/ops/old", "flashinfer/ops/older", "cuda/a/0")):
        (root / OWN / name).mkdir(parents=True)
        for part in ("kernel.so", "kernel.json"):
            (root / OWN / name / part).write_bytes(bytes(MEGABYTE // 2))
            os.utime(root / OWN / name / part, (9000 - 1000 * age, 9000 - 1000 * age))
    os.utime(root / OWN / "triton/read/kernel.so", (9999, 100))
    if used:
        (tmp_path / "proc" / "7").mkdir(parents=True)
        (tmp_path / "proc" / "7" / "mountinfo").write_text(f"1 2 259:2 /var/lib/{OWN} /opt/gb10-cache rw - ext4 x rw\n")
    gone = [f"{OWN}/flashinfer/ops/older", f"{OWN}/flashinfer/ops/old"]
    result = run(capsys, root, 0.0036, check=True)[1]
    assert result["removed"] == ([OLDER, OLD] if used else [OLDER, OLD, *gone])
    assert (root / OWN / "flashinfer/ops/older").exists()
    result = run(capsys, root, 0.0036)[1]
    left = {str(path.parent.relative_to(root / OWN)) for path in root.glob(f"{OWN}/**/kernel.so")}
    assert left == {"triton/new", "triton/read", "cuda/a/0"} | (
        {"flashinfer/ops/old", "flashinfer/ops/older"} if used else set()
    )
    assert bool(said) is used
    assert result["bytes"] > 3.6e6 if used else result["bytes"] <= 3.6e6


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
