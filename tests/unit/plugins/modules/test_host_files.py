# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that all files of a role are written, kept and removed in one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.modules import host_files
from module_runs import run_module

Capture = pytest.CaptureFixture[str]


def mode(path: Path) -> str:
    return f"{path.stat().st_mode & 0o7777:04o}"


@pytest.fixture
def wanted(tmp_path: Path) -> dict[str, Any]:
    """Return options with one entry of every kind."""
    (tmp_path / "plugin").write_bytes(b"\x7fELF\xff")
    (tmp_path / "old").write_text("old")
    etc = tmp_path / "etc" / "rancher"
    return {
        "directories": [{"path": str(etc), "mode": "0750"}],
        "files": [
            {"path": str(etc / "config.yaml"), "content": "port: 1\n", "mode": "0600"},
            {"path": str(etc / "token"), "content": "first", "mode": "0600", "keep": True},
            {"path": str(etc / "host-device"), "source": str(tmp_path / "plugin"), "mode": "0755"},
        ],
        "absent": [str(tmp_path / "old")],
    }


def test_all_paths_are_brought_about_and_a_second_run_changes_nothing(
    capsys: Capture, tmp_path: Path, wanted: dict[str, Any]
) -> None:
    etc = tmp_path / "etc" / "rancher"
    names = [etc, etc / "config.yaml", etc / "token", etc / "host-device", tmp_path / "old"]
    status, result = run_module(host_files, capsys, **wanted)
    assert (status, result["changed"], result["paths"]) == (0, True, [str(name) for name in names])
    assert [mode(path) for path in names[:-1]] == ["0750", "0600", "0600", "0755"]
    assert (etc / "config.yaml").read_text() == "port: 1\n"
    assert (etc / "host-device").read_bytes() == b"\x7fELF\xff"
    assert sorted(path.name for path in etc.iterdir()) == ["config.yaml", "host-device", "token"]
    assert not names[-1].exists()
    status, result = run_module(host_files, capsys, **wanted)
    assert (status, result["changed"], result["paths"]) == (0, False, [])


def test_check_mode_reports_the_same_paths_and_changes_nothing(
    capsys: Capture, tmp_path: Path, wanted: dict[str, Any]
) -> None:
    status, result = run_module(host_files, capsys, check=True, **wanted)
    assert (status, result["changed"], len(result["paths"])) == (0, True, 5)
    assert not (tmp_path / "etc").exists()
    assert (tmp_path / "old").exists()


def test_a_kept_file_keeps_its_content_but_not_a_mode_that_others_can_read(
    capsys: Capture, wanted: dict[str, Any]
) -> None:
    run_module(host_files, capsys, **wanted)
    token = wanted["files"][1]
    token["content"] = "second"
    Path(token["path"]).chmod(0o644)
    assert run_module(host_files, capsys, **wanted)[1]["paths"] == [token["path"]]
    assert (Path(token["path"]).read_text(), mode(Path(token["path"]))) == ("first", "0600")
    token["keep"] = False
    assert run_module(host_files, capsys, **wanted)[1]["paths"] == [token["path"]]
    assert Path(token["path"]).read_text() == "second"


@pytest.mark.parametrize("entry", [0, 2])
def test_another_content_another_mode_and_a_link_are_replaced(
    capsys: Capture, tmp_path: Path, wanted: dict[str, Any], entry: int
) -> None:
    run_module(host_files, capsys, **wanted)
    path = Path(wanted["files"][entry]["path"])
    right = path.read_bytes()
    path.write_text("changed by hand\n")
    assert run_module(host_files, capsys, **wanted)[1]["paths"] == [str(path)]
    path.chmod(0o777)
    assert run_module(host_files, capsys, **wanted)[1]["paths"] == [str(path)]
    (tmp_path / "elsewhere").write_bytes(right)
    (tmp_path / "elsewhere").chmod(int(wanted["files"][entry]["mode"], 8))
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    assert run_module(host_files, capsys, **wanted)[1]["paths"] == [str(path)]
    assert (path.is_symlink(), path.read_bytes()) == (False, right)


def test_the_diff_shows_the_text_before_and_after(capsys: Capture, wanted: dict[str, Any]) -> None:
    run_module(host_files, capsys, **wanted)
    path = Path(wanted["files"][0]["path"])
    path.write_text("port: 2\n")
    path.chmod(0o644)
    shown = run_module(host_files, capsys, **wanted)[1]["diff"][0]
    assert shown == {
        "before": "# mode 0644, wanted 0600\nport: 2\n",
        "after": "port: 1\n",
        "before_header": str(path),
        "after_header": str(path),
    }


def test_the_content_of_a_secret_file_is_never_shown(capsys: Capture, tmp_path: Path) -> None:
    entry = {"path": str(tmp_path / "token"), "content": "s3cr3t-token"}
    for before in ("", "0ld-t0ken"):
        if before:
            Path(entry["path"]).write_text(before)
        status, result = run_module(host_files, capsys, secret_files=[entry])
        assert (status, result["paths"]) == (0, [entry["path"]])
        assert not any(secret in str(result) for secret in ("s3cr3t-token", "0ld-t0ken"))
        assert (Path(entry["path"]).read_text(), mode(Path(entry["path"]))) == ("s3cr3t-token", "0600")
    entry |= {"content": "another", "keep": True}
    assert run_module(host_files, capsys, secret_files=[entry])[1]["changed"] is False


@pytest.mark.parametrize("bad", ["u=rw", "", "0o644"])
def test_a_mode_that_is_not_octal_is_refused_before_anything_changes(
    capsys: Capture, tmp_path: Path, wanted: dict[str, Any], bad: str
) -> None:
    wanted["files"][2]["mode"] = bad
    status, result = run_module(host_files, capsys, **wanted)
    assert (status, "give octal digits in quotes" in result["msg"]) == (1, True)
    assert not (tmp_path / "etc").exists()


def test_a_path_that_cannot_be_written_is_named_with_what_to_do(
    capsys: Capture, tmp_path: Path, wanted: dict[str, Any]
) -> None:
    (tmp_path / "etc").write_text("a file where a directory has to be")
    status, result = run_module(host_files, capsys, **wanted)
    assert status == 1
    assert str(tmp_path / "etc") in result["msg"]
    assert "run again after the repair" in result["msg"]
