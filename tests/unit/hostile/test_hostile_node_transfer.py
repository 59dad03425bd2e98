# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a node of a transfer can neither write what was not announced on another one, nor keep it waiting.

A node gives another one nothing but answers to requests for files, so each kind of answer is tried.
"""

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._models import share, store
from model_transfers import FILES, REPO, Answer, Node, address, endless, free_port

BIG = "a.safetensors"


def send(status: int, content: bytes = b"", **headers: str | int) -> Answer:
    def answer(client: socket.socket) -> None:
        named = {"Content-Length": len(content), **{name.replace("_", "-"): value for name, value in headers.items()}}
        lines = [f"HTTP/1.0 {status} x", *(f"{name}: {value}" for name, value in named.items()), "", ""]
        client.sendall("\r\n".join(lines).encode() + content)

    return answer


def mute(client: socket.socket) -> None:
    """Answer nothing until the other side closes the connection."""
    client.recv(1)


class Liar(socketserver.ThreadingTCPServer):
    """A node at the first address; ``asked`` counts how often a file was asked for."""

    daemon_threads, block_on_close, allow_reuse_address = True, False, True

    def __init__(self, port: int, answer: Answer) -> None:
        super().__init__((address(1), port), Lie)
        self.answer, self.asked = answer, 0
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()


class Lie(socketserver.BaseRequestHandler):
    server: Liar

    def handle(self) -> None:
        with suppress(OSError):
            self.request.recv(4096)
            self.server.asked += 1
            self.server.answer(self.request)
            self.request.shutdown(socket.SHUT_WR)


class Group:
    """A hostile node, a receiver, and on demand an honest node."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root, self.stack, self.port = root, stack, free_port()

    def lie(self, answer: Answer) -> Liar:
        liar = self.stack.enter_context(Liar(self.port, answer))
        self.stack.callback(liar.shutdown)
        return liar

    def receiver(self, *peers: int) -> Node:
        return Node(self.root, 3, peers, self.port)

    def honest(self) -> None:
        node = Node(self.root, 2, [3], self.port, FILES).start()
        self.stack.callback(node.end)


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Group]:
    monkeypatch.setattr(share, "PAUSE", 0.01)
    monkeypatch.setattr(share, "TIMEOUT", 0.2)
    monkeypatch.setattr(share, "SLOW_SECONDS", 0.1)
    # An honest node would have to stop for seconds in a file to count as too slow.
    monkeypatch.setattr(share, "SLOWEST", 1000)
    monkeypatch.setattr(share.random, "random", float)
    with ExitStack() as stack:
        yield Group(tmp_path, stack)


def written(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() or path.is_symlink()}


LONGER = b"HTTP/1.0 200 x\r\nContent-Length: 999999999999\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n"
LIES: dict[str, Answer] = {
    "more bytes than announced": endless(LONGER, bytes(1 << 16)),
    "bytes without an end or a length": endless(b"HTTP/1.0 200 x\r\n\r\n", bytes(1 << 16)),
    "chunks without an end": endless(CHUNKED, b"10000\r\n" + bytes(1 << 16) + b"\r\n"),
    "other bytes": send(200, b"?" * len(FILES[BIG])),
    "fewer bytes": send(200, b"?"),
    "a part from nowhere": send(206, b"?" * 100, Content_Range="bytes 5-104/105"),
    "not found": send(404),
    "an error": send(500),
    "another token": send(403),
    "no answer": mute,
    "no protocol": lambda client: client.sendall(b"\x00\xff" * 1000),
    "headers without an end": endless(b"HTTP/1.0 200 x\r\n", b"X: y\r\n"),
    "one header, a byte at a time": endless(b"HTTP/1.0 200 x\r\nX: ", b"y", 0.05),
    "another answer to come, without an end": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.001),
    "a redirect to a file": send(302, Location="file:///etc/passwd"),
    "a redirect to itself": send(302, Location="/state"),
    "too slow": endless(LONGER, b"x", 0.02),
    "a long reason": endless(b"HTTP/1.0 403 " + b"x" * 60_000 + b"\r\n\r\n", b"x"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_node_that_sends_anything_else_writes_nothing_and_another_one_is_used(group: Group, lie: str) -> None:
    liar = group.lie(LIES[lie])
    group.honest()
    receiver = group.receiver(1, 2)
    copied = receiver.get()
    assert liar.asked and receiver.is_whole() and not copied.error
    assert written(receiver.directory) == {*FILES, store.MARKER}
    assert written(group.root) == {f"spark{n}/org--tiny/{name}" for n in (2, 3) for name in (*FILES, store.MARKER)}
    assert max(map(len, copied.progress.bad["spark1"].values()), default=0) <= share.LONGEST


@pytest.mark.parametrize("lie", ["more bytes than announced", "other bytes", "too slow", "a redirect to itself"])
def test_a_lying_node_alone_fails_the_transfer_with_its_name(
    group: Group, lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On busy cores a node may send no byte for a moment, and then it would be asked once more.
    monkeypatch.setattr(share, "TIMEOUT", 60)
    liar = group.lie(LIES[lie])
    receiver = group.receiver(1)
    copied = receiver.get()
    assert copied.why[f"{REPO}/{BIG}"].startswith("on spark1 (")
    assert liar.asked == len(FILES), "each file is asked for once"
    assert written(receiver.directory) <= {f"{name}{store.PART}" for name in FILES}


@pytest.mark.parametrize("lie", ["no answer", "an error", "no protocol"])
def test_a_node_that_is_not_heard_is_given_up(group: Group, lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "PATIENCE_NODES", 0.05)
    group.lie(LIES[lie])
    copied = group.receiver(1).get()
    assert copied.missing() and "spark1 does not answer (" in "".join(copied.why.values())


def test_a_redirect_reaches_no_other_server(group: Group) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.setblocking(False)
        group.lie(send(302, Location=f"http://127.0.0.1:{other.getsockname()[1]}/"))
        assert len(group.receiver(1).get().missing()) == len(FILES)
        with pytest.raises(BlockingIOError):
            other.accept()
