# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test downloads and copies between nodes on the loopback interface: sources that end, damage, slices, full disks."""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._models import share, store
from model_transfers import FILES, REPO, Hub, Node, free_port, model

TOTAL = sum(map(len, FILES.values()))
BIG = "a.safetensors"
Make = Callable[..., Node]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for nothing, and ask the sources in their order."""
    monkeypatch.setattr(share, "PAUSE", 0.01)
    monkeypatch.setattr(share, "LONGEST_PAUSE", 0.01)
    monkeypatch.setattr(share.random, "random", float)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Return a function that makes a node, which serves if it has files; end all nodes."""
    port, nodes = free_port(), list[Node]()

    def one(number: int, peers: list[int], has: Any = (), serves: bool = True) -> Node:
        nodes.append(Node(tmp_path, number, peers, port, has))
        return nodes[-1].start() if serves else nodes[-1]

    yield one
    for node in nodes:
        if node.thread.is_alive():
            node.end()


def test_one_node_downloads_and_the_others_copy(make: Make, hub: Hub) -> None:
    nodes = [make(n, [m for m in (1, 2, 3) if m != n]) for n in (1, 2, 3)]
    assert nodes[0].get(hub.url, streams=3).progress.hub_bytes == TOTAL
    assert sorted(hub.asked) == sorted(FILES)
    for node in nodes[1:]:
        copied = node.get(streams=3)
        assert copied.progress.peer_bytes == TOTAL
        assert copied.changed
        assert node.is_whole()
        marker = store.read_marker(node.directory)
        assert marker["complete"] and set(marker["files"]) == set(FILES)
        assert not list(node.directory.rglob("*" + store.PART))
        assert not node.get().changed
    assert hub.sent == TOTAL


@pytest.mark.parametrize("damaged", [False, True])
def test_a_model_that_somebody_copied_is_compared_and_not_downloaded(make: Make, hub: Hub, damaged: bool) -> None:
    node = make(1, [], FILES)
    (node.directory / store.MARKER).unlink()
    if damaged:
        (node.directory / BIG).write_bytes(b"?" * len(FILES[BIG]))
    node.get(hub.url)
    assert hub.sent == (len(FILES[BIG]) if damaged else 0)
    assert node.is_whole() and store.read_marker(node.directory)["complete"]


def test_the_shards_of_a_former_revision_go_when_the_new_one_is_complete(make: Make, hub: Hub) -> None:
    node = make(1, [], FILES)
    for name in ("old-00001-of-00001.safetensors", "mine.txt"):
        (node.directory / name).write_text(name)
    files = store.read_marker(node.directory)["files"]
    record = {**files, "old-00001-of-00001.safetensors": "0" * 64, BIG: "1" * 64}
    store.write_marker(node.directory, REPO, "former", record, complete=True)
    hub.deny = True
    assert "token is missing" in node.get(hub.url).error
    assert (node.directory / "old-00001-of-00001.safetensors").exists()
    hub.deny = False
    node.get(hub.url)
    there = sorted(path.name for path in node.directory.iterdir() if path.is_file() and not path.name.startswith("."))
    assert there == [BIG, "config.json", "mine.txt"]
    assert set(store.read_marker(node.directory)["files"]) == set(FILES)


def test_a_node_without_a_common_network_gets_the_files_from_its_neighbour_in_the_next_round(make: Make) -> None:
    make(1, [2], FILES)
    second, third = make(2, [1, 3]), make(3, [2])
    first = third.get()
    assert len(first.missing()) == len(FILES) and first.why[f"{REPO}/{BIG}"] == "not on spark2"
    second.get()
    third.get()
    assert third.is_whole()


