# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that damaged TCP logs never pass and that no log passes without a channel line."""

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nccl_mutations import FIXTURES, broken_promise, mutate, read, seeds

RANKS = [(FIXTURES / "real" / f"twohosts-socket.rank{rank}.log").read_bytes() for rank in (0, 1)]
IB_RANK = RANKS[1].replace(b"NET/Socket/", b"NET/IB/").replace(b"network Socket", b"network IB")
SETTINGS = settings(suppress_health_check=[HealthCheck.too_slow])


def interleave(first: bytes, second: bytes, sizes: list[int]) -> bytes:
    """Return two streams mixed as in one pipe, if buffers are flushed at arbitrary positions."""
    streams, out, turn = [first, second], [], 0
    while any(streams):
        size = sizes[turn % len(sizes)]
        out.append(streams[turn % 2][:size])
        streams[turn % 2] = streams[turn % 2][size:]
        turn += 1
    return b"".join(out)


@SETTINGS
@given(st.lists(st.integers(1, 3000), min_size=2, max_size=12))
def test_no_interleaving_of_two_tcp_ranks_passes(sizes: list[int]) -> None:
    report = read(interleave(*RANKS, sizes))
    assert not report.satisfied
    assert report.verdict.transport_class in ("tcp", "mixed", "unknown")


# Pipes and buffers split after hundreds of bytes. Pieces of a few bytes would leave no readable line of the TCP rank.
@SETTINGS
@given(st.lists(st.integers(40, 4096), min_size=2, max_size=12))
def test_no_interleaving_hides_the_one_rank_on_tcp(sizes: list[int]) -> None:
    report = read(interleave(RANKS[0], IB_RANK, sizes))
    assert not report.satisfied
    assert report.verdict.verdict in ("mixed", "socket")


@SETTINGS
@given(st.integers(0, len(RANKS[0])), st.sampled_from(RANKS))
def test_no_cut_of_a_tcp_log_passes(at: int, log: bytes) -> None:
    for part in (log[:at], log[at:]):
        report = read(part)
        assert not report.satisfied
        assert report.verdict.transport_class in ("tcp", "unknown")


@SETTINGS
@given(st.permutations(RANKS[0].splitlines(keepends=True) + RANKS[1].splitlines(keepends=True)))
def test_no_order_of_lines_makes_tcp_pass(lines: list[bytes]) -> None:
    assert not read(b"".join(lines)).satisfied


@SETTINGS
@given(st.binary(max_size=3000))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    assert broken_promise(data, read(data)) == ""


@pytest.mark.parametrize("seed", range(3))
def test_mutated_logs(seed: int) -> None:
    chance, logs = Random(seed), seeds()
    for _unused in range(150):
        data = mutate(chance.choice(logs), chance.choice(logs), chance)
        assert broken_promise(data, read(data)) == "", data
