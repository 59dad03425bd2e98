# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test transfers between nodes on the loopback interface: one download, sources that end, damage, orphans."""

from __future__ import annotations

import http.client
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._models import share, store
from model_transfers import COMMIT, FILES, REPO, SECRET, Hub, Node, address, free_port, put

TOTAL = sum(map(len, FILES.values()))
BIG = "a.safetensors"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "PAUSE", 0.1)
    monkeypatch.setattr(share, "POLL", 0.1)
    monkeypatch.setattr(share, "HUB_TRIES", 2)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Return a function that starts a node; end all nodes."""
    port, nodes = free_port(), list[Node]()

    def one(number: int, peers: list[int], **more: Any) -> Node:
        nodes.append(Node(tmp_path, number, peers, port, **more))
        return nodes[-1].start()

    yield one
    for node in nodes:
        if node.thread.is_alive():
            node.end()


def wait(condition: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def done(*nodes: Node) -> Callable[[], bool]:
    return lambda: all(node.share.status()["done"] for node in nodes)


def test_one_node_downloads_and_three_copy(make: Callable[..., Node], hub: Hub) -> None:
    numbers = [1, 2, 3, 4]
    others = {number: [n for n in numbers if n != number] for number in numbers}
    nodes = [make(1, others[1], hub=hub.url, downloads=list(FILES)), *(make(n, others[n]) for n in (2, 3, 4))]
    wait(done(*nodes))
    assert hub.sent == TOTAL
    assert sorted(hub.asked) == sorted(FILES)
    assert all(node.is_whole() for node in nodes)
    assert [node.share.status()["hub_bytes"] for node in nodes] == [TOTAL, 0, 0, 0]
    assert [node.share.status()["peer_bytes"] for node in nodes] == [0, TOTAL, TOTAL, TOTAL]
    assert sum(node.share.status()["sent_bytes"] for node in nodes) == 3 * TOTAL
    for node in nodes:
        marker = store.read_marker(node.directory)
        assert marker["complete"] and set(marker["files"]) == set(FILES)
        assert not list(node.directory.rglob("*" + store.PART))


@pytest.mark.parametrize("damaged", [False, True])
def test_a_model_that_somebody_copied_is_a_source_once_its_digests_are_compared(
    make: Callable[..., Node], hub: Hub, tmp_path: Path, damaged: bool
) -> None:
    for number in (1, 2):
        put(tmp_path / f"spark{number}/org--tiny", FILES)
        (tmp_path / f"spark{number}/org--tiny" / store.MARKER).unlink()
    if damaged:
        (tmp_path / "spark1/org--tiny" / BIG).write_bytes(b"?" * len(FILES[BIG]))
    numbers = [1, 2, 3]
    others = {number: [n for n in numbers if n != number] for number in numbers}
    nodes = [make(1, others[1], hub=hub.url, downloads=list(FILES)), *(make(n, others[n]) for n in (2, 3))]
    wait(done(*nodes))
    assert hub.sent == (len(FILES[BIG]) if damaged else 0)
    assert all(node.is_whole() and store.read_marker(node.directory)["complete"] for node in nodes)
    assert nodes[2].share.status()["peer_bytes"] == TOTAL
    assert not any(peer.bad for node in nodes for peer in node.share.peers)


def test_the_shards_of_a_former_revision_go_when_the_new_one_is_complete(
    make: Callable[..., Node], hub: Hub, tmp_path: Path
) -> None:
    directory = tmp_path / "spark1/org--tiny"
    put(directory, FILES)
    for name in ("old-00001-of-00001.safetensors", "mine.txt"):
        (directory / name).write_text(name)
    record = {**store.read_marker(directory)["files"], "old-00001-of-00001.safetensors": "0" * 64, BIG: "1" * 64}
    store.write_marker(directory, REPO, "former", record, complete=True)
    hub.deny = True
    stopped = make(1, [], hub=hub.url, downloads=[BIG])
    wait(lambda: stopped.share.status()["error"])
    assert (directory / "old-00001-of-00001.safetensors").exists()
    stopped.end()
    hub.deny = False
    node = make(1, [], hub=hub.url, downloads=[BIG])
    wait(done(node))
    assert sorted(path.name for path in directory.iterdir() if path.is_file() and not path.name.startswith(".")) == [
        BIG, "config.json", "mine.txt",
    ]  # fmt: skip
    assert set(store.read_marker(directory)["files"]) == set(FILES)


def test_a_node_without_a_common_network_gets_the_files_from_its_neighbour(make: Callable[..., Node], hub: Hub) -> None:
    chain = [make(1, [2], hub=hub.url, downloads=list(FILES)), make(2, [1, 3]), make(3, [2])]
    wait(done(*chain))
    assert hub.sent == TOTAL and chain[2].is_whole()


def test_a_source_that_ends_is_replaced_and_the_file_goes_on(make: Callable[..., Node], tmp_path: Path) -> None:
    for number in (1, 2):
        put(tmp_path / f"spark{number}/org--tiny", FILES)
    first, _second = make(1, [2, 3]), make(2, [1, 3])
    (tmp_path / "spark3/org--tiny").mkdir(parents=True)
    (tmp_path / "spark3/org--tiny" / (BIG + store.PART)).write_bytes(FILES[BIG][:1_000_000])
    first.end()
    third = make(3, [1, 2])
    wait(done(third))
    assert third.is_whole()
    assert third.share.status()["peer_bytes"] == TOTAL - 1_000_000
    assert list(third.share.status()["silent"]) == ["spark1"]


def test_the_only_source_is_asked_again_after_it_failed(
    make: Callable[..., Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = share.Hub.fetch, list[str]()

    def fetch(path: share.Hub, **words: Any) -> bool:
        asked.append(words["repo"])
        if len(asked) == 1:
            raise ConnectionResetError("reset")
        return real(path, **words)

    monkeypatch.setattr(share.Hub, "fetch", fetch)
    put(tmp_path / "spark1/org--tiny", FILES)
    make(1, [2])
    second = make(2, [1])
    wait(done(second))
    assert second.is_whole()


def test_the_memory_that_caches_the_files_is_given_back_at_the_end(
    make: Callable[..., Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _descriptor, *how: given.append(how))
    put(tmp_path / "spark1/org--tiny", FILES)
    make(1, []).end()
    assert given == [(0, 0, os.POSIX_FADV_DONTNEED)] * len(FILES)


def test_a_damaged_copy_is_refused_and_another_source_is_used(make: Callable[..., Node], tmp_path: Path) -> None:
    for number in (1, 2):
        put(tmp_path / f"spark{number}/org--tiny", FILES)
    (tmp_path / "spark1/org--tiny" / BIG).write_bytes(b"?" * len(FILES[BIG]))
    make(1, [2, 3])
    third = make(3, [1, 2])
    wait(lambda: list(third.share.peers[0].bad) == [list(FILES).index(BIG)])
    make(2, [1, 3])
    wait(done(third))
    assert third.is_whole()


def test_a_node_whose_only_source_is_damaged_says_so(
    make: Callable[..., Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "spark1/org--tiny", FILES)
    (tmp_path / "spark1/org--tiny" / BIG).write_bytes(b"?" * len(FILES[BIG]))
    make(1, [2])
    second = make(2, [1])
    wait(lambda: second.share.lacking() == set(second.share.peers[0].bad))
    monkeypatch.setattr(share, "STALLED", 0.5)
    wait(lambda: second.share.status()["error"])
    said = second.share.status()["error"]
    assert "1 files are missing" in said and f"damaged: {REPO}/{BIG} on spark1 (" in said
    assert not (second.directory / BIG).exists()


def test_a_refused_download_ends_the_wait_of_the_other_nodes(
    make: Callable[..., Node], hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share, "STALLED_AFTER_FAILURE", 0.5)
    hub.refuse = 401
    nodes = [make(1, [2], hub=hub.url, downloads=list(FILES)), make(2, [1])]
    wait(lambda: all(node.share.status()["error"] for node in nodes))
    assert "token is missing" in nodes[0].share.status()["error"]
    assert "spark1 failed: " in nodes[1].share.status()["error"]


def test_a_download_that_is_cut_goes_on_and_gives_up_without_progress(make: Callable[..., Node], hub: Hub) -> None:
    hub.cut = 1_500_000
    whole = make(1, [], hub=hub.url, downloads=list(FILES))
    wait(done(whole))
    assert whole.is_whole()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        lost = make(2, [], hub=f"http://127.0.0.1:{closed.getsockname()[1]}", downloads=["config.json"])
        wait(lambda: lost.share.status()["error"])
    assert "config.json" in lost.share.status()["error"]


def test_a_busy_hub_is_asked_again_and_the_waiting_nodes_do_not_give_up(
    make: Callable[..., Node], hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share, "HUB_TRIES", 10**6)
    monkeypatch.setattr(share, "LONGEST_PAUSE", 0.05)
    hub.busy = 10**6
    nodes = [make(1, [2], hub=hub.url, downloads=list(FILES), streams=1), make(2, [1])]
    wait(lambda: nodes[0].share.status()["silent"])
    assert "HTTP 503, Service Unavailable" in nodes[0].share.status()["silent"]["the hub"]
    wait(lambda: nodes[1].share.peers[0].received)
    hub.busy = 0
    wait(done(*nodes))
    assert not any(node.share.status()["error"] or node.share.status()["silent"] for node in nodes)


@pytest.mark.parametrize("source", ["hub", "node"])
def test_a_damaged_part_of_an_earlier_run_is_fetched_again(
    make: Callable[..., Node], hub: Hub, tmp_path: Path, source: str
) -> None:
    (tmp_path / "spark2/org--tiny").mkdir(parents=True)
    (tmp_path / "spark2/org--tiny" / (BIG + store.PART)).write_bytes(bytes(1_000_000))
    put(tmp_path / "spark1/org--tiny", FILES)
    more = {"hub": hub.url, "downloads": list(FILES)} if source == "hub" else {}
    second = make(2, [] if source == "hub" else [1], **more)
    make(1, [2])
    wait(lambda: second.share.status()["done"] or second.share.status()["error"])
    assert second.share.status()["error"] == ""
    assert second.is_whole() and not any(peer.bad for peer in second.share.peers)


def test_without_a_controller_all_nodes_end_and_peers_do_not_keep_each_other_alive(make: Callable[..., Node]) -> None:
    nodes = [make(n, [m for m in (1, 2, 3) if m != n], orphan_seconds=1.5) for n in (1, 2, 3)]
    for node in nodes:
        node.thread.join(60)
        assert not node.thread.is_alive()


def test_a_node_that_nobody_asks_learns_from_its_peers_that_the_controller_is_there(make: Callable[..., Node]) -> None:
    nodes = [make(n, [3 - n], orphan_seconds=600) for n in (1, 2)]
    nodes[1].share._seen -= 500
    nodes[0].control.touch()
    wait(lambda: nodes[1].share.age() < 400)


def test_a_node_gives_up_when_nothing_has_moved_anywhere_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(share.time, "monotonic", lambda: clock[0])
    waits = Node(tmp_path, 2, [1, 3], free_port()).share
    for seconds, received, failed, gives_up in (
        (0, 0, "", False),
        (share.STALLED, 0, "", False),
        (0, 7, "", False),
        (share.STALLED, 7, "", False),
        (0, 8, "", False),
        (share.STALLED_AFTER_FAILURE, 8, "no token", False),
        (1, 8, "no token", True),
    ):
        clock[0] += seconds
        waits.peers[0].received, waits.peers[1].failed = received, failed
        waits._judge()
        assert bool(waits.status()["error"]) is gives_up
    assert "for 10 s (spark3 failed: no token)" in waits.status()["error"]


def test_only_its_own_address_listens_and_nothing_after_the_end(make: Callable[..., Node]) -> None:
    node = make(1, [2])
    port = node.share._options["port"]
    for where, opens in ((address(1), True), ("127.0.0.1", False), (address(3), False)):
        with socket.socket() as probe:
            assert (probe.connect_ex((where, port)) == 0) is opens
    node.end()
    with socket.socket() as probe:
        assert probe.connect_ex((address(1), port)) != 0


def test_a_port_in_use_closes_the_other_servers(tmp_path: Path) -> None:
    port = free_port()
    node = Node(tmp_path, 1, [2], port, addresses=[address(1), address(9)])
    with socket.socket() as other:
        other.bind((address(9), port))
        other.listen()
        with pytest.raises(OSError, match="in use"):
            node.share.listen()
    with socket.socket() as probe:
        assert probe.connect_ex((address(1), port)) != 0


def test_a_full_disk_ends_the_copy_with_its_reason(
    make: Callable[..., Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: Any, **_options: Any) -> None:
        raise OSError(28, "No space left on device")

    put(tmp_path / "spark1/org--tiny", FILES)
    monkeypatch.setattr(share.Hub, "fetch", full)
    second = Node(tmp_path, 2, [1], make(1, [2]).share._options["port"])
    second.start()
    wait(lambda: second.share.status()["error"])
    assert "No space left" in second.share.status()["error"]
    second.end()


# -- who may fetch what ------------------------------------------------------------------------------------------------

PATH = f"/{REPO}/resolve/{COMMIT}/"


def ask(node: Node, path: str, source: str = address(2), token: str = SECRET, **more: str) -> tuple[int, bytes]:
    """Ask a node as another one; return status and content."""
    port = node.share._options["port"]
    connection = http.client.HTTPConnection(address(1), port, timeout=5, source_address=(source, 0))
    try:
        method = more.pop("method", "GET")
        connection.request(method, path, headers={"Authorization": f"Bearer {token}", **more})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.fixture
def server(make: Callable[..., Node], tmp_path: Path) -> Node:
    """Return a node that has two of three files, and one that is not the model's."""
    directory = tmp_path / "spark1/org--tiny"
    put(directory, ["config.json", BIG])
    (directory / "secret.txt").write_text("of the owner")
    (directory / "sub").mkdir()
    (directory / "sub/b.safetensors").write_text("of the owner: not verified")
    return make(1, [2])


