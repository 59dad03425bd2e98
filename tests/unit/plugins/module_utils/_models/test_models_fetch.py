# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test staging a model from a local hub: resumed, verified, complete or not at all, token sent only to the hub."""

from __future__ import annotations

import hashlib
import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._models import fetch, store

WEIGHTS = bytes(range(256)) * 5000
CONFIG = b'{"architectures": ["Tiny"]}'
CONTENT = {"config.json": CONFIG, "model.safetensors": WEIGHTS, "nested/extra.bin": b"extra"}


def listing(**changes: Any) -> bytes:
    siblings = [
        {"rfilename": name, "size": len(data), "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()}
        for name, data in CONTENT.items()
    ]
    siblings[1]["lfs"] = {"size": len(WEIGHTS), "sha256": hashlib.sha256(WEIGHTS).hexdigest()}
    return json.dumps({"sha": "c0ffee", "siblings": siblings} | changes).encode()


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Authorization"), self.headers.get("Range")))
        if self.server.refuse:
            self.send_error(self.server.refuse)
        elif self.path.startswith("/api/models/"):
            self.reply(200, listing())
        elif self.server.redirect:
            self.send_response(302)
            self.send_header("Location", self.server.redirect + self.path)
            self.end_headers()
        else:
            self.file(CONTENT[self.path.partition("/c0ffee/")[2]])

    def file(self, data: bytes) -> None:
        data = data[:-1] + b"?" if self.server.damage else data
        asked = self.headers.get("Range")
        if asked and self.server.ranges:
            self.reply(206, data[int(asked[6:-1]) :])
        else:
            self.reply(200, data)

    def reply(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str | None, str | None]] = []
        self.refuse, self.redirect, self.damage, self.ranges = 0, "", False, True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture
def files() -> list[store.File]:
    return store.parse_listing(listing())[1]


def fetch_all(server: Server, files: list[store.File], directory: Path, alive: bool = True) -> bool:
    hub = fetch.Hub(server.url, "hf_secret")
    return all(hub.fetch("org/tiny", "c0ffee", file, directory, lambda: alive) for file in files)


def test_all_files_arrive_whole(server: Server, files: list[store.File], tmp_path: Path) -> None:
    assert fetch_all(server, files, tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in CONTENT} == CONTENT
    assert not list(tmp_path.rglob("*" + store.PART))


@pytest.mark.parametrize("ranges", [True, False])
def test_an_interrupted_download_is_resumed(
    server: Server, files: list[store.File], tmp_path: Path, ranges: bool
) -> None:
    server.ranges = ranges
    (tmp_path / "model.safetensors.part").write_bytes(WEIGHTS[:70000])
    assert store.needed_bytes(tmp_path, files[1:2]) == len(WEIGHTS) - 70000
    assert fetch_all(server, files[1:2], tmp_path)
    assert server.asked[-1][2] == "bytes=70000-"
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS


def test_a_complete_download_that_was_not_renamed_is_not_repeated(
    server: Server, files: list[store.File], tmp_path: Path
) -> None:
    (tmp_path / "model.safetensors.part").write_bytes(WEIGHTS)
    assert fetch_all(server, files[1:2], tmp_path)
    assert server.asked == []


@pytest.mark.parametrize("place", [0, 1])
def test_a_damaged_file_never_gets_its_final_name(
    server: Server, files: list[store.File], tmp_path: Path, place: int
) -> None:
    server.damage = True
    with pytest.raises(fetch.FetchError, match="is damaged"):
        fetch_all(server, files[place : place + 1], tmp_path)
    assert list(tmp_path.rglob("*.*")) == []


def test_a_part_that_is_too_long_is_thrown_away(server: Server, files: list[store.File], tmp_path: Path) -> None:
    (tmp_path / "config.json.part").write_bytes(b"x" * 999)
    assert fetch_all(server, files[:1], tmp_path)
    assert (tmp_path / "config.json").read_bytes() == CONFIG


def test_time_runs_out_and_nothing_is_lost(server: Server, files: list[store.File], tmp_path: Path) -> None:
    assert not fetch_all(server, files[1:2], tmp_path, alive=False)
    assert (tmp_path / "model.safetensors.part").stat().st_size > 0
    assert fetch_all(server, files[1:2], tmp_path)


def test_the_clock_is_asked_once_per_mebibyte(tmp_path: Path) -> None:
    asked: list[int] = []
    part, answer = tmp_path / "a.part", io.BytesIO(bytes(fetch._BLOCK + 4))

    def alive() -> bool:
        asked.append(part.stat().st_size)
        return True

    answer.read1 = lambda size=-1: answer.read(min(size, 1 << 18))  # type: ignore[method-assign]
    assert fetch.save(answer, part, "wb", 1 << 30, alive, lambda _size: None)
    assert len(asked) == 1 and part.stat().st_size == fetch._BLOCK + 4


