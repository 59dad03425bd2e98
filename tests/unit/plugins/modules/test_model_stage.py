# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test staging: the free space is checked first, check mode downloads nothing, and nothing is downloaded twice."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._models import fetch, store
from ansible_collections.gb10.cluster.plugins.modules import model_stage
from module_runs import run_module

DATA = b"weights" * 1000
FILES = {"config.json": b"{}", "model.safetensors": DATA}


class Hub:
    """A hub without a network; ``asked`` are the files that were downloaded."""

    asked: list[str]

    def __init__(self, url: str, token: str) -> None:
        self.url, self.token = url, token

    def listing(self, repo: str, revision: str) -> bytes:
        siblings = [
            {"rfilename": name, "size": len(d), "blobId": hashlib.sha1(b"blob %d\0" % len(d) + d).hexdigest()}
            for name, d in FILES.items()
        ]
        return json.dumps({"sha": "c0ffee", "siblings": siblings}).encode()

    def fetch(self, repo: str, commit: str, file: Any, directory: Path, alive: Any) -> bool:
        if not alive():
            return False
        self.asked.append(file.name)
        (directory / file.name).write_bytes(FILES[file.name])
        return True


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hub, "asked", [], raising=False)
    monkeypatch.setattr(fetch, "Hub", Hub)


