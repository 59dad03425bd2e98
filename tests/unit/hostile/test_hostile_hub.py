# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a hub, or who answers in its place, neither holds a run for ever nor leads it to other files.

The fields of a listing come from the code that reads it, so a new one is tried, too.
"""

import ast
import copy
import inspect
import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._models import fetch, store
from model_transfers import Answer, endless

LISTING: dict[str, Any] = {
    "sha": "c0ffee",
    "siblings": [
        {"rfilename": "config.json", "size": 2, "blobId": "a" * 40},
        {"rfilename": "a.safetensors", "lfs": {"size": 3, "sha256": "b" * 64}},
    ],
}
ODD: list[Any] = [
    None,
    True,
    -1,
    1.5,
    10**30,
    float("nan"),
    float("inf"),
    "",
    "../../etc/cron.d/evil",
    "/etc/x",
    "a\nb",
]
ODD += ["a/../b", "..", "x" * 10_000, "\x1b[2J", "a\\b", ".gb10-staged.json", "x.part", "9" * 5000, [], {}, [[]], [{}]]
Place = tuple[str | int, ...]


def places(value: Any, above: Place = ()) -> Iterator[Place]:
    found = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in found:
        yield (*above, key)
        yield from places(part, (*above, key))


def test_each_field_of_a_listing_that_is_read_is_tried() -> None:
    read = {
        node.slice.value
        for function in (store.parse_listing, store._file)
        for node in ast.walk(ast.parse(inspect.getsource(function)))
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
    }
    assert read == {place[-1] for place in places(LISTING) if isinstance(place[-1], str)} - {"lfs"}


@pytest.mark.parametrize("place", list(places(LISTING)), ids=lambda place: ".".join(map(str, place)))
def test_a_listing_with_an_odd_value_is_refused_or_names_files_of_the_model_only(place: Place) -> None:
    assert len(store.parse_listing(json.dumps(LISTING))[1]) == 2
    for odd in ODD:
        listing = copy.deepcopy(LISTING)
        part: Any = listing
        for key in place[:-1]:
            part = part[key]
        part[place[-1]] = odd
        try:
            commit, files = store.parse_listing(json.dumps(listing))
        except store.ListingError as error:
            assert len(str(error)) < 500
            continue
        assert fetch.path_of("a/b", commit, files[0]).isascii()
        for file in files:
            assert Path("/models/x", file.name).resolve().is_relative_to("/models/x")
            assert 0 <= file.size < 2**50


FORMS = ["[" * 200_000, '{"a":' * 200_000, "9" * 5000, "\x00", "[]", '"a"', '{"sha": "a"}', "<html>", "{}"]


@pytest.mark.parametrize("text", [*FORMS, '{"sha": "1", "siblings": []}'])
def test_an_answer_that_is_no_listing_is_refused(text: str) -> None:
    with pytest.raises(store.ListingError):
        store.parse_listing(text)


# ---- The time of an answer.


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Answer], fetch.Hub]]:
    monkeypatch.setattr(fetch, "READ_SECONDS", 0.5)
    servers: list[socketserver.ThreadingTCPServer] = []

    def start(answer: Answer) -> fetch.Hub:
        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                try:
                    self.request.recv(4096)
                    answer(self.request)
                except OSError:
                    pass  # the client has gone

        server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        servers.append(server)
        return fetch.Hub(f"http://127.0.0.1:{server.server_address[1]}", timeout=0.5)

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


LENGTH = b"HTTP/1.0 200 x\r\nContent-Length: 9999999\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.01),
        endless(b"HTTP/1.0 200 x\r\nX: ", b"y", 0.05),
        endless(LENGTH, b"1", 0.05),
        endless(b"HTTP/1.0 200 x\r\n\r\n", b"[", 0.05),
        endless(b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n[\r\n", 0.05),
    ],
    ids=["another answer to come", "a header", "a body", "a body without a length", "chunks"],
)
def test_an_answer_in_drops_ends(answer: Answer, hub: Callable[[Answer], fetch.Hub]) -> None:
    with pytest.raises((fetch.FetchError, OSError)):
        hub(answer).listing("a/b", "main")


# ---- Files of a model that were downloaded: their names and headers are the hub's, too.


@pytest.mark.parametrize(
    "index",
    [
        '{"weight_map": {"a": "../../../etc/shadow"}}', '{"weight_map": {"a": "/etc/shadow"}}', "[" * 200_000,
        '{"weight_map": {"a": 5}}', '{"weight_map": {"a": "x\\u0000"}}',
    ],
)  # fmt: skip
def test_an_index_leads_to_no_other_file(index: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text(index)
    (found,) = store.faults(tmp_path)
    assert found.startswith("the index of its weights can't be read")


def test_an_index_or_a_number_of_shards_without_an_end_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model-00001-of-999999999999.safetensors").write_bytes(b"")
    assert store.faults(tmp_path) == ["model-00001-of-999999999999.safetensors is empty"]
    monkeypatch.setattr(store, "_INDEX_LIMIT", 10)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    assert "more than 10 bytes" in store.faults(tmp_path)[0]


@pytest.mark.parametrize("header", [b"[" * 50_000, b'{"a": {"data_offsets": [0, Infinity]}}', b"\xff", b'{"a": 5}'])
def test_a_header_of_another_form_is_a_fault(header: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert store.faults(tmp_path) == ["a.safetensors does not begin with a safetensors header"]
