# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a node of a transfer can neither write what was not announced on another one, nor keep it waiting."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._models import share, store
from model_transfers import FILES, REPO, SECRET, Answer, Node, address, endless, free_port, put

BIG = list(FILES).index("a.safetensors")
WHOLE = json.dumps({"held": [0, 1, 2], "received": 0, "failed": "", "age": 0}).encode()


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
    """A node at the first address. ``state`` and ``file`` answer; ``sent`` counts how often a file was asked for."""

    daemon_threads, block_on_close, allow_reuse_address = True, False, True

    def __init__(self, port: int, file: Answer, state: Answer) -> None:
        super().__init__((address(1), port), Lie)
        self.file, self.state, self.asked = file, state, 0
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()


class Lie(socketserver.BaseRequestHandler):
    server: Liar

    def handle(self) -> None:
        with suppress(OSError):
            request = self.request.recv(4096)
            if b" /state " in request:
                self.server.state(self.request)
            else:
                self.server.asked += 1
                self.server.file(self.request)
            self.request.shutdown(socket.SHUT_WR)


class Group:
    """A hostile node, a receiver, and on demand an honest node."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root, self.stack, self.port = root, stack, free_port()

    def lie(self, file: Answer, state: Answer | None = None) -> Liar:
        liar = self.stack.enter_context(Liar(self.port, file, state or send(200, WHOLE)))
        self.stack.callback(liar.shutdown)
        return liar

    def start(self, number: int, peers: list[int], **more: object) -> Node:
        node = Node(self.root, number, peers, self.port, **more).start()
        self.stack.callback(lambda: node.thread.is_alive() and node.end())
        return node

    def honest(self) -> Node:
        put(self.root / "spark2/org--tiny", FILES)
        return self.start(2, [3])


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Group]:
    monkeypatch.setattr(share, "PAUSE", 0.1)
    monkeypatch.setattr(share, "POLL", 0.1)
    monkeypatch.setattr(share, "TIMEOUT", 1.0)
    with ExitStack() as stack:
        yield Group(tmp_path, stack)


def wait(condition: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def written(root: Path) -> set[str]:
    """Return the files of the receiver."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() or path.is_symlink()}


