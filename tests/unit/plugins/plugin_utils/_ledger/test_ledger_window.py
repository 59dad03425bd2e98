# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the ledger reads of a running group, above all the batch sizes of its CUDA graphs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._ledger.exchange import (
    Bytes,
    Shape,
    Split,
    Work,
    predict,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._ledger.judge import Entry
from ansible_collections.gb10.cluster.plugins.plugin_utils._ledger.window import Window, at_one_token, captured_sizes

# Messages of one token are too large for LL, which would double the range.
CONFIG = {"hidden_size": 1 << 20, "num_hidden_layers": 4, "vocab_size": 8}
SHAPE, SPLIT = Shape.read(CONFIG), Split(nodes=2, tp=2, pp=1)
PASSES = 100


@pytest.mark.parametrize(
    ("info", "sizes"),
    [
        ({"cuda_graph_bs": [1, 2, 4, 8]}, (1, 2, 4, 8)),
        ({"cuda_graph_bs_decode": [1, 2], "cuda_graph_bs": [1, 2, 4, 8]}, (1, 2)),
        ({"cuda_graph_bs_decode": None, "cuda_graph_bs": [4]}, (4,)),
        ({"disable_cuda_graph": True, "cuda_graph_bs": [1, 2]}, ()),
        ({"disable_cuda_graph_padding": True, "cuda_graph_bs": [1, 2]}, ()),
        ({"disable_cuda_graph": False, "cuda_graph_bs": [1, 2]}, (1, 2)),
        ({}, None),
        ({"cuda_graph_bs": []}, None),
        ({"cuda_graph_bs": "1 2 4"}, None),
        ({"cuda_graph_bs": [1, "2"]}, None),
        ({"cuda_graph_bs": [0, 1]}, None),
    ],
)
def test_the_server_says_for_which_batches_it_has_graphs(
    info: Mapping[str, Any], sizes: tuple[int, ...] | None
) -> None:
    assert captured_sizes(info) == sizes


@pytest.mark.parametrize(
    ("batch", "captured", "most"),
    [
        # A batch of 3 runs as 4, one of 5 as 8, and the mean does not say which of them ran.
        (3, (1, 2, 4), 4 / 3),
        (5, (1, 2, 4, 8), 8 / 5),
        (3, (8, 4, 2, 1), 8 / 5),
        (3, (1, 2, 3, 4, 5), 1.0),
        (2, (8,), 8.0),
        (3, (), 1.0),
        (1, (4, 8), 1.0),
        # SGLang's lists have the powers of two: 9 runs as 16, and 257 as 512.
        (3, None, 512 / 257),
    ],
)
def test_a_padded_batch_may_move_the_bytes_of_the_next_captured_size(
    batch: int, captured: tuple[int, ...] | None, most: float
) -> None:
    work = Work(0, 0, batch * PASSES, PASSES, captured)
    assert work.padding == pytest.approx(most)
    plain = predict(SHAPE, SPLIT, Work(0, 0, batch * PASSES, PASSES, ()))
    padded = predict(SHAPE, SPLIT, work)
    assert padded.high == pytest.approx(plain.high * most)
    assert (padded.low, padded.usual) == (plain.low, plain.usual)


def test_no_work_is_not_padded() -> None:
    assert Work(8, 1, 0, 0, (4,)).padding == 1.0


class Head:
    """The pod of rank 0, whose server has decoded PASSES batches more at each reading of its metrics."""

    def __init__(self, batch: int, info: str, old: bool = False) -> None:
        self.batch, self.info, self.old, self.read, self.asked = batch, info, old, 0, list[str]()

    def run(self, command: Sequence[str]) -> SimpleNamespace:
        path = command[-1]
        self.asked.append(path)
        if command[0] == "/bin/sh":
            return SimpleNamespace(stdout=json.dumps(CONFIG))
        if path != "/metrics":
            return SimpleNamespace(stdout="not found" if self.old and path == "/server_info" else self.info)
        self.read += 1
        done = self.read * PASSES
        return SimpleNamespace(
            stdout=f'sglang:cuda_graph_passes_total{{mode="decode_cuda_graph"}} {done}\n'
            f'sglang:realtime_tokens_total{{mode="decode"}} {done * self.batch}\n'
            f"sglang:generation_tokens_total {done * self.batch}\n"
        )


def plan() -> dict[str, Any]:
    network = {"rdma_device": "mlx0", "interface": "net1"}
    ranks = [{"pod": f"g-{rank}-0", "argv": ["--tp-size", "2"], "networks": [network]} for rank in (0, 1)]
    return {"ranks": ranks, "expect": {"nodes": 2}, "model_path": "m", "service": {"port": 1}, "transport": "roce"}


