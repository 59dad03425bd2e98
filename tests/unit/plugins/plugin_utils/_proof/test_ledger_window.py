# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare what the ledger says of a running group with a stored text: what moved, and what the server and NCCL say."""

import itertools
import json
from collections.abc import Mapping, Sequence
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

import pytest
import stored
from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.exchange import Bytes, Shape, Split, Work, predict
from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.ledger import Entry, Window, captured_sizes

# Messages of one token are too large for LL, which would double the range.
CONFIG = {"hidden_size": 1 << 20, "num_hidden_layers": 4, "vocab_size": 8}
SHAPE, SPLIT = Shape.read(CONFIG), Split(nodes=2, tp=2, pp=1)
PASSES = 100
INFOS = """
{"cuda_graph_bs": [1, 2, 4, 8]}
{"cuda_graph_bs_decode": [1, 2], "cuda_graph_bs": [1, 2, 4, 8]}
{"cuda_graph_bs_decode": null, "cuda_graph_bs": [4]}
{"disable_cuda_graph": true, "cuda_graph_bs": [1, 2]}
{"disable_cuda_graph_padding": true, "cuda_graph_bs": [1, 2]}
{"disable_cuda_graph": false, "cuda_graph_bs": [1, 2]}
{}
{"cuda_graph_bs": []}
{"cuda_graph_bs": "1 2 4"}
{"cuda_graph_bs": [1, "2"]}
{"cuda_graph_bs": [0, 1]}
"""


def test_a_padded_batch_may_move_the_bytes_of_the_next_captured_size() -> None:
    said = [f"{line}: {captured_sizes(json.loads(line))}" for line in INFOS.strip().splitlines()]
    padding = []
    plain: Any = None
    # A batch of 3 runs as 4, one of 5 as 8, and the mean does not say which of them ran.
    for batch, *lists in (
        (3, (), (1, 2, 4), (8, 4, 2, 1), (1, 2, 3, 4, 5), None),
        (5, (), (1, 2, 4, 8)),
        (2, (), (8,)),
        (1, (), (4, 8)),
    ):
        for captured in lists:
            work = Work(0, 0, batch * PASSES, PASSES, captured)
            found = predict(SHAPE, SPLIT, work)
            plain = plain if captured != () else found
            assert found == plain._replace(high=pytest.approx(plain.high * work.padding))
            padding.append(f"{batch} in {captured}: {work.padding:.6g}")
    stored.compare("ledger_graphs", {"captured sizes": said, "padding": padding})