def test_the_token_is_sent_only_to_the_hub(server: Server, files: list[store.File], tmp_path: Path) -> None:
    with Server() as elsewhere:
        threading.Thread(target=elsewhere.serve_forever, args=(0.02,), daemon=True).start()
        server.redirect = elsewhere.url
        assert fetch_all(server, files[:1], tmp_path)
        assert [token for _unused, token, _unused in server.asked] == ["Bearer hf_secret"]
        assert [token for _unused, token, _unused in elsewhere.asked] == [None]
        elsewhere.shutdown()


@pytest.mark.parametrize(
    ("code", "hint"), [(401, "token"), (403, "licence"), (404, "does not exist"), (410, "refused")]
)
def test_a_refusal_has_its_reason_and_not_the_token(server: Server, code: int, hint: str) -> None:
    server.refuse = code
    with pytest.raises(fetch.FetchError, match=hint) as caught:
        fetch.Hub(server.url, "hf_secret").listing("org/tiny", "main")
    assert "hf_secret" not in str(caught.value)


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 504])
def test_a_busy_hub_may_be_asked_again(server: Server, code: int) -> None:
    server.refuse = code
    with pytest.raises(ConnectionError, match=f"HTTP {code}, "):
        fetch.Hub(server.url, "hf_secret").listing("org/tiny", "main")


def test_unwanted_files_are_left_out() -> None:
    assert [file.name for file in store.parse_listing(listing(), ["*.bin"])[1]] == ["config.json", "model.safetensors"]


def test_all_files_of_a_former_revision_are_deleted(tmp_path: Path, files: list[store.File]) -> None:
    former = dict.fromkeys(("model-1-of-2.safetensors", "model-2-of-2.safetensors", files[0].name), "0" * 40)
    for name in former:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    store.drop_former(tmp_path, files, former)
    assert list(former) == [files[0].name]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [Path(files[0].name).name]


def test_only_the_first_dashes_of_a_directory_separate_the_owner(tmp_path: Path) -> None:
    (tmp_path / "org--a--b").mkdir()
    assert [model.repo for model in store.read_models(tmp_path)] == ["org/a--b"]


def test_what_was_verified_is_remembered(tmp_path: Path, files: list[store.File]) -> None:
    assert store.read_marker(tmp_path) == {}
    assert store.missing(tmp_path, files, {}) == files
    (tmp_path / "config.json").write_bytes(CONFIG)
    store.write_marker(tmp_path, "org/tiny", "c0ffee", {"config.json": files[0].digest}, complete=False)
    recorded = store.read_marker(tmp_path)["files"]
    assert store.missing(tmp_path, files, recorded) == files[1:]
    assert store.partial_size(tmp_path, files[0]) == 0, "it is whole, so it is no part"
    (tmp_path / "config.json").write_bytes(b"")
    assert store.missing(tmp_path, files, recorded) == files
    outside = b'{"files": {"config.json": "0", "../config.json": "0"}}'
    for damaged in (b'{"files": ["config.json"]}', b"[]", b"\xff", b'{"files": null}', outside):
        (tmp_path / store.MARKER).write_bytes(damaged)
        assert store.read_marker(tmp_path) == {}


@pytest.mark.parametrize(
    ("size", "text"), [(7, "7 B"), (59_300_000_000, "59.3 GB"), (1500, "1.5 kB"), (2e12, "2.0 TB")]
)
def test_sizes_for_people(size: float, text: str) -> None:
    assert store.human(size) == text


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


@pytest.mark.parametrize("damaged", [False, True])
def test_a_copied_file_is_compared_and_downloaded_only_if_it_differs(
    server: Server, files: list[store.File], tmp_path: Path, damaged: bool
) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"?" * len(WEIGHTS) if damaged else WEIGHTS)
    assert store.needed_bytes(tmp_path, files[1:2]) == 0
    fetch_all(server, files[1:2], tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS
    assert len(server.asked) == damaged


def test_a_host_whose_openssl_refuses_sha1_for_security_compares_git_blobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        hashlib, "sha1", lambda _data, usedforsecurity=True: hashlib.sha256() if not usedforsecurity else None
    )
    (tmp_path / "a").write_bytes(b"")
    assert store.digest(tmp_path / "a", "git") == hashlib.sha256().hexdigest()


def test_a_partial_file_that_gets_its_final_name_meanwhile_has_no_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the file had been there a moment ago.
    monkeypatch.setattr(Path, "is_file", lambda _path: True)
    assert store.partial_size(tmp_path, store.File("gone.bin", 4, "0" * 64, "sha256")) == 0