def moved(rdma: float, tcp: float = 0, received: float = 0) -> dict[str, Any]:
    """Return the counters of two ranks of which each moved so many bytes, and received more by TCP alone."""
    half, rails = int(tcp / 2), {"mlx0": {"xmit_bytes": int(rdma / 2), "rcv_bytes": int(rdma / 2)}}
    net = {"net1": {"tx_bytes": half, "rx_bytes": half + int(received), "tx_packets": 0, "rx_packets": 0}}
    return {f"g-{rank}-0": {"rdma": rails, "net": net} for rank in (0, 1)}


def measured(head: Head, rdma: float, tcp: float = 0, received: float = 0) -> dict[str, Any]:
    """Return the ledger after these bytes."""
    window = Window(head, plan(), lambda: 0.0)  # type: ignore[arg-type]
    window.open()
    window.close(moved(rdma, tcp, received), [])
    return window.as_dict()


def of(batch: int) -> float:
    """Return the bytes that a rank moves in all passes with this batch, without padding."""
    return predict(SHAPE, SPLIT, Work(0, 0, batch * PASSES, PASSES, ())).usual


@pytest.mark.parametrize(
    ("batch", "info", "ran", "verdict"),
    [
        (3, {"cuda_graph_bs": [1, 2, 4]}, 4, "rdma"),
        (3, {"cuda_graph_bs": [1, 2, 4]}, 3, "rdma"),
        (5, {"cuda_graph_bs": [1, 2, 4, 8]}, 8, "rdma"),
        # Without padding, the bytes of a larger batch are not explained.
        (3, {"disable_cuda_graph_padding": True, "cuda_graph_bs": [1, 2, 4]}, 4, "unexplained"),
        (3, {"cuda_graph_bs": [1, 2, 3, 4]}, 4, "unexplained"),
        (5, {"cuda_graph_bs": [1, 2, 4, 6]}, 8, "unexplained"),
        # A server that does not say so may have any of SGLang's lists.
        (5, {}, 8, "rdma"),
    ],
)
def test_the_sizes_that_the_server_captured_bound_what_it_may_move(
    batch: int, info: dict[str, Any], ran: int, verdict: str
) -> None:
    for old in (False, True):
        assert measured(Head(batch, json.dumps(info), old), of(ran))["verdict"] == verdict


def test_a_server_without_information_is_asked_by_both_names() -> None:
    head = Head(3, "not found")
    assert measured(head, of(4))["verdict"] == "rdma"
    assert head.asked[-2:] == ["/server_info", "/get_server_info"]


@pytest.mark.parametrize("answer", ["[1]", "3", "null"])
def test_an_answer_that_is_no_information_is_none(answer: str) -> None:
    assert measured(Head(3, answer), of(4))["verdict"] == "rdma"


def test_a_download_beside_the_group_is_not_tcp_of_its_ranks() -> None:
    assert measured(Head(1, "{}"), of(1), received=of(1))["verdict"] == "rdma"


def test_the_fabric_s_share_of_a_token_comes_from_the_measured_times() -> None:
    window = Window(Head(1, "{}"), plan(), lambda: 0.0)  # type: ignore[arg-type]
    window.open()
    window.close(moved(of(1)), [])
    run = {"tokens": 101, "tokens_per_second": 10.0, "first_token_seconds": 0.1}
    found = window.decode([{"bytes": 8192, "p50": 50.0, "p99": 60.0}], [run, run | {"tokens_per_second": 1.0}])
    # Nine all-reduces, and half the time for the logits.
    assert found is not None
    assert (found["fabric_ms"], found["itl_ms"]) == (0.48, 100.0)
    assert found["share"] == 0.005


def test_bytes_by_two_paths_are_mixed_and_name_the_interface() -> None:
    ledger = measured(Head(1, "{}"), of(1) / 2, of(1) / 2)
    assert (ledger["verdict"], ledger["group"]) == ("mixed", None)
    assert "by TCP counted (net1 " in ledger["msg"]
    by_rdma = measured(Head(1, "{}"), of(1), 2)
    assert "net1" not in by_rdma["msg"]
    assert by_rdma["group"]["rdma_bytes"] == 2 * by_rdma["ranks"]["g-0-0"]["rdma_bytes"]


@pytest.mark.parametrize(
    ("entries", "verdict"),
    [
        (("rdma", "rdma"), "rdma"),
        (("rdma", "tcp"), "mixed"),
        (("mixed", "tcp"), "mixed"),
        (("rdma", "unexplained"), "unexplained"),
        ((), None),
    ],
)
def test_ranks_that_took_different_paths_are_mixed(entries: tuple[Any, ...], verdict: str | None) -> None:
    window = Window(Head(1, "{}"), plan(), lambda: 0.0)  # type: ignore[arg-type]
    window.entries = {str(rank): Entry(each, Bytes(1, 1, 1), 0, 0) for rank, each in enumerate(entries)}
    assert window.as_dict()["verdict"] == verdict


def test_bytes_of_one_token_are_those_of_8_kib() -> None:
    rows = [{"bytes": size, "p50": size} for size in (4096, 8192, 16384)]
    assert at_one_token(rows)["bytes"] == 8192
    assert at_one_token(rows[:1])["bytes"] == 4096
