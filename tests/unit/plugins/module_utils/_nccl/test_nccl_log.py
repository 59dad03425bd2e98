# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that channel lines of large logs are counted exactly, regardless of what precedes them and how they vary."""

import io
from collections.abc import Callable

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._nccl import statements
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.log import NcclLog
from ansible_collections.gb10.cluster.plugins.module_utils._nccl.statements import plain, split_line


def channels(lines: list[str], size: int = 1 << 16) -> dict[str, dict[str, dict[str, int]]]:
    log = NcclLog().read(io.BytesIO("".join(f"{line}\n" for line in lines).encode()).read, size)
    return {process.pid: process.channels for process in log.processes}


def line(pid: int, number: int, device: int, network: str = "IB") -> str:
    return (
        f"s1:{pid}:{pid} [0] NCCL INFO Channel {number:02d}/0 : {number}[0] -> 1[0] [send] via NET/{network}/{device}"
    )


@pytest.mark.parametrize("size", [100, 1 << 12, 1 << 20])
@pytest.mark.parametrize(
    "prefix",
    [
        lambda _n: "",
        lambda n: f"2026-11-22T10:00:{n % 60:02d}.{n:06d}Z ",
        lambda n: f"[2026-11-22 10:00:{n % 60:02d}] ",
        lambda n: f"2026-11-22T10:00:{n % 60:02d}.{n:09d}Z [2026-11-22 10:00:{n % 60:02d}] ",
        lambda n: f"[2026-11-22 00:00:{n % 60:02d}] " if n else "",
        lambda n: f"{'x' * (n % 7)} 2026-11-22T10:00:{n % 60:02d}.{n}{'Z' * (n % 2)} ",
    ],
    ids=["plain", "kubectl --timestamps", "NCCL's time stamps", "both", "not in the first line", "at different places"],
)
def test_every_channel_line_is_counted_once(prefix: Callable[[int], str], size: int) -> None:
    lines = [prefix(n) + line(1 + n % 3, n % 64, n % 2) for n in range(3000)]
    assert channels(lines, size) == {f"{pid}": {"IB": {"0": 500, "1": 500}} for pid in (1, 2, 3)}


def test_a_line_that_differs_only_in_its_time_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(statements, "read_statement", lambda text: read.append(text) or statements.NOTHING)
    channels([f"2026-11-22T10:00:00.{number:06d}Z {line(1, 0, 0)}" for number in range(300)])
    assert len(read) == 1


def test_lines_that_never_repeat_are_counted() -> None:
    """More different lines than are remembered."""
    lines = [line(1, n, n % 2) for n in range(40_000)] * 2
    assert channels(lines) == {"1": {"IB": {"0": 40_000, "1": 40_000}}}


def test_other_lines_between_channel_lines_change_no_count() -> None:
    ring = "s1:1:1 [0] NCCL INFO Channel 00/02 :    0   1"
    others = [ring, "s1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] via P2P/CUMEM", "INFO: POST /v1", ""]
    lines = [text for n in range(500) for text in (line(1, n % 8, 0), *others, line(1, n % 8, 1, "Socket"))]
    assert channels(lines) == {"1": {"IB": {"0": 500}, "Socket": {"1": 500}}}


def test_the_order_of_a_ring_alone_names_no_process() -> None:
    assert channels(["s1:1:1 [0] NCCL INFO Channel 00/02 :    0   1"] * 100) == {}


def test_channel_lines_of_the_threads_of_one_process_are_added_up() -> None:
    lines = [
        f"s1:1:{2 + n % 700} [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/{n % 2}" for n in range(7000)
    ]
    assert channels(lines) == {"1": {"IB": {"0": 3500, "1": 3500}}}


@pytest.mark.parametrize(
    "escaped", ["a -\\u003e NET/IB", "a -&gt; NET/IB", "a -> NET\\/IB", "\x1b[1ma -> NET/IB\x1b[0m"]
)
def test_escapes_of_collectors_are_read(escaped: str) -> None:
    assert plain(escaped.encode()) == "a -> NET/IB"


def test_an_address_in_the_text_of_a_warning_ends_it_not() -> None:
    line = "s1:1:1 [0] NCCL WARN Connection closed by 10.0.0.2:40:41 of the group"
    assert [(level, text) for _origin, level, text in split_line(line.encode())] == [("WARN", line)]


def test_a_statement_without_a_writer_has_not_that_of_the_one_before_it() -> None:
    found = split_line(b"s1:1:2 [0] NCCL INFO a [3] NCCL INFO b")
    assert [(origin.host, origin.pid, origin.device, text[0]) for origin, _level, text in found] == [
        ("s1", "1", "0", "a"),
        ("", "", "3", "b"),
    ]


def test_a_dictionary_of_limited_size_forgets_its_oldest_value() -> None:
    known = {"a": 1, "b": 2}
    assert (statements.put(known, "a", 3, 2), statements.put(known, "c", 4, 2)) == (None, 3)
    assert known == {"b": 2, "c": 4}


def test_a_time_stamp_that_ran_into_a_name_is_no_part_of_it() -> None:
    text = b"s1:1:1 [0] NCCL INFO Using network Socket2026-11-22T10:00:00.123Z\n"
    (process,) = NcclLog().read(io.BytesIO(text).read).processes
    assert process.selections == {"Socket": 1}


def test_a_host_that_is_named_like_the_end_of_a_network_changes_no_name() -> None:
    text = b"B:1:1 [0] NCCL INFO Using network IB\n"
    (process,) = NcclLog().read(io.BytesIO(text).read).processes
    assert (process.host, process.selections) == ("B", {"IB": 1})


OTHERS = 'INFO:     10.42.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n' * 20
VLLM = "(APIServer pid=1) INFO 11-02 08:31:24 [core.py:77]"


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("[10:00:00] server_args=ServerArgs(api_key='k', port=1)", "[10:00:00] server_args=ServerArgs("),
        (f"{VLLM} vLLM API server version 0.11.0", f"{VLLM} vLLM API server version"),
        (f"{VLLM} Initializing a V1 LLM engine (v0.11.0) with k", f"{VLLM} Initializing a V1 LLM engine"),
        (f"{VLLM} Initializing an LLM engine (v0.6.0) with k", f"{VLLM} Initializing an LLM engine"),
        ("1[0] [send] via NET/Socket/0 and NET/Socket/1", "1[0] [send] via NET/Socket/0 and NET/Socket/1"),
        ("Failed to initialize NET plugin IB", "Failed to initialize NET plugin IB"),
        ("Fatal Python error: Segmentation fault", "Fatal Python error: Segmentation fault"),
        ("GET /health: ALL IS WELL, THE CLUSTER ANSWERS", ""),
    ],
)
def test_of_a_log_only_what_may_be_a_statement_or_a_start_is_kept(line: str, kept: str) -> None:
    """Each stands far from the lines of NCCL. The line of a server's start may contain a key."""
    found: list[bytes] = []
    NcclLog().read(io.BytesIO(f"{OTHERS}{line}\n{OTHERS}".encode()).read, keep=found.extend)
    assert [block.decode().rstrip("\n") for block in found] == [kept] * bool(kept)


def test_each_of_several_fragments_is_kept() -> None:
    found: list[bytes] = []
    parts = [f"NET/Socket/{number}\n" for number in range(3)]
    NcclLog().read(io.BytesIO(OTHERS.join(parts).encode()).read, keep=found.extend)
    assert b"".join(found).decode() == "".join(parts)