def test_a_file_is_sent_whole_or_from_an_offset(server: Node) -> None:
    data = FILES[BIG]
    assert ask(server, PATH + BIG) == (200, data)
    assert ask(server, PATH + BIG, Range="bytes=1000-") == (206, data[1000:])
    assert ask(server, PATH + BIG, Range=f"bytes={len(data) + 1}-")[0] == 416
    assert server.share.status()["sent_bytes"] == 2 * len(data) - 1000


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/etc/passwd",
        "/../../etc/passwd",
        f"/{BIG}",
        f"/{REPO}/resolve/main/{BIG}",
        *(
            PATH + name
            for name in ("", "secret.txt", "../secret.txt", "%2e%2e/secret.txt", f"sub/../{BIG}", f"{BIG}?x")
        ),
        *(PATH + name for name in (store.MARKER, "sub/b.safetensors")),
    ],
)
def test_nothing_else_is_sent(server: Node, path: str) -> None:
    status, content = ask(server, path)
    assert status == 404 and b"of the owner" not in content and b"root:" not in content


@pytest.mark.parametrize("token", ["", "another", SECRET + " x", SECRET[:-1], "\xff"])
def test_another_token_is_refused(server: Node, token: str) -> None:
    for path in ("/state", PATH + BIG):
        status, content = ask(server, path, token=token)
        assert status == 403 and SECRET.encode() not in content


