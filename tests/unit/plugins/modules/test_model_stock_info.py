# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what a node tells about its models, its disk and its addresses."""

import shutil
from functools import partial
from http.client import HTTPResponse, IncompleteRead
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._models import store
from ansible_collections.gb10.cluster.plugins.modules import model_files, model_stock_info
from model_transfers import REPO, Hub, put
from module_runs import Step, play

PORTS = [
    {"netdev": "a", "address": "127.0.7.1", "prefix": 24},
    {"netdev": "in-a-pod", "address": "192.0.2.1", "prefix": 24},
    {"name": "pf-without-address", "address": None, "prefix": None},
    {"name": "pf-without-address"},
]


class Host:
    """A node, and a hub with one model."""

    def __init__(self, hub: Hub, place: Path, patch: pytest.MonkeyPatch) -> None:
        self.hub, self.place, self.patch, self.root = hub, place, patch, place / "models"
        self.root.mkdir()
        hub.refuse = 0
        self.hides = r"127\.0\.0\.1:\d+"
        patch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(total=4 * 10**12, free=10**12))
        self.wanted = REPO

    @property
    def options(self) -> dict[str, Any]:
        models = [{"repo": self.wanted, "revision": "main"}]
        return {"path": str(self.root), "models": models, "url": self.hub.url}

    def shows(self) -> dict[str, Any]:
        return {"here": sorted(str(path.relative_to(self.place)) for path in self.place.rglob("*") if path.is_dir())}


def put_two(host: Host) -> None:
    put(host.root / "org--tiny", ["config.json", "a.safetensors"])


def break_files(host: Host) -> None:
    (host.root / "org--tiny/a.safetensors").write_bytes(b"short")
    (host.root / "org--tiny/sub").mkdir()
    (host.root / "org--tiny/sub/b.safetensors.part").write_bytes(b"two")


def forget(host: Host) -> None:
    (host.root / "org--tiny/copied.bin").write_bytes(b"by hand")
    model_files.forget(store.read_models(host.root), [f"{REPO}/a.safetensors"], check_mode=False)


def lose_config(host: Host) -> None:
    put_two(host)
    (host.root / "org--tiny/config.json").unlink()


def end_early(host: Host) -> None:
    def ended(*_words: Any) -> None:
        raise IncompleteRead(b"{")

    host.patch.setattr(HTTPResponse, "read1", ended)


def refuse_disk(host: Host) -> None:
    exists = Path.exists

    def refuse(path: Path, **options: bool) -> bool:
        if path == host.root:
            raise PermissionError(13, "Permission denied", str(path))
        return exists(path, **options)

    host.patch.setattr(Path, "exists", refuse)


NAMES = ("", ".", "..", "../..", "google/gemma 4", "https://huggingface.co/org/tiny", "a/b/c")
CASES: dict[str, list[Step]] = {
    "verified and partial files": [put_two, break_files, {}, forget, {}, lose_config, {}],
    "a new node": [lambda host: {"path": str(host.place / "not/yet"), "reserve_gb": 2}],
    "the hub refuses": [lambda host: setattr(host.hub, "refuse", 401), {"token": "hf_secret"}],
    "the hub ends in the middle": [end_early, {}],
    "no names of a model": [{"wanted": name} for name in NAMES],
    "addresses of this host": [{"ports": PORTS}],
    "a disk that can't be read": [refuse_disk, {}],
}


def test_each_stock(capsys: pytest.CaptureFixture[str], tmp_path: Path, hub: Hub) -> None:
    play("model_stock_info", model_stock_info, CASES, partial(Host, hub), capsys, tmp_path)
