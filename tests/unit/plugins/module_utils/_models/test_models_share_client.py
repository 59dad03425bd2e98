# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the paths to a peer: all in turn, a failed one last, the source address as planned; and peers that misbehave."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._models import share_client, share_state
from model_transfers import FILES, SECRET, address, model

NUMBER = list(FILES).index("a.safetensors")
FIRST, SECOND = (address(1), address(3)), (address(2), address(3))


class Peer(HTTPServer):
    """Answers each request with ``status`` and ``content``; ``asked`` are paths and source addresses."""

    def __init__(self) -> None:
        super().__init__((address(1), 0), Answer)
        self.status, self.content, self.asked = 200, b"{}", list[tuple[str, str]]()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()


class Answer(BaseHTTPRequestHandler):
    server: Peer

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        self.server.asked.append((self.path, str(self.client_address[0])))
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.content)))
        self.end_headers()
        self.wfile.write(self.server.content)


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer() as running:
        yield running
        running.shutdown()


def client(peer: Peer, *paths: tuple[str, str]) -> share_client.Client:
    return share_client.Client([share_client.Peer("spark1", paths or (FIRST,))], peer.server_port, SECRET)


def test_paths_take_turns_and_a_failed_one_is_tried_last(peer: Peer) -> None:
    asking = client(peer, FIRST, SECOND)
    assert [asking._paths("spark1")[0] for _turn in range(4)] == [FIRST, SECOND, FIRST, SECOND]
    assert [asking.state("spark1", {}) for _turn in range(2)] == [{}, {}]
    assert [asking._paths("spark1")[0] for _turn in range(2)] == [FIRST, FIRST], "nothing listens on the second one"
    assert peer.asked == [("/state", address(3))] * 2


def test_a_peer_without_a_working_path_is_an_error_with_its_addresses(peer: Peer) -> None:
    with pytest.raises(OSError, match=f"{address(2)} from {address(3)}"):
        client(peer, SECOND).state("spark1", {})


@pytest.mark.parametrize(("status", "content"), [(403, b"{}"), (404, b"{}"), (200, b"<html>")])
def test_another_answer_is_an_error(peer: Peer, status: int, content: bytes) -> None:
    peer.status, peer.content = status, content
    with pytest.raises(OSError, match="spark1"):
        client(peer).state("spark1", {})


@pytest.mark.parametrize(("there", "status"), [(b"", 200), (b"{", 200)])
def test_a_peer_that_ends_early_or_ignores_the_offset_keeps_the_part(
    peer: Peer, tmp_path: Path, there: bytes, status: int
) -> None:
    item = share_state.items_of([model(tmp_path)])[NUMBER]
    part = tmp_path / "a.safetensors.part"
    part.write_bytes(there)
    peer.status, peer.content = status, b"{}"
    with pytest.raises(OSError):
        client(peer).fetch("spark1", NUMBER, item, lambda: True, lambda _count: None)
    assert part.read_bytes() == (there or b"{}")


def test_an_end_of_the_run_keeps_the_part(peer: Peer, tmp_path: Path) -> None:
    item = share_state.items_of([model(tmp_path)])[NUMBER]
    peer.content = FILES["a.safetensors"]
    counted: list[int] = []
    assert not client(peer).fetch("spark1", NUMBER, item, lambda: False, counted.append)
    assert (tmp_path / "a.safetensors.part").stat().st_size == sum(counted) > 0