@pytest.mark.parametrize("source", ["127.0.0.1", address(1), address(3)])
def test_another_address_gets_no_answer(server: Node, source: str) -> None:
    with pytest.raises((OSError, http.client.HTTPException)):
        ask(server, "/state", source=source)


def test_other_methods_are_refused(server: Node) -> None:
    assert {ask(server, "/state", method=method)[0] for method in ("POST", "PUT", "DELETE", "HEAD")} == {501}


def test_the_port_closes_when_the_last_node_is_done_and_the_progress_stays(
    make: Callable[..., Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share, "CLOSE_AFTER", 0.5)
    put(tmp_path / "spark1/org--tiny", FILES)
    first, second = make(1, [2]), make(2, [1])
    wait(lambda: not first.share._servers and not second.share._servers)
    with socket.socket() as probe:
        assert probe.connect_ex((address(1), first.share._options["port"])) != 0
    assert second.is_whole() and second.thread.is_alive() and second.control.read()["done"]


def test_paths_take_turns_and_one_that_failed_comes_last() -> None:
    def fail(_path: share.Hub) -> None:
        raise ConnectionError

    one, two = share.Hub("http://one"), share.Hub("http://two")
    source = share.Source("spark1", [one, two])
    turns = [source.use(lambda path: path) for _turn in range(4)]
    assert turns in ([one, two, one, two], [two, one, two, one])
    with pytest.raises(ConnectionError):
        source.use(fail)
    good = turns[1]
    assert {source.use(lambda path: path) for _turn in range(3)} == {good}
    with pytest.raises(ConnectionError):
        source.use(fail)
    assert source.use(lambda path: path) is turns[0], "this one failed longer ago"


def test_neither_a_proxy_nor_another_address_stands_between_two_nodes(
    make: Callable[..., Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    put(tmp_path / "spark1/org--tiny", FILES)
    make(1, [2])
    second = make(2, [1])
    wait(done(second))
    assert second.is_whole()
