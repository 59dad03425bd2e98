# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the ledger reads of a running group, above all the batch sizes of its CUDA graphs."""

import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.exchange import Bytes, Shape, Split, Work, predict
from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.ledger import (
    Entry,
    Window,
    captured_sizes,
    scheduler_bytes,
)

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


def opened(pp: int = 1, tp: int = 2, nodes: int = 2, networks: Any = None, clock: Any = lambda: 0.0) -> Window:
    """Return the window of a group with this division."""
    given = plan()
    given["expect"]["nodes"] = nodes
    for rank in given["ranks"]:
        rank["argv"] = ["--tp-size", str(tp), "--pp-size", str(pp)]
        rank["networks"] = networks or rank["networks"]
    window = Window(Head(1, "{}"), given, clock)  # type: ignore[arg-type]
    window.open()
    return window


@pytest.mark.parametrize(
    ("tp", "nodes", "tcp", "predicted"),
    [
        # Stages alone exchange less than the scheduler may send while it waits.
        (1, 2, 200e6, False),
        (1, 2, 0, True),
        (2, 4, 200e6, True),
    ],
)
def test_the_stages_of_a_pipeline_are_compared_if_the_scheduler_hides_nothing(
    tp: int, nodes: int, tcp: float, predicted: bool
) -> None:
    times = iter([0.0, 900.0])
    window = opened(pp=2, tp=tp, nodes=nodes, clock=lambda: next(times))
    assert window.why_not == "the traffic of the group was not counted"
    needed = predict(SHAPE, Split(nodes, tp, 2), Work(0, 0, PASSES, PASSES, ())).usual
    window.listen({})
    assert window.entries == {}
    window.close(moved(needed, tcp), [])
    assert (bool(window.entries), "nccl_verify_tokens" in window.why_not) == (predicted, not predicted)
    assert window.as_dict()["group"] is None


def test_a_group_inside_one_node_is_not_predicted() -> None:
    window = opened(nodes=1)
    assert window.why_not == "no group of ranks spans nodes"
    window.close(moved(1), [])
    assert (window.as_dict()["verdict"], window.decode([], [])) == (None, None)


def test_a_missing_counter_is_not_zero() -> None:
    window = opened()
    counted = moved(of(1))
    counted["g-1-0"]["rdma"] = {}
    window.close(counted, [])
    assert (window.entries, window.as_dict()["verdict"]) == ({}, None)
    assert "g-1-0" in window.why_not
    assert "mlx0" in window.why_not


def test_rails_that_moved_nothing_and_devices_beside_the_plan_are_counted() -> None:
    networks = [{"interface": "eth0"}, {"rdma_device": "mlx0"}, {"rdma_device": "mlx1"}]
    window = opened(networks=networks)
    counted = moved(of(1), 2)
    counted["g-1-0"] |= {key: dict(value) for key, value in counted["g-1-0"].items()}
    still = {"xmit_bytes": 0, "rcv_bytes": 0}
    for pod in counted.values():
        pod["rdma"] |= {"mlx1": still, "mlx7": {"xmit_bytes": 5, "rcv_bytes": 2}, "mlx8": still}
        more = {"tx_bytes": 9, "rx_bytes": 9, "tx_packets": 0, "rx_packets": 0}
        pod["net"] |= {"lo": more, "net2": more}
    window.close(counted, [])
    told = window.as_dict()["ranks"]
    assert list(told) == ["g-0-0", "g-1-0"]
    for entry in told.values():
        assert (entry["silent_rails"], entry["other_devices"]) == (["mlx1"], {"mlx7": 7})
        assert list(entry["interfaces"]) == ["net1", "net2"]
    for pod in counted.values():
        pod["rdma"]["mlx0"] = still
    window.close(counted, [])
    assert window.entries["g-0-0"].silent == ()


def test_the_scheduler_may_send_while_no_run_is_busy() -> None:
    times = iter([2.0, 20.0])
    window = opened(clock=lambda: next(times))
    runs = [
        {"tokens": 100, "tokens_per_second": 50.0},
        {"tokens": 90, "tokens_per_second": 0.0},
        {"tokens": 30, "tokens_per_second": 10.0},
    ]
    window.close(moved(of(1)), runs)
    idle = scheduler_bytes(18.0 - 2.0 - 3.0, Work(0, 0, PASSES, PASSES))
    assert [entry.scheduler for entry in window.entries.values()] == [idle, idle, 2 * idle]


def test_what_nccl_says_of_each_pod_narrows_the_prediction() -> None:
    line = "NCCL INFO AllReduce: {} Bytes -> Algo {} proto {} channel{{Lo..Hi}}={{0..1}}"
    window = opened()
    window.close(moved(of(1)), [])
    before = window.entries["g-0-0"].predicted
    window.listen({"g-0-0": [line.format(1 << 21, "RING", "LL")], "g-1-0": [line.format(8, "RING", "LL")]})
    assert window.entries["g-0-0"].predicted != before
    assert window.as_dict()["algorithms"] == {"reduce of 8 bytes": "RING LL", "reduce of 2097152 bytes": "RING LL"}
    # What is answered differently is unknown again.
    window.listen({"g-1-0": [line.format(1 << 21, "RING", "SIMPLE")]})
    assert window.entries["g-0-0"].predicted == before
    # An algorithm that is not modelled leaves no prediction.
    window = opened()
    window.close(moved(of(1)), [])
    window.listen({"g-0-0": [line.format(1 << 21, "NVLS", "SIMPLE")]})
    assert (window.entries, "NVLS" in window.why_not) == ({}, True)


@pytest.mark.parametrize("page", ["not found", ""])
def test_a_pod_without_configuration_or_counters_is_named(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Window, "_get", lambda *_words: "")
    window = opened()
    window.close(moved(of(1)), [])
    assert "no decode passes" in window.why_not
    monkeypatch.setattr(Head, "run", lambda *_words: SimpleNamespace(stdout=page))
    assert opened().why_not == "the pod has no config.json of m"


@pytest.mark.parametrize(
    ("run", "between"),
    [
        ({"tokens": 101, "tokens_per_second": 10.0, "first_token_seconds": 0.1}, 100.0),
        ({"tokens": 1, "tokens_per_second": 10.0, "first_token_seconds": 0.05}, 50.0),
    ],
)
def test_the_time_between_tokens_leaves_the_first_one_out(run: dict[str, float], between: float) -> None:
    window = opened()
    window.close(moved(of(1)), [])
    row = {"bytes": 8192, "p50": 5_000_000.0, "p99": 6_000_000.0}
    found = window.decode([row], [run])
    assert found is not None
    # Nine all-reduces of five seconds, and half the time for the logits.
    assert (found["fabric_ms"], found["itl_ms"], found["share"]) == (47500.0, between, round(47500 / between, 3))
    assert window.decode([], [run]) is window.decode([row], []) is None


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