LONGER = b"HTTP/1.0 200 x\r\nContent-Length: 999999999999\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n"
LIES: dict[str, Answer] = {
    "more bytes than announced": endless(LONGER, bytes(1 << 16)),
    "bytes without an end or a length": endless(b"HTTP/1.0 200 x\r\n\r\n", bytes(1 << 16)),
    "chunks without an end": endless(CHUNKED, b"10000\r\n" + bytes(1 << 16) + b"\r\n"),
    "other bytes": send(200, b"?" * len(FILES["a.safetensors"])),
    "fewer bytes": send(200, b"?"),
    "a part from nowhere": send(206, b"?" * 100, Content_Range="bytes 5-104/105"),
    "not found": send(404),
    "an error": send(500),
    "no answer": mute,
    "no protocol": lambda client: client.sendall(b"\x00\xff" * 1000),
    "headers without an end": endless(b"HTTP/1.0 200 x\r\n", b"X: y\r\n"),
    "one header, a byte at a time": endless(b"HTTP/1.0 200 x\r\nX: ", b"y", 0.05),
    "another answer to come, without an end": endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.001),
    "a redirect to a file": send(302, Location="file:///etc/passwd"),
    "a redirect to itself": send(302, Location="/state"),
    "too slow": endless(LONGER, b"x", 0.01),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_node_that_sends_anything_else_writes_nothing_and_another_one_is_used(
    group: Group, lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as impatient:
        if lie == "too slow":
            impatient.setattr(share, "SLOW_SECONDS", 0.3)
        liar = group.lie(LIES[lie])
        receiver = group.start(3, [1, 2])
        # On a busy machine the honest node would count as too slow, too.
        wait(lambda: len(receiver.share.peers[0].bad) == len(FILES) if lie == "too slow" else liar.asked)
    group.honest()
    wait(lambda: receiver.share.status()["done"])
    assert receiver.is_whole()
    assert receiver.share.status()["error"] == ""
    assert written(receiver.directory) == {*FILES, store.MARKER}
    receiver.end()
    assert written(group.root) - {"spark2/control/status.new"} == {
        *(f"spark{n}/org--tiny/{name}" for n in (2, 3) for name in (*FILES, store.MARKER)),
        *(f"spark{n}/control/{name}" for n in (2, 3) for name in ("lock", "status")),
    }


@pytest.mark.parametrize("lie", ["more bytes than announced", "other bytes", "too slow"])
def test_a_lying_node_alone_fails_the_transfer_with_its_name(
    group: Group, lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share, "SLOW_SECONDS", 0.3)
    liar = group.lie(LIES[lie])
    receiver = group.start(3, [1])
    wait(lambda: len(receiver.share.peers[0].bad) == len(FILES))
    monkeypatch.setattr(share, "STALLED", 0.5)
    wait(lambda: receiver.share.status()["error"])
    assert f"{REPO}/a.safetensors on spark1 (" in receiver.share.status()["error"]
    assert liar.asked == len(FILES), "each file is asked for once"
    assert written(receiver.directory) <= {f"{name}{store.PART}" for name in FILES}


def test_a_redirect_reaches_no_other_server(group: Group) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(0.5)
        to = f"http://127.0.0.1:{other.getsockname()[1]}/"
        liar = group.lie(send(302, Location=to), send(302, Location=to))
        receiver = group.start(3, [1])
        wait(lambda: receiver.share.status()["silent"])
        liar.state = send(200, WHOLE)
        wait(lambda: liar.asked >= len(FILES))
        with pytest.raises(TimeoutError):
            other.accept()


def told(**changes: object) -> Answer:
    return send(200, json.dumps({**json.loads(WHOLE), **changes}).encode())


STATES: dict[str, Answer] = {
    "nothing": send(200),
    "no JSON": send(200, b"<html>"),
    "a list": send(200, b"[]"),
    "deep": send(200, b"[" * 200_000),
    "deep objects": send(200, b'{"a":' * 200_000),
    "an endless answer": endless(LONGER, b"[" * 65536),
    "an endless list": endless(LONGER, b"1," * 32768),
    "other numbers": told(held=[-1, 3, 10**30, True, "0"]),
    "names": told(held=["../../etc/cron.d/evil", "/etc/passwd"]),
    "a great many": told(held=list(range(500_000))),
    "objects": told(held={"../x": 1}),
    "no number": told(age=float("nan")),
    "an age before time": told(age=-(10**30)),
    "an infinite age": told(age=float("inf")),
    "infinitely much": told(received=float("inf")),
    "a long number": send(200, b'{"held": [' + b"9" * 10_000 + b"]}"),
    "a long reason": told(held=[], failed="x" * 1_000_000),
    "an object as reason": told(held=[], failed={"a": ["b"] * 10_000}),
    "an error": send(500),
    "no answer": mute,
}


@pytest.mark.parametrize("lie", STATES)
def test_a_node_that_says_anything_else_neither_stops_nor_fills_another_one(group: Group, lie: str) -> None:
    group.lie(send(404), STATES[lie])
    group.honest()
    receiver = group.start(3, [1, 2])
    wait(lambda: receiver.share.status()["done"])
    liar = receiver.share.peers[0]
    wait(lambda: liar.silent or liar.failed or liar.offers or lie in ("names", "objects", "other numbers"))
    assert receiver.is_whole()
    assert receiver.share.status()["error"] == ""
    assert liar.offers <= {0, 1, 2}
    assert max(len(liar.silent), len(liar.failed)) <= share.LONGEST


def test_a_node_keeps_no_other_one_alive_for_longer_than_a_transfer_may_take(group: Group) -> None:
    group.lie(send(404), told(age=-(10**9), received=5, held=[]))
    receiver = group.start(3, [1], orphan_seconds=0.5, longest_seconds=1000)
    receiver.share._begun -= 500
    time.sleep(1.5)
    assert receiver.thread.is_alive(), "it believes that the controller is there"
    receiver.share._begun -= 500
    receiver.thread.join(60)
    assert not receiver.thread.is_alive()
    with socket.socket() as probe:
        assert probe.connect_ex((address(3), group.port)) != 0


def test_an_age_never_becomes_younger_on_its_way() -> None:
    class Control:
        def contact(self) -> int:
            return 0

    options = {"models": [], "hub": [], "peers": [], "url": "http://hub", "token": "", "place": 0}
    node = share.Share(options, Control())  # type: ignore[arg-type]
    asked = time.monotonic() + 100
    peer = share.Source("spark1", [])
    node.hear(peer, {"held": [], "received": 0, "failed": "", "age": 30.0}, asked)
    assert node._seen == asked - 30
    node.hear(peer, {"held": [], "received": 0, "failed": "", "age": 31.0}, asked)
    assert node._seen == asked - 30, "older news changes nothing"


def request(path: str) -> bytes:
    return f"GET {path} HTTP/1.0\r\nAuthorization: Bearer {SECRET}\r\n\r\n".encode()


def test_a_receiver_that_stalls_is_dropped_and_the_others_go_on(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < share._Handler.timeout <= 60
    monkeypatch.setattr(share._Handler, "timeout", 0.5)
    honest = group.honest()
    path = next(path for path, number in honest.share._numbers.items() if number == BIG)
    with ExitStack() as stack:
        stalled = []
        for content in [request(path)] * 20 + [b"GET / HTTP/1.0\r\nX: "] * 20:
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.bind((address(3), 0))
            client.connect((address(2), group.port))
            client.sendall(content)
            stalled.append(client)
        receiver = group.start(3, [2])
        wait(lambda: receiver.share.status()["done"])
        receiver.end()
        wait(lambda: not any("process_request" in thread.name for thread in threading.enumerate()))


def test_connections_have_a_limit(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = group.honest()
    usual = share.THREADS
    monkeypatch.setattr(share, "THREADS", threading.active_count() + 5)
    with ExitStack() as stack:
        for _turn in range(50):
            client = stack.enter_context(socket.socket())
            client.bind((address(3), 0))
            client.connect((address(2), group.port))
        time.sleep(0.5)
        assert threading.active_count() <= share.THREADS + 1
    # Not monkeypatch.undo(), which also takes back the short times of the fixture.
    monkeypatch.setattr(share, "THREADS", usual)
    receiver = group.start(3, [2])
    wait(lambda: receiver.share.status()["done"])
    assert honest.thread.is_alive()
