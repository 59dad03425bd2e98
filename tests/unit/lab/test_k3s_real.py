# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test how the lab starts the K3s that LAB_K3S names, with a script in its place."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LAB = Path(__file__).resolve().parents[3] / "lab"


@pytest.mark.parametrize(
    ("given", "words", "message"),
    [
        ("/nowhere/k3s", [], "LAB_K3S=/nowhere/k3s is not an executable file"),
        ("/nowhere/{release}", ["v1", "v2"], "LAB_K3S=/nowhere/v1 is not an executable file"),
        ("/bin/true", ["v1", "v2"], "LAB_K3S=/bin/true names one binary for v1, v2: write {release} in its path"),
    ],
)
def test_a_given_binary_must_exist_for_each_release(tmp_path: Path, given: str, words: list[str], message: str) -> None:
    environment = {**os.environ, "GB10_CACHE": str(tmp_path), "LAB_K3S": given}
    command = [sys.executable, LAB / "kubernetes" / "prepare", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("k3s version v1.34.3+k3s1 (48ffa7b6)", "is K3s v1.34.3+k3s1, and this lab installs v1.36.4+k3s1"),
        ("usage", "is K3s of an unknown release, and this lab installs v1.36.4+k3s1"),
    ],
)
def test_a_binary_of_another_release_is_refused(tmp_path: Path, said: str, told: str) -> None:
    (tmp_path / "k3s").write_text(f"#!/bin/sh\necho '{said}'\n")
    (tmp_path / "k3s").chmod(0o755)
    environment = {**os.environ, "GB10_CACHE": str(tmp_path / "cache"), "LAB_K3S": str(tmp_path / "{release}")}
    (tmp_path / "v1.36.4+k3s1").symlink_to("k3s")
    command = [sys.executable, LAB / "kubernetes" / "prepare", "v1.36.4+k3s1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, told in done.stderr) == (1, True), done.stderr
    assert not (tmp_path / "cache").exists()


def test_a_release_without_sources_is_refused_before_anything_is_compiled(tmp_path: Path) -> None:
    (tmp_path / "go").write_text("#!/bin/sh\necho go1.99\n")
    (tmp_path / "go").chmod(0o755)
    environment = {**os.environ, "GB10_CACHE": str(tmp_path / "cache"), "PATH": str(tmp_path)}
    command = [sys.executable, LAB / "kubernetes" / "build", "v1.36.3+k3s1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no sources of v1.36.3+k3s1, only those of v1.36.4+k3s1, v1.35.8+k3s1, v1.37.2+k3s1" in done.stderr
