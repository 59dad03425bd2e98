# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import hashlib
from pathlib import Path

from ansible_collections.gb10.cluster.plugins.module_utils._k3s import airgap


def fill(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).write_text(name, encoding="utf-8")
    sums = [f"{hashlib.sha256((directory / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (directory / "sha256sum-amd64.txt").write_text("".join(sums), encoding="utf-8")


def test_the_release_s_own_names(tmp_path: Path) -> None:
    fill(
        tmp_path, "k3s", "k3s-arm64", "k3s-airgap-images-amd64.tar.zst", "k3s-airgap-images-arm64.tar.zst", "multus.tar"
    )
    amd64, arm64 = airgap.read_airgap(tmp_path, "amd64"), airgap.read_airgap(tmp_path, "arm64")
    assert amd64.findings == arm64.findings == ()
    assert amd64.binary == str(tmp_path / "k3s")
    assert amd64.images == (str(tmp_path / "k3s-airgap-images-amd64.tar.zst"), str(tmp_path / "multus.tar"))
    assert arm64.binary == str(tmp_path / "k3s-arm64")
    assert arm64.images == (str(tmp_path / "k3s-airgap-images-arm64.tar.zst"), str(tmp_path / "multus.tar"))


def test_all_faults_are_reported_at_once(tmp_path: Path) -> None:
    fill(tmp_path, "multus.tar")
    (tmp_path / "multus.tar").write_text("changed", encoding="utf-8")
    (tmp_path / "mine.tar").write_text("mine", encoding="utf-8")
    rules = [(finding.rule, finding.key) for finding in airgap.read_airgap(tmp_path, "amd64").findings]
    assert rules == [
        ("k3s.airgap.binary", "k3s"),
        ("k3s.airgap.checksum.missing", "mine.tar"),
        ("k3s.airgap.checksum.wrong", "multus.tar"),
    ]


def test_a_missing_directory(tmp_path: Path) -> None:
    assert [finding.rule for finding in airgap.read_airgap(tmp_path / "no", "amd64").findings] == [
        "k3s.airgap.directory"
    ]


def test_sum_files_as_sha256sum_writes_them() -> None:
    assert airgap.parse_sums("AB  k3s\ncd *./images.tar\n\n") == {"k3s": "ab", "images.tar": "cd"}