class Head:
    """The pod of rank 0, whose server has decoded PASSES batches more at each reading of its metrics."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        self.batch, self.info, self.old = case.get("batch", 1), case.get("info", "{}"), case.get("old", False)
        self.page, self.drafted, self.read = case.get("page"), case.get("drafted", 1), 0

    def run(self, command: Sequence[str]) -> SimpleNamespace:
        path = command[-1]
        if self.page is not None and (path == "/metrics" or (command[0] == "/bin/sh" and self.page)):
            return SimpleNamespace(stdout=self.page)
        if command[0] == "/bin/sh":
            return SimpleNamespace(stdout=json.dumps(CONFIG))
        if path != "/metrics":
            return SimpleNamespace(stdout="not found" if self.old and path == "/server_info" else self.info)
        self.read += 1
        done = self.read * PASSES
        return SimpleNamespace(
            stdout=f'sglang:cuda_graph_passes_total{{mode="decode_cuda_graph"}} {done}\n'
            f'sglang:realtime_tokens_total{{mode="decode"}} {done * self.batch}\n'
            f"sglang:generation_tokens_total {done * self.batch * self.drafted}\n"
        )


def of(batch: int = 1, split: Split = SPLIT) -> float:
    """Return the bytes that a rank moves in all passes with this batch, without padding."""
    return predict(SHAPE, split, Work(0, 0, batch * PASSES, PASSES, ())).usual


def moved(rdma: float, tcp: float = 0, received: float = 0) -> dict[str, Any]:
    """Return the counters of two ranks of which each moved so many bytes, and received more by TCP alone."""
    half, rails = int(tcp / 2), {"mlx0": {"xmit_bytes": int(rdma / 2), "rcv_bytes": int(rdma / 2)}}
    net = {"net1": {"tx_bytes": half, "rx_bytes": half + int(received), "tx_packets": 0, "rx_packets": 0}}
    return {f"g-{rank}-0": {"rdma": dict(rails), "net": dict(net)} for rank in (0, 1)}


def beside(used: bool = True) -> dict[str, Any]:
    """Return counters with a second rail that is silent, devices that the plan does not name, and more interfaces."""
    counted, still = moved(of(), 2), {"xmit_bytes": 0, "rcv_bytes": 0}
    more = {"tx_bytes": 9, "rx_bytes": 9, "tx_packets": 0, "rx_packets": 0}
    for pod in counted.values():
        pod["rdma"] |= {"mlx1": still, "mlx7": {"xmit_bytes": 5, "rcv_bytes": 2}, "mlx8": still}
        pod["rdma"] |= {} if used else {"mlx0": still}
        pod["net"] |= {"lo": more, "net2": more}
    return counted


RAILS = [{"interface": "eth0"}, {"rdma_device": "mlx0"}, {"rdma_device": "mlx1"}]
SIZE = "NCCL INFO AllReduce: {} Bytes -> Algo {} proto {} channel{{Lo..Hi}}={{0..1}}"
BOTH = {"g-0-0": [SIZE.format(1 << 21, "RING", "LL")], "g-1-0": [SIZE.format(8, "RING", "LL")]}
RUN = {"tokens": 101, "tokens_per_second": 10.0, "first_token_seconds": 0.1}
RUNS = [
    {"tokens": 100, "tokens_per_second": 50.0},
    {"tokens": 90, "tokens_per_second": 0.0},
    {"tokens": 30, "tokens_per_second": 10.0},
]
PIPE = {"pp": 2, "clock": (0.0, 900.0)}
STAGES = of(split=Split(2, 1, 2))
# {case: batch and answer of the server, division, what moved, what NCCL says}
CASES: dict[str, dict[str, Any]] = {
    "RDMA": {},
    **{
        f"batch {batch} ran as {ran} with {info}": {"batch": batch, "info": info, "moved": moved(of(ran))}
        for batch, info, ran in (
            (3, '{"cuda_graph_bs": [1, 2, 4]}', 4),
            (3, '{"cuda_graph_bs": [1, 2, 4]}', 3),
            (5, '{"cuda_graph_bs": [1, 2, 4, 8]}', 8),
            # Without padding, the bytes of a larger batch are not explained.
            (3, '{"disable_cuda_graph_padding": true, "cuda_graph_bs": [1, 2, 4]}', 4),
            (3, '{"cuda_graph_bs": [1, 2, 3, 4]}', 4),
            (5, '{"cuda_graph_bs": [1, 2, 4, 6]}', 8),
            # A server that does not say so may have any of SGLang's lists.
            (5, "{}", 8),
        )
    },
    "an older server": {"batch": 3, "info": '{"cuda_graph_bs": [1, 2, 4]}', "old": True, "moved": moved(of(4))},
    "a download beside the group": {"moved": moved(of(), received=of())},
    "half by TCP": {"moved": moved(of() / 2, of() / 2)},
    "two bytes by TCP": {"moved": moved(of(), 2)},
    # Stages alone exchange less than the scheduler may send while it waits.
    "stages, TCP beside": {**PIPE, "tp": 1, "moved": moved(STAGES, 200e6)},
    "stages": {**PIPE, "tp": 1, "moved": moved(STAGES)},
    "stages of two nodes, TCP beside": {**PIPE, "nodes": 4, "moved": moved(of(split=Split(4, 2, 2)), 200e6)},
    "one node": {"nodes": 1},
    "a missing counter": {"moved": moved(of()) | {"g-1-0": {"rdma": {}, "net": {}}}},
    "devices beside the plan": {"networks": RAILS, "moved": beside()},
    "devices beside the plan, all rails silent": {"networks": RAILS, "moved": beside(used=False)},
    "runs that are busy, and a scheduler that waits": {"clock": (2.0, 20.0), "runs": RUNS, "moved": moved(of(), 40e6)},
    "runs that last longer than the window": {"clock": (0.0, 1.0), "runs": RUNS},
    "what NCCL says": {"says": [BOTH]},
    "what NCCL says, then otherwise": {"says": [BOTH, {"g-1-0": [SIZE.format(1 << 21, "RING", "SIMPLE")]}]},
    "NCCL takes what is not modelled": {"says": [{"g-0-0": [SIZE.format(1 << 21, "NVLS", "SIMPLE")]}]},
    "no counters of passes": {"page": ""},
    "no config.json": {"page": "not found"},
}


SENTENCES = ("RDMA", "half by TCP", "devices beside the plan")


def window(case: Mapping[str, Any]) -> Window:
    network = {"rdma_device": "mlx0", "interface": "net1"}
    argv = ["--tp-size", str(case.get("tp", 2)), "--pp-size", str(case.get("pp", 1))]
    networks = case.get("networks", [network])
    ranks = [{"pod": f"g-{rank}-0", "argv": argv, "networks": networks} for rank in (0, 1)]
    plan = {"ranks": ranks, "expect": {"nodes": case.get("nodes", 2)}, "model_path": "m", "transport": "roce"}
    times = iter(case.get("clock", (0.0, 0.0)))
    return Window(Head(case), plan | {"service": {"port": 1}}, lambda: next(times))  # type: ignore[arg-type]


def test_the_ledger_of_a_window_is_as_stored() -> None:
    found = {}
    for name, case in CASES.items():
        one = window(case)
        one.open()
        before = one.why_not
        one.listen({})
        assert one.entries == {}
        one.close(case.get("moved", moved(of())), case.get("runs", []))
        said = [] if "not counted" in before else [f"opened: {before}"]
        for lines in [{}, *case.get("says", ())]:
            one.listen(lines)
            ledger = one.as_dict()
            if not ledger["ranks"] or name in SENTENCES:
                said.append(ledger["msg"])
            said += [str(ledger["algorithms"])] if ledger["algorithms"] else []
            told = {**ledger["ranks"], f"all, {ledger['verdict']}": ledger["group"] or {"verdict": "-", "msg": ""}}
            parts = [(pod, ", ".join(map(str, [*each.values()][:-1]))) for pod, each in told.items()]
            said += [
                f"{', '.join(pod for pod, _part in same)}: {text}"
                for text, same in itertools.groupby(parts, itemgetter(1))
            ]
        said.append(f"scheduler: {[round(entry.scheduler) for entry in one.entries.values()]}")
        found[name] = said
    decode = window({})
    decode.open()
    decode.close(moved(of()), [])
    row, slow = {"bytes": 8192, "p50": 50.0, "p99": 60.0}, {"bytes": 8192, "p50": 5_000_000.0, "p99": 6_000_000.0}
    one_token = {"tokens": 1, "tokens_per_second": 9.0, "first_token_seconds": 0.05}
    small = {"bytes": 1024, "p50": 5.0, "p99": 6.0}
    # Drafts make three tokens of each pass.
    drafted = window({"drafted": 3})
    drafted.open()
    drafted.close(moved(of()), [])
    found["the fabric's share of a drafted token"] = [str(drafted.decode([row], [RUN]))]
    found["the fabric's share of a token"] = [
        str(decode.decode(rows, runs))
        for rows, runs in (
            ([row], [RUN, RUN | {"tokens_per_second": 1.0}]),
            ([slow], [RUN]),
            ([slow], [one_token]),
            ([small, row], [RUN]),
            ([small], [RUN]),
            ([], [RUN]),
            ([row], []),
        )
    ]
    stored.compare("ledger_windows", found)


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
    one = window({})
    one.entries = {str(rank): Entry(each, Bytes(1, 1, 1), 0, 0) for rank, each in enumerate(entries)}
    assert one.as_dict()["verdict"] == verdict
