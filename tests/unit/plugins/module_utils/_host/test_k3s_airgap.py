# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later

import hashlib
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host import k3s


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def fill(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).write_text(name, encoding="utf-8")
    for name in names:
        arch = "arm64" if "arm64" in name else "amd64"
        with (directory / f"sha256sum-{arch}.txt").open("a", encoding="utf-8") as sums:
            sums.write(f"{digest(directory / name)}  {name}\n")


def test_the_release_s_own_names(tmp_path: Path) -> None:
    fill(
        tmp_path, "k3s", "k3s-arm64", "k3s-airgap-images-amd64.tar.zst", "k3s-airgap-images-arm64.tar.zst", "multus.tar"
    )
    amd64, arm64 = k3s.read_airgap(tmp_path, "amd64"), k3s.read_airgap(tmp_path, "arm64")
    assert amd64.findings == arm64.findings == ()
    assert amd64.binary == str(tmp_path / "k3s")
    assert amd64.images == (str(tmp_path / "k3s-airgap-images-amd64.tar.zst"), str(tmp_path / "multus.tar"))
    assert arm64.binary == str(tmp_path / "k3s-arm64")
    assert arm64.images == (str(tmp_path / "k3s-airgap-images-arm64.tar.zst"), str(tmp_path / "multus.tar"))
    assert arm64.sums == {Path(path).name: digest(Path(path)) for path in (arm64.binary, *arm64.images)}


def test_all_faults_are_reported_at_once(tmp_path: Path) -> None:
    fill(tmp_path, "multus.tar")
    (tmp_path / "multus.tar").write_text("changed", encoding="utf-8")
    (tmp_path / "mine.tar").write_text("mine", encoding="utf-8")
    found = k3s.read_airgap(tmp_path, "amd64")
    assert (found.binary, list(found.sums)) == ("", ["multus.tar"])
    rules = [(finding.rule, finding.key) for finding in found.findings]
    assert rules == [
        ("k3s.airgap.binary", "k3s"),
        ("k3s.airgap.checksum.missing", "mine.tar"),
        ("k3s.airgap.checksum.wrong", "multus.tar"),
    ]


def test_a_missing_directory(tmp_path: Path) -> None:
    assert [finding.rule for finding in k3s.read_airgap(tmp_path / "no", "amd64").findings] == ["k3s.airgap.directory"]


def test_sum_files_as_sha256sum_writes_them() -> None:
    assert k3s.parse_sums("AB  k3s\ncd *./images.tar\n\nef  a b\n") == {"k3s": "ab", "images.tar": "cd"}


def test_an_absent_file_holds_nothing(tmp_path: Path) -> None:
    assert not k3s.holds(tmp_path / "k3s", hashlib.sha256().hexdigest())


def test_versions() -> None:
    assert k3s.parse_k3s_version("1.36.10").release == (1, 36, 10)
    for text in ("latest", "v1.36"):
        with pytest.raises(ValueError, match=f"'{text}'.*write it like v1.36.4"):
            k3s.parse_k3s_version(text)


@pytest.mark.parametrize(
    ("state", "changed", "stale"),
    [
        ("active", 1700000001.0, True),
        ("active", 1700000000.9, False),
        ("activating", 1700000005.0, True),
        ("inactive", 1700000005.0, False),
        ("failed", 1700000005.0, False),
    ],
)
def test_a_service_older_than_its_files(state: str, changed: float, stale: bool) -> None:
    properties = k3s.parse_properties(f"ActiveState={state}\n\nExecMainStartTimestamp=@1700000000\n")
    assert k3s.is_stale(properties, [1.0, changed]) is stale


def test_a_property_may_have_an_equals_sign() -> None:
    assert k3s.parse_properties("ExecStart=k3s --a=b\n") == {"ExecStart": "k3s --a=b"}


def test_a_service_that_never_started_is_not_stale() -> None:
    assert not k3s.is_stale({"ActiveState": "activating", "ExecMainStartTimestamp": ""}, [5.0])