@pytest.mark.parametrize("ends", ["before", "while it sends"])
def test_a_source_that_ends_is_replaced_and_the_file_goes_on(
    make: Make, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [make(n, [3], FILES) for n in (1, 2)]
    third = make(3, [1, 2])
    (third.directory).mkdir(parents=True)
    (third.directory / (BIG + store.PART)).write_bytes(FILES[BIG][:1_000_000])
    real = share.Slice._counter

    def counter(one: share.Slice, source: share.Source) -> Callable[[int], None]:
        count = real(one, source)

        def received(size: int) -> None:
            count(size)
            if source.name == "spark1":
                raise ConnectionResetError("it died")

        return received

    if ends == "before":
        sources[0].end()
    else:
        monkeypatch.setattr(share.Slice, "_counter", counter)
    copied = third.get()
    assert third.is_whole()
    assert copied.progress.peer_bytes == TOTAL - 1_000_000, "no byte twice"
    assert [source.name for source in copied.sources if source.failed] == ["spark1"]


def test_the_only_source_is_asked_again_after_it_failed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = share.Hub.fetch, list[object]()

    def fetch(*words: Any) -> bool:
        asked.append(words)
        if len(asked) == 1:
            raise ConnectionResetError("reset")
        return real(*words)

    monkeypatch.setattr(share.Hub, "fetch", fetch)
    make(1, [2], FILES)
    second = make(2, [1])
    second.get()
    assert second.is_whole()


def test_the_next_slice_goes_on_where_the_time_was_over(make: Make, hub: Hub) -> None:
    node = make(1, [])
    first = node.slice(hub.url)
    assert not first.run(first.missing(), 2, 0)
    assert len(first.missing()) == len(FILES)
    second = node.slice(hub.url, first.progress)
    assert second.run(second.missing(), 2, 120)
    assert node.is_whole()


def test_a_file_whose_time_is_over_while_it_is_fetched_is_left_to_the_next_slice(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make(1, [])
    one = node.slice("http://127.0.0.1:9")

    def fetch(*_arguments: Any) -> bool:
        one._deadline = 0.0
        return False

    monkeypatch.setattr(share.Hub, "fetch", fetch)
    assert not one.run(node.items[:1], 1, 60)


def test_one_slice_fetches_the_files_of_two_models(make: Make, hub: Hub) -> None:
    node = make(1, [])
    second = node.directory.with_name("org--second")
    node.items = share.items_of(map(model, (node.directory, second)))
    assert node.get(hub.url).progress.hub_bytes == 2 * TOTAL
    assert [store.read_marker(where)["complete"] for where in (node.directory, second)] == [True, True]


def test_a_damaged_copy_is_refused_and_another_source_is_used(make: Make) -> None:
    nodes = [make(n, [3], FILES) for n in (1, 2)]
    (nodes[0].directory / BIG).write_bytes(b"?" * len(FILES[BIG]))
    third = make(3, [1, 2])
    assert list(third.get().progress.bad["spark1"]) == [f"{REPO}/{BIG}"]
    assert third.is_whole()


def test_a_node_whose_only_source_is_damaged_says_so_and_asks_once(make: Make) -> None:
    source = make(1, [2], FILES)
    (source.directory / BIG).write_bytes(b"?" * len(FILES[BIG]))
    second = make(2, [1])
    copied = second.get()
    assert ([item.file.name for item in copied.missing()], copied.changed) == ([BIG], True)
    assert copied.why[f"{REPO}/{BIG}"].startswith(f"on spark1 ({REPO}: {BIG} is damaged (")
    assert not (second.directory / BIG).exists()
    again = second.slice(progress=copied.progress)
    assert again.run(again.missing(), 2, 120)
    assert copied.progress.peer_bytes == TOTAL, "it is not asked for that file again"


@pytest.mark.parametrize("cut", [1_500_000, 0])
def test_a_download_that_is_cut_goes_on_and_gives_up_without_progress(
    make: Make, hub: Hub, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make(1, [])
    if cut:
        hub.cut = cut
        node.get(hub.url)
        assert node.is_whole()
        return
    monkeypatch.setattr(share, "PATIENCE_HUB", 0.05)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        lost = node.get(f"http://127.0.0.1:{closed.getsockname()[1]}")
    assert lost.missing() == node.items
    assert "the hub does not answer (" in next(iter(lost.why.values()))


def test_seconds_without_a_byte_count_over_slices(make: Make, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "LONGEST_PAUSE", 60.0)
    hub.busy = 10**6
    node = make(1, [])
    first = node.slice(hub.url, share.Progress(silent=share.PATIENCE_HUB - 100))
    assert not first.run(first.missing(), 1, 0.05)
    assert share.PATIENCE_HUB - 100 < first.progress.silent < share.PATIENCE_HUB
    assert first.progress.seconds < 30, "no pause lasts longer than the slice"
    assert node.slice(hub.url, share.Progress(silent=share.PATIENCE_HUB)).run(node.items, 1, 60)
    hub.busy = 3
    node.get(hub.url)
    assert node.is_whole()


@pytest.mark.parametrize("source", ["hub", "node"])
def test_a_damaged_part_of_an_earlier_run_is_fetched_again(make: Make, hub: Hub, source: str) -> None:
    make(1, [2], FILES)
    second = make(2, [1])
    second.directory.mkdir(parents=True)
    (second.directory / (BIG + store.PART)).write_bytes(bytes(1_000_000))
    copied = second.get(hub.url if source == "hub" else "")
    assert second.is_whole() and not copied.error and not any(copied.progress.bad.values())


def test_a_full_disk_ends_the_copy_with_its_reason(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(share.Hub, "fetch", full)
    assert "No space left" in make(2, [1]).get().error


def test_a_fault_of_the_program_is_told(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_arguments: Any) -> None:
        raise ZeroDivisionError("x")

    monkeypatch.setattr(share.Hub, "fetch", wrong)
    assert make(2, [1]).get().error == "ZeroDivisionError('x')"


def test_paths_take_turns_and_one_that_failed_comes_last(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    sources = [share.Source("spark1", share.Hub(f"http://{n}")) for n in range(3)]
    sources[0].failed, sources[1].running = 1.0, 1

    def fetch(hub: share.Hub, *_arguments: Any) -> bool:
        asked.append([source.hub for source in sources].index(hub))
        raise ConnectionError

    monkeypatch.setattr(share.Hub, "fetch", fetch)
    monkeypatch.setattr(share, "PATIENCE_NODES", -1)
    node = make(2, [1])
    one = share.Slice(node.items, sources, False, share.Progress())
    assert one.run(node.items[:1], 1, 60)
    assert asked == [2, 1, 0]


def test_a_source_that_sends_a_file_is_asked_for_the_next_one_last(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    sources = [share.Source(f"spark{n}", share.Hub(f"http://{n}")) for n in range(3)]
    node = make(4, [1, 2, 3])
    one = share.Slice(node.items, sources, False, share.Progress())

    def fetch(hub: share.Hub, *_arguments: Any) -> bool:
        asked.append([source.hub for source in sources].index(hub))
        if len(asked) < len(sources):
            one._get(node.items[len(asked)])
        raise ConnectionError

    monkeypatch.setattr(share.Hub, "fetch", fetch)
    monkeypatch.setattr(share, "PATIENCE_NODES", -1)
    one.run(node.items[:1], 1, 60)
    assert asked[:3] == [0, 1, 2]
    assert [source.running for source in sources] == [0, 0, 0]


def test_neither_a_proxy_nor_another_address_stands_between_two_nodes(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    make(1, [2], FILES)
    second = make(2, [1])
    second.get()
    assert second.is_whole()


def test_the_memory_that_caches_the_files_is_given_back_at_the_end(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _descriptor, *how: given.append(how))
    make(1, [], FILES).end()
    assert given == [(0, 0, os.POSIX_FADV_DONTNEED)] * len(FILES)
