# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what is listed, which damage is found, and that a model in use is not removed."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._models import store
from ansible_collections.gb10.cluster.plugins.modules import model_files, model_files_info
from module_runs import run_module

FILES = {"config.json": b"{}", "model-00001-of-00002.safetensors": b"one" * 99, "sub/two.bin": b"two" * 999}


def download(root: Path, repo: str = "org/tiny", complete: bool = True) -> Path:
    """Write a model and the record that a download leaves: SHA-256 of large files, git's SHA-1 of the others."""
    directory = root / repo.replace("/", "--")
    recorded = {}
    for name, content in FILES.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        recorded[name] = git if name == "config.json" else hashlib.sha256(content).hexdigest()
    store.write_marker(directory, repo, "c0ffee" * 7, recorded, complete)
    return directory


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory in the form of /proc, with a process that ended while it was read."""
    proc = tmp_path / "proc"
    (proc / "7").mkdir(parents=True)
    monkeypatch.setattr(model_files, "PROC", proc)
    return proc


def run(
    capsys: pytest.CaptureFixture[str], root: Path, check: bool = False, **options: Any
) -> tuple[int, dict[str, Any]]:
    module = model_files if "state" in options else model_files_info
    return run_module(module, capsys, check=check, path=str(root), **options)


def test_models_are_listed_with_size_commit_and_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "models"
    download(root)
    download(root, "org/half", complete=False)
    (download(root, "org/lost") / "sub/two.bin").unlink()
    (root / "org--copied").mkdir()
    (root / "org--copied/config.json").write_text("{}")
    (root / ".jit-cache/some-key").mkdir(parents=True)
    status, result = run(capsys, root)
    assert (status, result["changed"]) == (0, False)
    assert {model["repo"]: model["fault"] for model in result["models"]} == {
        "org/copied": "there are no weights",
        "org/half": "the download is not finished",
        "org/lost": "missing: sub/two.bin",
        "org/tiny": "",
    }
    lines = result["msg"].splitlines()
    assert lines[0].startswith("models: 4, ") and f" free in {root}" in lines[0]
    assert lines[4].startswith("org/tiny: 3.") and lines[4].endswith("commit c0ffeec0ffee, complete")


def test_healthy_files_match_their_digests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    download(tmp_path / "models")
    status, result = run(capsys, tmp_path / "models", digests=True)
    assert (status, result["changed"], result["done"]) == (0, False, True)
    assert result["msg"] == "3 files of 1 models match their digests."


def test_a_damaged_file_is_named_and_fetched_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = download(tmp_path / "models")
    (directory / "sub/two.bin").write_bytes(b"wot" * 999)
    record = store.read_marker(directory)
    status, result = run(capsys, tmp_path / "models", digests=True)
    assert (status, result["changed"], result["intact"]) == (0, False, False)
    assert result["damaged"] == ["org/tiny/sub/two.bin"] and store.read_marker(directory) == record
    assert result["msg"].startswith(
        "damaged: org/tiny/sub/two.bin. For each model that came from a hub, run playbooks/models.yml"
    )
    told = [
        run(capsys, tmp_path / "models", check=check, state="damaged", files=result["damaged"])[1]["changed"]
        for check in (True, False, False)
    ]
    assert told == [True, True, False]
    wanted = store.File("sub/two.bin", 999 * 3, hashlib.sha256(FILES["sub/two.bin"]).hexdigest(), "sha256")
    assert store.missing(directory, [wanted], store.read_marker(directory)["files"]) == [wanted]
    assert run(capsys, tmp_path / "models", digests=True)[1]["damaged"] == ["org/tiny/sub/two.bin"]


def test_a_slice_goes_on_where_the_one_before_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (download(tmp_path / "models") / "config.json").write_text("broken")
    monkeypatch.setattr(model_files_info, "SLICE_SECONDS", -1)
    progress: dict[str, Any] = {}
    told = []
    for _slice in range(4):
        status, result = run(capsys, tmp_path / "models", digests=True, progress=progress)
        told.append((status, result["done"], len(result["damaged"]), result["intact"]))
        progress = result["progress"]
        if result["done"]:
            break
    assert told == [(0, False, 1, False), (0, False, 1, False), (0, True, 1, False)]
    assert result["msg"].startswith("damaged: org/tiny/config.json. ")


def test_a_copied_model_with_missing_weights_is_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "models/org--copied").mkdir(parents=True)
    (tmp_path / "models/org--copied/config.json").write_text("{}")
    status, result = run(capsys, tmp_path / "models", digests=True)
    assert (status, result["intact"]) == (0, False)
    assert "org/copied: there are no weights" in result["msg"]


def test_a_model_in_use_is_not_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str], programs: Path) -> None:
    directory = download(tmp_path / "models")
    download(tmp_path / "models", "org/tiny-two")
    (programs / "8").mkdir()
    argv = ["python3", "-m", "sglang.launch_server", "--model-path", "/srv/models/org--tiny"]
    (programs / "8/cmdline").write_text("\0".join(argv))
    options = {"state": "absent", "repo": "org/tiny"}
    status, result = run(capsys, tmp_path / "models", **options)
    assert status == 1 and directory.exists()
    assert "in use by python3 -m sglang.launch_server" in result["msg"] and "serve_stop" in result["msg"]
    status, result = run(capsys, tmp_path / "models", **options | {"repo": "org/tiny-two"})
    assert (status, result["changed"]) == (0, True), "a longer name is another model"


def test_a_model_is_removed_once_and_check_mode_keeps_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = download(tmp_path / "models")
    options = {"state": "absent", "repo": "org/tiny"}
    status, result = run(capsys, tmp_path / "models", check=True, **options)
    assert (status, result["changed"]) == (0, True) and directory.exists() and "would be removed" in result["msg"]
    status, result = run(capsys, tmp_path / "models", **options)
    assert (status, result["changed"]) == (0, True) and not directory.exists()
    status, result = run(capsys, tmp_path / "models", **options)
    assert (status, result["changed"]) == (0, False)


def test_what_a_stopped_removal_or_a_first_download_left_is_listed_and_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "models"
    half = download(root)
    for name in (store.MARKER, "config.json"):
        (half / name).unlink()
    (root / "org--begun").mkdir()
    (root / "org--begun/model.safetensors.part").write_bytes(b"x" * 1000)
    _status, listed = run(capsys, root)
    assert {one["repo"]: one["bytes"] for one in listed["models"]} == {
        "org/begun": 1000,
        "org/tiny": sum(len(content) for name, content in FILES.items() if name != "config.json"),
    }
    assert all("config.json is missing" in one["fault"] for one in listed["models"])
    for repo in ("org/begun", "org/tiny"):
        assert run(capsys, root, state="absent", repo=repo)[1]["changed"] is True
    assert list(root.iterdir()) == []


def test_a_wrong_name_is_removed_nowhere_and_the_right_ones_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "models"
    download(root)
    for name in ("org/tyni", "../models", "org--tiny", "."):
        status, result = run(capsys, root, state="absent", repo=name)
        assert (status, result["changed"]) == (0, False)
        assert result["msg"] == f"{name} is not in {root}. There: org/tiny."


def test_a_link_is_removed_and_not_what_it_points_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "models").mkdir()
    elsewhere = download(tmp_path / "elsewhere")
    (tmp_path / "models/org--tiny").symlink_to(elsewhere)
    status, _result = run(capsys, tmp_path / "models", state="absent", repo="org/tiny")
    assert status == 0 and not (tmp_path / "models/org--tiny").exists()
    assert (elsewhere / "config.json").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"state": "absent"}, "Name the model to remove"),
        ({"repo": "org/tny"}, "org/tny is not in"),
        ({"path": "/nonexistent/models"}, "does not exist. Set gb10_models_dir"),
    ],
)
def test_wrong_input_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any], said: str
) -> None:
    download(tmp_path / "models")
    root = Path(options.pop("path", tmp_path / "models"))
    status, result = run(capsys, root, **options)
    assert status == 1 and said in result["msg"]
