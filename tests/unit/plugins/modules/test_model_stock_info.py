# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what a node tells about its models, its disk and its addresses."""

from http.client import HTTPResponse, IncompleteRead
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._models import store
from ansible_collections.gb10.cluster.plugins.modules import model_files, model_stock_info
from model_transfers import COMMIT, FILES, REPO, Hub, files, put
from module_runs import run_module

PORTS = [
    {"netdev": "a", "address": "127.0.7.1", "prefix": 24},
    {"netdev": "in-a-pod", "address": "192.0.2.1", "prefix": 24},
    {"name": "pf-without-address", "address": None, "prefix": None},
    {"name": "pf-without-address"},
]


def read(capsys: pytest.CaptureFixture[str], root: Path, url: str, **more: Any) -> dict[str, Any]:
    wanted = [{"repo": REPO, "revision": "main"}]
    status, result = run_module(model_stock_info, capsys, path=str(root), models=wanted, url=url, **more)
    assert (status, result["changed"]) == (0, False)
    return dict(result["stock"])


def test_verified_and_partial_files_are_told(tmp_path: Path, hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "org--tiny"
    put(directory, ["config.json", "a.safetensors"])
    (directory / "a.safetensors").write_bytes(b"short")
    (directory / "sub").mkdir()
    (directory / "sub/b.safetensors.part").write_bytes(b"two")
    (model,) = read(capsys, tmp_path, hub.url)["models"].values()
    assert {name: held["size"] for name, held in model["held"].items()} == {"config.json": 2, "a.safetensors": 5}
    assert model["parts"] == {"sub/b.safetensors": 3}
    assert (model["commit"], model["complete"], model["error"]) == (COMMIT, False, "")
    assert model["listing"] == {"commit": COMMIT, "files": [vars(file) for file in files()]}
    (directory / "copied.bin").write_bytes(b"by hand")
    model_files.forget(store.read_models(tmp_path), [f"{REPO}/a.safetensors"], check_mode=False)
    (model,) = read(capsys, tmp_path, hub.url)["models"].values()
    assert model["held"].pop("copied.bin") == {"digest": "", "size": 7}
    assert "a.safetensors" not in model["held"] and len(model["held"]["config.json"]["digest"]) == 40
    put(directory, ["config.json", "a.safetensors"])
    (directory / "config.json").unlink()
    (model,) = read(capsys, tmp_path, hub.url)["models"].values()
    assert {"a.safetensors"} == {name for name, held in model["held"].items() if held["digest"]}


def test_a_new_node_has_nothing_and_its_directory_is_not_created(
    tmp_path: Path, hub: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    stock = read(capsys, tmp_path / "not" / "yet", hub.url, reserve_gb=2)
    (model,) = stock["models"].values()
    assert (model["held"], model["parts"], model["complete"]) == ({}, {}, False)
    assert len(model["listing"]["files"]) == len(FILES)
    assert stock["disk"]["reserve_bytes"] == 2 * 10**9 and stock["disk"]["free_bytes"] > 0
    assert not (tmp_path / "not").exists()


def test_the_reason_is_told_if_the_hub_refuses(tmp_path: Path, hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.refuse = 401
    (model,) = read(capsys, tmp_path, hub.url, token="hf_secret")["models"].values()
    assert model["listing"] is None and "the token is missing or wrong" in model["error"]
    assert "hf_secret" not in model["error"]


@pytest.mark.parametrize("name", ["", ".", "..", "../..", "google/gemma 4", "https://huggingface.co/org/tiny", "a/b/c"])
def test_a_name_that_is_no_model_is_told_before_a_directory_is_read_and_the_hub_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hub: Hub, name: str
) -> None:
    wanted = [{"repo": name, "revision": "main"}]
    (tmp_path / "beside").write_text("of another directory")
    (root := tmp_path / "models").mkdir()
    status, result = run_module(model_stock_info, capsys, path=str(root), models=wanted, url=hub.url)
    assert status == 0
    (model,) = result["stock"]["models"].values()
    assert (model["held"], model["listing"]) == ({}, None)
    assert "is not the name of a model, such as google/gemma-4-31B-it" in model["error"]


def test_a_hub_that_ends_in_the_middle_of_its_answer_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_words: Any) -> None:
        raise IncompleteRead(b"{")

    monkeypatch.setattr(HTTPResponse, "read1", ended)
    (model,) = read(capsys, tmp_path, hub.url)["models"].values()
    assert model["listing"] is None and "IncompleteRead" in model["error"]


def test_only_addresses_of_this_host_are_told(tmp_path: Path, hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert read(capsys, tmp_path, hub.url, ports=PORTS)["addresses"] == ["127.0.7.1/24"]


def test_an_unreadable_disk_has_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refuse)
    status, result = run_module(model_stock_info, capsys, path=str(tmp_path), models=[])
    assert status == 1 and "Set ansible_become: true" in result["msg"]
