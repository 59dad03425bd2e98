# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that all files of a role are written, kept and removed in one run."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.modules import host_files
from ansible_collections.gb10.cluster.plugins.modules.host_files import Found
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


def test_a_directory_gets_its_owner_and_only_its_owner_differs(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, given = os.geteuid(), []
    monkeypatch.setattr(os, "chown", lambda path, user, group: given.append((path, user, group)))
    wanted = [{"path": str(tmp_path / "logs"), "mode": "0750", "owner": own}]
    assert run_module(host_files, capsys, directories=wanted)[1]["changed"]
    assert run_module(host_files, capsys, directories=wanted)[1]["changed"] is (own != os.getegid())
    wanted[0]["owner"] = own + 1
    changed = run_module(host_files, capsys, directories=wanted)[1]
    assert [changed["diff"][0][side] for side in ("before", "after")] == [
        f"directory, mode 0750, owner {own}:{os.getegid()}\n",
        f"directory, mode 0750, owner {own + 1}:{own + 1}\n",
    ]
    assert {each[1:] for each in given} == {(own, own), (own + 1, own + 1)}


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


TEXT: dict[str, Any] = {"mode": "0600", "content": "port: 1\n", "keep": False}
COPY: dict[str, Any] = {"mode": "0755", "source": "/plugin", "keep": False}
FILE = Found(0o600, same=True, is_file=True, text="port: 1\n")


@pytest.mark.parametrize(
    ("kind", "wanted", "found", "action", "before", "after"),
    [
        ("directories", {"mode": "0750"}, Found(), "mkdir", "", "directory, mode 0750\n"),
        ("directories", {"mode": "0750"}, Found(0o755, same=True), "mkdir", "directory, mode 0755\n", None),
        ("directories", {"mode": "0750"}, Found(0o750, same=True, is_link=True), "", None, None),
        ("files", TEXT, Found(), "write", "", "port: 1\n"),
        ("files", TEXT, FILE, "", None, None),
        ("files", TEXT, replace(FILE, mode=0o644), "write", "# mode 0644, wanted 0600\nport: 1\n", "port: 1\n"),
        ("files", TEXT, replace(FILE, same=False, text="port: 2\n"), "write", "port: 2\n", "port: 1\n"),
        ("files", {**TEXT, "keep": True}, replace(FILE, same=False), "", None, None),
        ("files", {**TEXT, "keep": True}, replace(FILE, mode=0o644), "chmod", "mode 0644\n", "mode 0600\n"),
        ("files", {**TEXT, "keep": True}, Found(), "write", "", "port: 1\n"),
        ("files", COPY, Found(0o755, same=True, is_file=True), "", None, None),
        ("files", COPY, Found(0o644, same=True, is_file=True), "copy", "file, mode 0644\n", None),
        ("files", COPY, Found(), "copy", "", "copy of /plugin, mode 0755\n"),
        ("absent", {}, Found(), "", None, None),
        ("absent", {}, Found(is_link=True), "unlink", "present\n", ""),
        ("absent", {}, FILE, "unlink", "present\n", ""),
    ],
)
def test_the_step_of_a_path_with_its_diff(
    kind: str, wanted: dict[str, Any], found: Found, action: str, before: str | None, after: str | None
) -> None:
    todo = host_files.steps(kind, {"path": "/etc/x", **wanted}, found)
    assert (todo.action if todo else "") == action
    assert todo is None or (todo.before == before and after in (None, todo.after))


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