def options(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    return {
        "repo": "org/tiny",
        "revision": "main",
        "dest": str(tmp_path / "deep" / "org--tiny"),
        "url": "https://hub.example",
        "token": "",
        "skip": [],
        "reserve_gb": 0,
        "slice_seconds": 30,
    } | changes


def test_a_model_is_staged_once(tmp_path: Path) -> None:
    first = model_stage.stage_from_hub(options(tmp_path), check_mode=False)
    assert (first["changed"], first["done"], first["missing_bytes"]) == (True, True, 0)
    assert Hub.asked == list(FILES)
    second = model_stage.stage_from_hub(options(tmp_path), check_mode=False)
    assert (second["changed"], second["done"]) == (False, True)
    assert Hub.asked == list(FILES)


def test_check_mode_downloads_nothing(tmp_path: Path) -> None:
    result = model_stage.stage_from_hub(options(tmp_path), check_mode=True)
    assert (result["changed"], result["done"]) == (True, False)
    assert "would be downloaded" in result["msg"]
    assert not (tmp_path / "deep").exists()


def test_a_full_disk_is_found_before_the_first_byte(tmp_path: Path) -> None:
    with pytest.raises(fetch.FetchError, match="Make room there"):
        model_stage.stage_from_hub(options(tmp_path, reserve_gb=1e9), check_mode=False)
    assert Hub.asked == []


def test_a_slice_that_ends_shows_its_progress(tmp_path: Path) -> None:
    result = model_stage.stage_from_hub(options(tmp_path, slice_seconds=0), check_mode=False)
    assert (result["changed"], result["done"]) == (True, False)
    assert result["msg"].startswith("org/tiny: 0 % (0 B of 7.0 kB)")
    assert result["msg"].endswith("in " + options(tmp_path)["dest"] + ".")
    assert model_stage.stage_from_hub(options(tmp_path), check_mode=False)["done"]


@pytest.mark.parametrize(
    ("total", "left", "fetched", "said"),
    [
        (234e9, 117e9, 0, "50 % (117.0 GB of 234.0 GB)"),
        (234e9, 117e9, 3e9, "50 % (117.0 GB of 234.0 GB), 100.0 MB/s, 19 min 30 s left"),
        (234e9, 117e9, 3e8, "50 % (117.0 GB of 234.0 GB), 10.0 MB/s, 3 h 15 min left"),
        (234e9, 0, 3e8, "100 % (234.0 GB of 234.0 GB)"),
    ],
)
def test_progress_has_bytes_rate_and_remaining_time(total: float, left: float, fetched: float, said: str) -> None:
    assert store.progress(int(total), int(left), int(fetched), 30) == said


def test_files_of_a_former_revision_are_deleted(tmp_path: Path) -> None:
    model_stage.stage_from_hub(options(tmp_path), check_mode=False)
    directory = Path(options(tmp_path)["dest"])
    marker = store.read_marker(directory)
    (directory / "model-00001-of-00002.safetensors").write_bytes(DATA)
    recorded = {**marker["files"], "model-00001-of-00002.safetensors": "0" * 64}
    store.write_marker(directory, "org/tiny", "former", recorded, complete=True)
    assert model_stage.stage_from_hub(options(tmp_path), check_mode=False)["done"]
    assert store.read_marker(directory) == marker
    assert sorted(path.name for path in directory.iterdir()) == [store.MARKER, "config.json", "model.safetensors"]


def test_a_record_that_names_a_file_outside_deletes_nothing(tmp_path: Path) -> None:
    model_stage.stage_from_hub(options(tmp_path), check_mode=False)
    directory, other = Path(options(tmp_path)["dest"]), tmp_path / "other"
    other.write_text("kept")
    recorded = {**store.read_marker(directory)["files"], os.path.relpath(other, directory): "0" * 64}
    store.write_marker(directory, "org/tiny", "former", recorded, complete=True)
    assert store.read_marker(directory) == {}
    assert model_stage.stage_from_hub(options(tmp_path), check_mode=False)["done"]
    assert other.read_text() == "kept"


def test_a_file_that_vanished_comes_back(tmp_path: Path) -> None:
    model_stage.stage_from_hub(options(tmp_path), check_mode=False)
    (Path(options(tmp_path)["dest"]) / "config.json").unlink()
    assert model_stage.stage_from_hub(options(tmp_path), check_mode=False)["done"]
    assert Hub.asked == [*FILES, "config.json"]


def test_a_copied_model_is_checked_and_left_alone(tmp_path: Path) -> None:
    copied = tmp_path / "deep" / "org--tiny"
    copied.mkdir(parents=True)
    (copied / "config.json").write_text("{}")
    with pytest.raises(fetch.FetchError, match=r"not a complete model: there are no weights\. Copy it there again"):
        model_stage.check_local(options(tmp_path))
    (copied / "pytorch_model.bin").write_bytes(b"x" * 10)
    result = model_stage.check_local(options(tmp_path))
    assert (result["changed"], result["done"], result["total_bytes"], result["commit"]) == (False, True, 12, "")
    assert Hub.asked == []


def test_a_few_missing_shards_stand_for_many(tmp_path: Path) -> None:
    copied = tmp_path / "deep" / "org--tiny"
    copied.mkdir(parents=True)
    (copied / "config.json").write_text("{}")
    index = {"weight_map": {str(n): f"model-{n:05}.bin" for n in range(9)}}
    (copied / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(fetch.FetchError, match=r"model-00004\.bin is missing and 4 more"):
        model_stage.check_local(options(tmp_path))


def test_main_returns_its_progress(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, result = run_module(model_stage, capsys, repo="org/tiny", dest=str(tmp_path / "tiny"), reserve_gb=0)
    assert (status, result["done"], result["commit"]) == (0, True, "c0ffee")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(13, "Permission denied", "/srv/models"), "Permission denied"),
        (fetch.FetchError("HTTP 401, the token is missing or wrong"), "token is missing"),
    ],
)
def test_main_says_why_it_cannot_stage(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    said: str,
) -> None:
    def fail(*_arguments: Any) -> bytes:
        raise error

    monkeypatch.setattr(Hub, "listing", fail)
    status, result = run_module(model_stage, capsys, repo="org/tiny", dest=str(tmp_path / "tiny"))
    assert (status, result["done"], result["changed"]) == (1, False, False)
    assert said in result["msg"]


def test_main_has_a_remedy_if_it_may_not_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_arguments: Any, **_options: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    status, result = run_module(model_stage, capsys, repo="org/tiny", dest=str(tmp_path / "tiny"), reserve_gb=0)
    assert status == 1
    assert "Set ansible_become: true" in result["msg"]
