# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test predicted bytes against measured ones, and the verdict that follows from them."""

import math
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.exchange import (
    Bytes,
    Choice,
    Choices,
    Collective,
    Scope,
    Shape,
    Split,
    Work,
    collectives,
    drafting,
    duration,
    exchanged,
    fabric_seconds,
    predict,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.ledger import (
    doubt,
    judge,
    scheduler_bytes,
    work_between,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.metrics import parse_metrics
from hypothesis import given
from hypothesis import strategies as st

LLAMA = {"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 32000}
TP2 = Split(nodes=2, tp=2, pp=1)


@pytest.mark.parametrize(
    ("batch", "measured", "simple"),
    [(1, 81_110_568, 40_609_077), (4, 300_510_408, 157_134_304), (16, 631_456_556, 627_615_152)],
)
def test_sglang_exchanges_what_is_predicted(batch: int, measured: int, simple: int) -> None:
    """SGLang 0.5.16 at TP 2 over Socket, 128 tokens, by tests/gpu/byte_ledger.py; ``simple``: NCCL_PROTO=Simple."""
    shape = Shape.read({"hidden_size": 2048, "num_hidden_layers": 16, "vocab_size": 8192})
    predicted = predict(shape, TP2, Work(8 * batch, 1, 128 * batch, 128))
    assert predicted.usual == pytest.approx(measured, rel=0.02)
    # What protocol Simple moves without the headers of TCP, which a small message has most of.
    assert 0.93 * simple < predicted.low <= simple
    assert judge(predicted, 0, measured).verdict == judge(predicted, 0, simple).verdict == "tcp"


def test_a_pass_has_the_collectives_of_sglang() -> None:
    shape = Shape.read(LLAMA)
    assert collectives(shape, TP2, tokens=4, sampled=1) == [("reduce", 65, 4 * 8192), ("gather", 1, 64000)]
    # A tensor-parallel group inside a node uses no network.
    assert collectives(shape, Split(nodes=1, tp=2, pp=1), 4, 1) == []
    assert collectives(shape, Split(nodes=2, tp=2, pp=2), 4, 1) == [("send", 1, 65536)]
    assert collectives(shape, STAGES, 4, 1) == [("reduce", 33, 32768), ("gather", 1, 64000), ("send", 1, 65536)]


@pytest.mark.parametrize(
    ("config", "blocks"),
    [
        (LLAMA, 64),
        ({"architectures": ["NemotronHForCausalLM"], **{k: v for k, v in LLAMA.items() if k != "architectures"}}, 32),
        ({"architectures": ["Gemma4ForConditionalGeneration"], "text_config": LLAMA | {"enable_moe_block": True}}, 96),
    ],
)
def test_the_blocks_of_a_layer_follow_the_architecture(config: dict[str, Any], blocks: int) -> None:
    assert Shape.read(config).blocks == blocks


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({}, "has no hidden_size, num_hidden_layers, vocab_size"),
        (LLAMA | {"hidden_size": 0}, "has no hidden_size"),
        (LLAMA | {"hidden_size": 4096.0, "vocab_size": "32000"}, "has no hidden_size, vocab_size"),
        (LLAMA | {"num_hidden_layers": True, "vocab_size": -1}, "has no num_hidden_layers, vocab_size"),
        (LLAMA | {"hidden_size_per_layer_input": 256}, "embeddings per layer"),
    ],
)
def test_a_model_that_cannot_be_predicted_is_named(config: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Shape.read(config)


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["--moe-a2a-backend", "deepep"], "--moe-a2a-backend deepep"),
        (["--dp-size=2"], "--dp-size 2"),
        (["--enable-dp-attention"], "--enable-dp-attention"),
        (["--speculative-algorithm", "EAGLE"], "number of drafts open"),
        (["--moe-dense-tp-size", "1"], "--moe-dense-tp-size 1"),
        (["--enable-two-batch-overlap"], "--enable-two-batch-overlap"),
        (["--enable-quant-communications"], "--enable-quant-communications"),
        (["--enable-fp32-lm-head"], "--enable-fp32-lm-head"),
        (["--speculative-moe-a2a-backend", "deepep"], "--speculative-moe-a2a-backend"),
        (["--enable-single-batch-overlap"], "--enable-single-batch-overlap"),
        (["--enable-hierarchical-cache"], "--enable-hierarchical-cache"),
        (["--hicache-storage-backend", "mooncake"], "--hicache-storage-backend mooncake"),
        (["--disaggregation-mode=prefill"], "--disaggregation-mode prefill"),
        (["--enable-prefill-context-parallel"], "--enable-prefill-context-parallel"),
        (["--dcp-size", "2"], "--dcp-size 2"),
    ],
)
def test_a_division_that_cannot_be_predicted_is_named(argv: list[str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Split.read([*argv, "--tp-size", "2"], 2)


def test_drafts_are_read_and_counted() -> None:
    argv = ["--tp-size", "4", "--speculative-algorithm=NEXTN", "--speculative-num-steps", "3"]
    split = Split.read(argv, 4)
    assert split == Split(4, 4, 1, draft_steps=3, draft_tokens=4)
    assert Split.read([*argv, "--speculative-num-draft-tokens", "6"], 4).draft_tokens == 6
    assert Split.read([*argv[:2], *argv[3:], "--speculative-num-draft-tokens", "6"], 4) == Split(4, 4, 1, 0, 1)
    assert Split.read([], 2) == Split(2, 1, 1)
    shape, work = Shape.read(LLAMA), Work(0, 0, rows=10, decode_passes=10)
    plain = predict(shape, Split(4, 4, 1), work)
    drafted = predict(shape, split, work)
    assert drafted.low == pytest.approx(4 * plain.low, rel=0.1)
    assert drafted.usual > 2 * plain.usual
    # A draft has one layer with two blocks, its own embedding, and logits for each token that it proposes.
    token = 8192
    reduces, gathers = (
        [("reduce", 3, each * token) for each in (8, 2, 2)],
        [("gather", 1, n * 64000) for n in (8, 2, 2)],
    )
    assert drafting(shape, split, 2) == [one for pair in zip(reduces, gathers, strict=True) for one in pair]
    assert drafting(shape, Split(1, 4, 1, draft_steps=3, draft_tokens=4), 2) == []


M = 1 << 20
STAGES = Split(4, 2, 2)
DRAFTS = Split(2, 2, 1, draft_steps=2, draft_tokens=3)


def R(size: float, number: float = 1) -> Collective:
    return Collective("reduce", number, size)


def G(size: float, number: float = 1) -> Collective:
    return Collective("gather", number, size)


def S(size: float, number: float = 1) -> Collective:
    return Collective("send", number, size)


def known(kind: str, size: int, algorithm: str, protocol: str = "SIMPLE", trees: Any = None) -> Choices:
    """Return what NCCL said of one size, and of the trees of pod g."""
    choices = Choices(4)
    choices.sizes[kind][size] = Choice(algorithm, protocol, (0, 1))
    choices.neighbours |= {"g": trees} if trees else {}
    return choices


@pytest.mark.parametrize(
    ("one", "split", "pod", "choices", "least", "expected"),
    [
        (R(8192, 3), TP2, "g", None, 1, (49152, 100584, 101304)),
        (R(32768), TP2, "g", None, 1, (65536, 131832, 132072)),
        (R(32769), TP2, "g", None, 1, (65538, 66298, 132076)),
        (R(M), TP2, "g", None, 1, (2097152, 2097912, 4195304)),
        (R(M + 1), TP2, "g", None, 1, (2097154, 2097914, 2098154)),
        (R(4 * M), TP2, "g", None, 0.25, (8388608, 8389368, 16778216)),
        (R(8192), Split(4, 4, 1), "g", None, 1, (16384, 51432, 101304)),
        (R(3 * M), Split(4, 4, 1), "g", None, 1, (6291456, 9439464, 37751736)),
        (R(3 * M + 1), Split(4, 4, 1), "g", None, 1, (6291458, 9439467, 18877374)),
        (R(8192), Split(4, 4, 1), None, None, 1, (98304, 205728, 208608)),
        (R(8192), Split(8, 8, 1), "g", None, 1, (16384, 62664, 121688)),
        (R(8192), Split(8, 8, 1), None, None, 1, (229376, 501312, 973504)),
        (G(8192, 2), Split(4, 4, 1), "g", None, 1, (24576, 51432, 52152)),
        (G(8192), Split(4, 4, 1), None, None, 1, (49152, 102864, 104304)),
        (G(8192), STAGES, "g", None, 1, (0, 16764, 16884)),
        (R(M), Split(4, 4, 1), "g", known("reduce", M, "TREE", "LL"), 1, (4194304, 6292026, 12583662)),
        (R(M), Split(8, 8, 1), "g", known("reduce", M, "TREE", "LL"), 1, (4194304, 7340697, 12583787)),
        (R(M), Split(4, 4, 1), None, known("reduce", M, "TREE", "LL"), 1, (25165824, 25168104, 25168824)),
        (R(M), Split(4, 4, 1), "g", known("reduce", M, "TREE", "LL", {0: 1, 1: 2}), 1, (6291456, 6292026, 6292206)),
        (R(M), Split(4, 4, 1), "g", known("reduce", M, "RING", "LL"), 1, (6291456, 6293736, 6294456)),
        (R(M), Split(4, 4, 1), None, known("reduce", M, "RING"), 1, (12582912, 12592032, 12594912)),
        (G(M), Split(4, 4, 1), "g", known("gather", M, "RING", "LL"), 1, (3145728, 3146868, 3147228)),
        (S(1000, 3), STAGES, "g", None, 1, (1500, 3000, 12000)),
        (S(1000), STAGES, None, None, 1, (0, 0, math.inf)),
    ],
)
def test_the_bytes_of_a_collective(
    one: Collective, split: Split, pod: str | None, choices: Choices | None, least: float, expected: tuple[float, ...]
) -> None:
    """Ring: 2 (n - 1) / n messages; tree: an edge carries one up and one down; LL doubles; each has 190 bytes more."""
    scope = Scope(pod, choices) if choices else Scope(pod)
    assert exchanged([one], split, scope, least) == pytest.approx(expected, rel=1e-9)


LARGE, ODD = Shape(1 << 19, 4, 1000, 8), Shape(600_000, 4, 1000, 8)


@pytest.mark.parametrize(
    ("shape", "split", "work", "expected"),
    [
        (LARGE, TP2, Work(8, 1, 0, 0), (150996944, 151006164, 151008444)),
        (LARGE, TP2, Work(8, 2, 0, 0), (150998944, 151017384, 302016888)),
        (ODD, TP2, Work(3, 2, 0, 0), (64804000, 64822440, 64827000)),
        (LARGE, TP2, Work(0, 0, 4, 4), (75505472, 75542352, 75551472)),
        (LARGE, TP2, Work(0, 0, 8, 4, ()), (151010944, 151055824, 302059888)),
        (LARGE, TP2, Work(0, 0, 8, 4, (4,)), (151010944, 151055824, 1208239552)),
        (ODD, TP2, Work(0, 0, 3, 2, ()), (64806000, 64826440, 64831000)),
        (LARGE, DRAFTS, Work(0, 0, 4, 4), (226516416, 327317872, 327333712)),
        (LARGE, DRAFTS, Work(0, 0, 8, 4, (4,)), (453032832, 654585584, 2819732288)),
        (LARGE, STAGES, Work(2, 1, 4, 4), (69206016, 75538372, 113293708)),
    ],
)
def test_the_bytes_of_the_work(shape: Shape, split: Split, work: Work, expected: tuple[float, ...]) -> None:
    """NCCL's choice for one token is known, and does not count for a mean of two."""
    scope = Scope("g", known("reduce", M, "RING"))
    assert predict(shape, split, work, scope) == pytest.approx(expected, rel=1e-9)


TREES = "NCCL INFO Trees [0] 1/-1/-1->2->0 [1] -1/-1/-1->2->3"
OTHER_TREES = "NCCL INFO Trees [0] 1/-1/-1->2->-1 [1] -1/-1/-1->2->3"


@pytest.mark.parametrize(
    ("lines", "channels", "mean"),
    [
        ([TREES], (0, 1), 1.5),
        ([TREES], (1, 1), 1.0),
        ([TREES, TREES], (0, 0), 2.0),
        ([TREES], (0, 2), None),
        ([TREES], (1, 0), None),
        ([TREES, OTHER_TREES], (0, 0), None),
        ([], (0, 0), None),
    ],
)
def test_the_neighbours_of_a_rank_are_read(lines: list[str], channels: tuple[int, int], mean: float | None) -> None:
    assert Choices(4).read("g", lines).edges("g", channels) == mean


def test_a_size_for_which_communicators_choose_otherwise_is_unknown() -> None:
    line = "NCCL INFO {}: {} Bytes -> Algo RING proto {} channel{{Lo..Hi}}={{0..1}}"
    said = [("AllReduce", 8, "LL"), ("AllReduce", 8, "LL"), ("AllReduce", 16, "LL"), ("AllGather", 8, "SIMPLE")]
    choices = Choices(4).read("g", [line.format(*words) for words in said])
    assert [choices.of("reduce", size) is not None for size in (4, 8, 12, 16, 20)] == [False, True, True, True, False]
    assert choices.of("gather", 32) == Choice("RING", "SIMPLE", (0, 1))
    choices.read("h", [line.format("AllReduce", 16, "SIMPLE")])
    assert [choices.of("reduce", size) is not None for size in (8, 12, 16)] == [True, False, False]


@pytest.mark.parametrize(("protocol", "factor"), [("LL", 2.0), ("LL128", 128 / 120), ("SIMPLE", 1.0)])
def test_a_protocol_adds_its_flags(protocol: str, factor: float) -> None:
    assert Choice("RING", protocol, (0, 0)).factor == pytest.approx(factor)
    with pytest.raises(ValueError, match=f"NCCL takes NVLS with {protocol}, whose exchange is not known"):
        _factor = Choice("NVLS", protocol, (0, 0)).factor


PAGE = """
sglang:cuda_graph_passes_total{{mode="decode_cuda_graph",tp_rank="0"}} {passes}
sglang:cuda_graph_passes_total{{mode="prefill_none",tp_rank="0"}} {prefills}
sglang:realtime_tokens_total{{mode="decode",tp_rank="0"}} {rows}
sglang:realtime_tokens_total{{mode="prefill_compute",tp_rank="0"}} {prompt}
sglang:realtime_tokens_total{{mode="prefill_cache",tp_rank="0"}} 99
"""


def test_the_work_of_a_window_comes_from_the_counters() -> None:
    before = parse_metrics(PAGE.format(passes=10, prefills=1, rows=40, prompt=8))
    after = parse_metrics(PAGE.format(passes=110, prefills=3, rows=440, prompt=24))
    assert work_between(before, after) == Work(16, 2, 400, 100)
    assert work_between(before, after).batch == 4
    # A server that has counted nothing before.
    assert work_between(parse_metrics(""), after) == Work(24, 3, 440, 110)
    for passes, rows in ((10, 80), (20, 40)):
        with pytest.raises(ValueError, match="count no decode passes"):
            work_between(before, parse_metrics(PAGE.format(prefills=1, prompt=8, passes=passes, rows=rows)))
    after.counters["spec_verify_calls_total"] = 160.0
    assert work_between(before, after).rows == 160
    # A pass that verifies drafts has a row per verified sequence, and each of them may make several tokens.
    before.counters["spec_verify_calls_total"], after.counters["spec_verify_calls_total"] = 10.0, 170.0
    assert work_between(before, after) == Work(16, 2, 160, 100)
    with pytest.raises(ValueError, match="count no decode passes"):
        work_between(after, after)
    restarted = parse_metrics(PAGE.format(passes=1, prefills=1, rows=4, prompt=8))
    with pytest.raises(ValueError, match="count no decode passes"):
        work_between(before, restarted)


def test_a_stage_of_a_pipeline_that_gathers_no_logits_moves_enough_bytes() -> None:
    shape = Shape.read(LLAMA | {"vocab_size": 151936})
    # What a rank of the first stage exchanges with protocol Simple: 16 of 32 layers, the embedding, and the hidden
    # states with the residual for the second stage.
    reduces, send = 33 * 2 * 64 * 8192, 2 * 64 * 8192
    predicted = predict(shape, Split(nodes=4, tp=2, pp=2), Work(0, 0, 64, 1))
    assert judge(predicted, reduces + send, 0).verdict == "rdma"
    # Without a pipeline every rank gathers them.
    assert predict(shape, TP2, Work(0, 0, 64, 1)).low > 2 * 65 * 64 * 8192 + 64 * 151936


NEEDED = Bytes(100e6, 150e6, 200e6)


@pytest.mark.parametrize(
    ("rdma", "tcp", "verdict"),
    [
        (150e6, 0, "rdma"),
        (91e6, 0, "rdma"),
        (219e6, 0, "rdma"),
        (88e6, 0, "unexplained"),
        (222e6, 0, "unexplained"),
        (100e6, 8.9e6, "rdma"),
        (100e6, 9.1e6, "mixed"),
        (100e6, 45e6, "mixed"),
        (70e6, 30e6, "mixed"),
        (30e6, 150e6, "mixed"),
        (60e6, 25e6, "unexplained"),
        (0, 150e6, "tcp"),
        (0, 90e6, "tcp"),
        (0, 90e6 - 1, "unexplained"),
        (90e6, 0, "rdma"),
        (90e6 - 1, 0, "unexplained"),
        (70e6, 20e6, "mixed"),
        (70e6, 20e6 - 1, "unexplained"),
        (8.9e6, 900e6, "tcp"),
        (9.1e6, 900e6, "mixed"),
        (80e6, 70e6, "mixed"),
        (0, 0, "unexplained"),
        (40e6, 0, "unexplained"),
        (0, 40e6, "unexplained"),
        (900e6, 0, "unexplained"),
    ],
)
def test_the_bytes_alone_name_the_path(rdma: float, tcp: float, verdict: str) -> None:
    assert judge(NEEDED, int(rdma), int(tcp)).verdict == verdict


@pytest.mark.parametrize(
    ("said", "rdma", "tcp", "words"),
    [
        ("rdma", 150e6, 0, ""),
        ("tcp", 0, 150e6, ""),
        ("rdma", 0, 150e6, "Doubt the log: a library without a log line"),
        ("tcp", 150e6, 0, "Doubt the log: a library without a log line"),
        ("rdma", 150e6, 90e6, "the ledger does not see which program sent the bytes by TCP"),
        ("rdma", 100e6, 90e6, "the ledger does not see which program sent the bytes by TCP"),
        ("tcp", 150e6, 90e6, "Doubt the log: a library without a log line"),
        ("rdma", 70e6, 90e6, "Doubt the log: a library without a log line"),
        # A download beside silent RDMA devices, and two groups on one NIC.
        ("rdma", 0, 900e6, "Doubt the log: a library without a log line"),
        ("rdma", 300e6, 0, "Doubt the prediction: more bytes moved than the model needs"),
        ("rdma", 1e6, 1e6, "Doubt the log: fewer bytes moved than the model needs"),
        ("rdma", 900e6, 0, "Doubt the prediction: more bytes moved than the model needs"),
        ("unknown", 150e6, 0, "the log says unknown, the bytes of g-0 say rdma: 100.0 to 200.0 MB predicted"),
    ],
)
def test_a_contradiction_says_which_of_the_two_to_doubt(said: str, rdma: float, tcp: float, words: str) -> None:
    why = doubt(said, {"g-0": judge(NEEDED, int(rdma), int(tcp))})
    assert words in why
    assert bool(why) == bool(words)
    if said in ("rdma", "tcp"):
        agrees = judge(NEEDED, 0, int(150e6)) if said == "tcp" else judge(NEEDED, int(150e6), 0)
        assert words in doubt(said, {"g-1": agrees, "g-0": judge(NEEDED, int(rdma), int(tcp))})


@pytest.mark.parametrize(
    ("elsewhere", "named"), [({"mlx8": 1_000_000}, False), ({"mlx9": 4_000_000, "mlx8": 6_000_000}, True), ({}, False)]
)
def test_bytes_of_devices_beside_the_plan_are_named(elsewhere: dict[str, int], named: bool) -> None:
    why = doubt("rdma", {"g-0": judge(NEEDED, 0, 0, elsewhere=elsewhere)})
    assert ("mlx8 6.0 MB, mlx9 4.0 MB" in why) is named


def test_an_entry_as_data_has_all_that_was_counted() -> None:
    entry = judge(NEEDED, int(30e6), int(150e6), 5.0, ("mlx1",), {"net1": 7, "net2": 9}, {"mlx8": 8})
    told = entry.as_dict()
    assert "net2 0.0 MB, net1 0.0 MB" in told.pop("msg")
    assert told == {
        "verdict": "mixed",
        "predicted_bytes": {"low": 100_000_000, "usual": 150_000_000, "high": 200_000_000},
        "rdma_bytes": 30_000_000,
        "tcp_bytes": 150_000_000,
        "interfaces": {"net1": 7, "net2": 9},
        "other_devices": {"mlx8": 8},
        "silent_rails": ["mlx1"],
    }
    assert "none of them by mlx1" in entry.msg


@given(
    low=st.floats(1e6, 1e12),
    spread=st.floats(1, 3),
    share=st.floats(0, 1),
    noise=st.floats(0, 0.089),
    rdma=st.booleans(),
)
def test_the_predicted_bytes_on_one_path_always_name_it(
    low: float, spread: float, share: float, noise: float, rdma: bool
) -> None:
    needed = Bytes(low, low, low * spread)
    moved, other = int(low * (1 + share * (spread - 1))), int(low * noise)
    found = judge(needed, *((moved, other) if rdma else (other, moved)))
    assert found.verdict == ("rdma" if rdma else "tcp")


@pytest.mark.parametrize(
    ("rdma", "tcp", "scheduler", "verdict", "unclear"),
    [
        # Fewer bytes than a second path has, so it does not matter who sent them.
        (150e6, 8.9e6, 0, "rdma", False),
        (150e6, 8.9e6, 60e6, "rdma", False),
        # The scheduler cannot have sent enough for a path of its own.
        (150e6, 9.1e6, 8.9e6, "mixed", False),
        # The same bytes may be the scheduler's or those of a second communicator.
        (150e6, 21e6, 30e6, "unexplained", True),
        (150e6, 38e6, 30e6, "unexplained", True),
        (150e6, 40e6, 30e6, "mixed", False),
        (70e6, 38e6, 30e6, "unexplained", True),
        (70e6, 40e6, 30e6, "mixed", False),
        # Other reasons to doubt are not hidden by it.
        (60e6, 25e6, 30e6, "unexplained", False),
        (900e6, 25e6, 30e6, "unexplained", False),
        # TCP is the worse verdict, so nothing is hidden by it.
        (0, 150e6, 300e6, "tcp", False),
        (0, 80e6, 70e6, "unexplained", False),
    ],
)
def test_bytes_that_may_be_the_schedulers_prove_no_path(
    rdma: float, tcp: float, scheduler: float, verdict: str, unclear: bool
) -> None:
    entry = judge(NEEDED, int(rdma), int(tcp), scheduler)
    assert (entry.verdict, entry.unclear) == (verdict, unclear)
    why = doubt("tcp" if rdma == 0 else "rdma", {"g-0": entry})
    assert ("Doubt neither yet" in why) == unclear
    shown = f"{rdma / 1e6:.1f} MB by RDMA and {tcp / 1e6:.1f} MB by TCP counted"
    assert shown + (f", of which the scheduler may have sent {scheduler / 1e6:.1f}" if unclear else "") in entry.msg


def test_the_scheduler_sends_all_the_time_while_it_waits_and_once_per_pass_while_it_computes() -> None:
    assert scheduler_bytes(2.0, Work(8, 1, 64, 64)) == 2 * 3e6 + 65 * 4096
    assert scheduler_bytes(-1.0, Work(0, 0, 1, 1)) == 4096


@given(low=st.floats(1e6, 1e12), idle=st.floats(0, 1e4), share=st.floats(0.1, 1))
def test_a_tenth_of_the_bytes_by_tcp_never_passes_as_rdma(low: float, idle: float, share: float) -> None:
    """However long the window is, and however much the scheduler may have sent in it."""
    tcp = int(low * share) + 1
    entry = judge(Bytes(low, low, 2 * low), int(2 * low) - tcp, tcp, scheduler_bytes(idle, Work(0, 0, 1, 1)))
    assert entry.verdict in ("mixed", "unexplained")


def test_the_time_of_the_fabric_is_interpolated() -> None:
    times = {8192: 50e-6, 16384: 60e-6, 65536: 100e-6}
    assert duration(times, 1000) == 50e-6
    assert duration(times, 12288) == pytest.approx(55e-6)
    assert duration(times, 16384) == pytest.approx(60e-6)
    assert duration(times, 40960) == pytest.approx(80e-6)
    assert duration(times | {8192: 10e-6}, 12288) == pytest.approx(35e-6)
    assert duration(times, 1 << 20) == pytest.approx(100e-6 + (1048576 - 65536) * 40e-6 / 49152)
    assert duration({8192: 50e-6}, 65536) == 50e-6
    shape = Shape.read(LLAMA)
    seconds = fabric_seconds(shape, TP2, 1, times)
    assert seconds == pytest.approx(65 * 50e-6 + 0.5 * duration(times, 64000))
    # The sends of a pipeline and the drafts count too.
    flat = {1024: 1.0, M: 1.0}
    assert fabric_seconds(shape, STAGES, 2, flat) == 33 + 0.5 + 0.5
    assert fabric_seconds(shape, DRAFTS, 2, flat) == 65 + 0.5 + 2 * (3 + 0.5)
    assert fabric_seconds(shape, Split(2, 2, 1, 0, 3), 2, {1: 1, M: M}) == 65 * 6 * 8192 + 0.5 * 6 * 64000
