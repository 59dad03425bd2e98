# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test who may fetch what from the server of a transfer."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._models import share_server, share_state
from model_transfers import FILES, SECRET, address, model, put

NUMBER = list(FILES).index("a.safetensors")
DATA = FILES["a.safetensors"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[share_server.Server]:
    directory = tmp_path / "org--tiny"
    put(directory, ["config.json", "a.safetensors"])
    (directory / "secret.txt").write_text("of the owner")
    state = share_state.State(share_state.items_of([model(directory)]), [])
    made = share_server.Server((address(1), 0), [address(2)], SECRET, state, lambda contacts: {"heard": contacts})
    made.start()
    yield made
    made.end()


def ask(
    server: share_server.Server, path: str, source: str = address(2), token: str = SECRET, **headers: str
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address(1), server.server_port, timeout=5, source_address=(source, 0))
    try:
        connection.request("GET", path, headers={share_server.TOKEN: token, **headers})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_file_is_sent_whole_or_from_an_offset(server: share_server.Server) -> None:
    assert ask(server, f"/file/{NUMBER}") == (200, DATA)
    assert ask(server, f"/file/{NUMBER}", Range="bytes=1000-") == (206, DATA[1000:])
    assert ask(server, f"/file/{NUMBER}", Range=f"bytes={len(DATA) + 1}-")[0] == 416
    assert server.state.sent == 2 * len(DATA) - 1000 and server.state.active == 0


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/file/",
        "/file/9",
        "/file/2",
        "/file/../secret.txt",
        "/secret.txt",
        "/file/0/../../secret.txt",
        "/file/1?x",
    ],
)
def test_nothing_else_is_sent(server: share_server.Server, path: str) -> None:
    status, content = ask(server, path)
    assert status == 404 and b"of the owner" not in content


@pytest.mark.parametrize("token", ["", "another", SECRET + " x", SECRET[:-1]])
def test_another_token_is_refused(server: share_server.Server, token: str) -> None:
    for path in ("/state", f"/file/{NUMBER}"):
        status, content = ask(server, path, token=token)
        assert status == 403 and SECRET.encode() not in content


@pytest.mark.parametrize("source", ["127.0.0.1", address(1), address(3)])
def test_another_address_gets_no_answer(server: share_server.Server, source: str) -> None:
    with pytest.raises(OSError):
        ask(server, "/state", source=source)


@pytest.mark.parametrize(
    ("said", "heard"), [('{"spark2": 7}', {"spark2": 7}), ("x", {}), ("[1]", {}), ('{"spark2": []}', {}), ("", {})]
)
def test_the_contacts_of_the_asking_node_are_passed_on(
    server: share_server.Server, said: str, heard: dict[str, int]
) -> None:
    assert json.loads(ask(server, "/state", **{share_server.CONTACTS: said})[1])["heard"] == heard


def test_other_methods_are_refused(server: share_server.Server) -> None:
    def request(method: str) -> Any:
        connection = http.client.HTTPConnection(
            address(1), server.server_port, timeout=5, source_address=(address(2), 0)
        )
        connection.request(method, "/state", headers={share_server.TOKEN: SECRET})
        return connection.getresponse().status

    assert {request(method) for method in ("POST", "PUT", "DELETE")} == {501}
