# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test who may fetch what from a node, when its port closes, and the process that serves."""

import http.client
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._models import share, store
from model_transfers import COMMIT, FILES, REPO, SECRET, Node, address, free_port

BIG = "a.safetensors"
PATH = f"/{REPO}/resolve/{COMMIT}/"
OWN = [address(1), address(4)]


def ask(
    node: Node, path: str, source: str = address(2), token: str = SECRET, to: str = address(1), **more: str
) -> tuple[int, bytes]:
    """Ask a node as another one; return status and content."""
    connection = http.client.HTTPConnection(to, node.port, timeout=5, source_address=(source, 0))
    try:
        method = more.pop("method", "GET")
        connection.request(method, path, headers={"Authorization": f"Bearer {token}", **more})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def opens(where: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((where, port)) == 0


# -- the process, before other threads run -----------------------------------------------------------------------------


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "pid"
    share.stop(tmp_path / "pid")


def launch(tmp_path: Path, process: Path) -> tuple[Node, int]:
    node = Node(tmp_path, 1, [2], free_port(), FILES)
    node.serving.bind(OWN, node.port)
    share.start(process, node.serving, 60, 60)
    return node, int(process.read_text())


def test_the_process_is_no_child_serves_and_ends_when_it_is_asked_to(tmp_path: Path, process: Path) -> None:
    process.write_text(f"{os.getpid()} of a process that was killed")
    node, pid = launch(tmp_path, process)
    assert [ask(node, PATH + BIG, to=where) for where in OWN] == [(200, FILES[BIG])] * 2
    assert os.getpgid(pid) not in (os.getpgid(0), 0)
    assert {Path(f"/proc/{pid}/fd/{number}").readlink() for number in (0, 1, 2)} == {Path(os.devnull)}
    assert all(SECRET not in Path(f"/proc/{pid}/{name}").read_text(errors="replace") for name in ("cmdline", "environ"))
    with pytest.raises(OSError, match=f"process {pid} serves models"):
        share.start(process, node.serving, 600, 600)
    assert share.stop(process)
    assert not process.exists() and not opens(address(1), node.port)
    assert not share.stop(process)


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_process_that_does_not_end_is_killed_and_one_that_was_killed_is_none(
    tmp_path: Path, process: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share, "PATIENCE", 0.5)
    node, pid = launch(tmp_path, process)
    os.kill(pid, number)
    share.stop(process)
    assert not process.exists() and not opens(address(1), node.port)


def test_what_a_killed_process_left_is_removed_without_a_signal(process: Path) -> None:
    process.write_text(str(os.getpid()))
    assert not share.stop(process)
    assert not process.exists()


# -- what is served ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Return a node that has two of three files, and one that is not the model's."""
    node = Node(tmp_path_factory.mktemp("served"), 1, [2], free_port(), ["config.json", BIG])
    (node.directory / "secret.txt").write_text("of the owner")
    (node.directory / "sub").mkdir()
    (node.directory / "sub/b.safetensors").write_text("of the owner: not verified")
    yield node.start()
    node.end()


def test_a_file_is_sent_whole_or_from_an_offset(server: Node) -> None:
    data = FILES[BIG]
    assert ask(server, PATH + BIG) == (200, data)
    assert ask(server, PATH + BIG, Range="bytes=1000-") == (206, data[1000:])
    assert ask(server, PATH + BIG, Range=f"bytes={len(data) + 1}-")[0] == 416


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/etc/passwd",
        "/../../etc/passwd",
        f"/{BIG}",
        f"/{REPO}/resolve/main/{BIG}",
        *(PATH + n for n in ("", "secret.txt", "../secret.txt", "%2e%2e/secret.txt", f"sub/../{BIG}", f"{BIG}?x")),
        *(PATH + name for name in (store.MARKER, "sub/b.safetensors")),
    ],
)
def test_nothing_else_is_sent(server: Node, path: str) -> None:
    status, content = ask(server, path)
    assert status == 404 and b"of the owner" not in content and b"root:" not in content


@pytest.mark.parametrize("token", ["", "another", SECRET + " x", SECRET[:-1], "\xff"])
def test_another_token_is_refused(server: Node, token: str) -> None:
    before = server.serving.touched
    status, content = ask(server, PATH + BIG, token=token)
    assert status == 403 and SECRET.encode() not in content
    assert server.serving.touched == before


@pytest.mark.parametrize("source", ["127.0.0.1", address(1), address(3)])
def test_another_address_gets_no_answer(server: Node, source: str) -> None:
    with pytest.raises((OSError, http.client.HTTPException)):
        ask(server, PATH + BIG, source=source)


def test_other_methods_are_refused(server: Node) -> None:
    assert {ask(server, PATH + BIG, method=method)[0] for method in ("POST", "PUT", "DELETE", "HEAD")} == {501}


def test_only_its_own_address_listens_and_nothing_after_the_end(tmp_path: Path) -> None:
    node = Node(tmp_path, 1, [2], free_port()).start()
    where = (address(1), "127.0.0.1", address(3))
    assert [opens(each, node.port) for each in where] == [True, False, False]
    node.end()
    assert not opens(address(1), node.port)


def test_a_port_in_use_closes_the_other_servers(tmp_path: Path) -> None:
    node = Node(tmp_path, 1, [2], free_port())
    with socket.socket() as other:
        other.bind((address(9), node.port))
        other.listen()
        with pytest.raises(OSError, match="in use"):
            node.serving.bind([*OWN, address(9)], node.port)
    assert not any(opens(where, node.port) for where in OWN)


@pytest.mark.parametrize(("orphan", "longest"), [(0.01, 600), (600, 0.01)])
def test_the_port_closes_when_nobody_asks_any_more_and_after_the_time_of_a_transfer(
    tmp_path: Path, orphan: float, longest: float
) -> None:
    node = Node(tmp_path, 1, [2], free_port())
    node.serving.bind(OWN, node.port)
    node.serving.run(orphan, longest)
    assert not any(opens(where, node.port) for where in OWN)


def test_a_file_that_was_cut_meanwhile_ends_the_answer(server: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = (server.directory / "config.json").read_bytes()
    monkeypatch.setattr(share.Item, "is_here", lambda _item: True)
    (server.directory / "config.json").write_bytes(whole[:1])
    with pytest.raises(http.client.IncompleteRead):
        ask(server, PATH + "config.json")
    (server.directory / "config.json").write_bytes(whole)


# -- clients that stall ------------------------------------------------------------------------------------------------


def test_a_receiver_that_stalls_is_dropped_and_the_others_go_on(server: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < share._Handler.timeout <= 60
    monkeypatch.setattr(share._Handler, "timeout", 0.1)
    ask_whole = f"GET {PATH}{BIG} HTTP/1.0\r\nAuthorization: Bearer {SECRET}\r\n\r\n".encode()
    stalled = []
    for content in [ask_whole] * 10 + [b"GET / HTTP/1.0\r\nX: "] * 10:
        client = socket.socket()
        stalled.append(client)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.bind((address(2), 0))
        client.connect((address(1), server.port))
        client.sendall(content)
    assert ask(server, PATH + BIG) == (200, FILES[BIG])
    for thread in [each for each in threading.enumerate() if "process_request" in each.name]:
        thread.join(60)
        assert not thread.is_alive()
    for client in stalled:
        client.close()


def test_connections_have_a_limit(server: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "THREADS", threading.active_count())
    with pytest.raises((OSError, http.client.HTTPException)):
        ask(server, PATH + BIG)
