# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare predicted bytes, and the verdicts that follow from them, with measured bytes and with stored texts."""

from collections.abc import Callable
from typing import Any

import pytest
import stored
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
TP2, TP4, TP8 = (Split(nodes=number, tp=number, pp=1) for number in (2, 4, 8))
STAGES = Split(4, 2, 2)
DRAFTS = Split(2, 2, 1, draft_steps=2, draft_tokens=3)
M = 1 << 20


def told(make: Callable[..., Any], *given: Any) -> str:
    """Return what a function makes of the values, or why it refuses them; numbers without their last digits."""
    try:
        found = make(*given)
    except ValueError as error:
        return f"refused: {error}"
    if isinstance(found, Bytes):
        return ", ".join(f"{each:.9g}" for each in found)
    return f"{found:.9g}" if isinstance(found, float) else str(found)


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


CONFIGS: list[dict[str, Any]] = [
    LLAMA,
    LLAMA | {"architectures": ["NemotronHForCausalLM"]},
    {"architectures": ["Gemma4ForConditionalGeneration"], "text_config": LLAMA | {"enable_moe_block": True}},
    {},
    LLAMA | {"hidden_size": 0},
    LLAMA | {"hidden_size": 4096.0, "vocab_size": "32000"},
    LLAMA | {"num_hidden_layers": True, "vocab_size": -1},
    LLAMA | {"hidden_size_per_layer_input": 256},
]
DRAFTED = "--tp-size 4 --speculative-algorithm=NEXTN --speculative-num-steps 3"
ARGVS = f"""
--tp-size 2 --moe-a2a-backend deepep
--dp-size=2
--enable-dp-attention
--speculative-algorithm EAGLE
--moe-dense-tp-size 1
--enable-two-batch-overlap
--enable-quant-communications
--enable-fp32-lm-head
--speculative-moe-a2a-backend deepep
--enable-single-batch-overlap
--enable-hierarchical-cache
--hicache-storage-backend mooncake
--disaggregation-mode=prefill
--enable-prefill-context-parallel
--dcp-size 2
{DRAFTED}
{DRAFTED} --speculative-num-draft-tokens 6
--tp-size 4 --speculative-num-steps 3 --speculative-num-draft-tokens 6
"""


def test_shapes_and_divisions_are_as_stored() -> None:
    found = {"shapes": [f"{config}: {told(Shape.read, config)}" for config in CONFIGS]}
    found["divisions of four nodes"] = [f"{line}: {told(Split.read, line.split(), 4)}" for line in ARGVS.splitlines()]
    shape = Shape.read(LLAMA)
    for split in (TP2, TP4, STAGES, Split(1, 2, 1), Split(2, 2, 2), Split(4, 4, 1, 3, 4), Split(1, 4, 1, 3, 4)):
        made = [*collectives(shape, split, 4, 1), "drafts", *drafting(shape, split, 2)]
        found[f"collectives of {split}"] = [*map(str, made), told(predict, shape, split, Work(0, 0, 10, 10))]
    stored.compare("ledger_shapes", found)


def known(kind: str, size: int, algorithm: str, protocol: str = "SIMPLE", trees: Any = None) -> Choices:
    """Return what NCCL said of one size, and of the trees of pod g."""
    choices = Choices(4)
    choices.sizes[kind][size] = Choice(algorithm, protocol, (0, 1))
    choices.neighbours |= {"g": trees} if trees else {}
    return choices


TREE, OPEN = known("reduce", M, "TREE", "LL"), Choices(0)
LARGE, ODD = Shape(1 << 19, 4, 1000, 8), Shape(600_000, 4, 1000, 8)
# Kind, number and bytes of a collective, division, pod, NCCL's choices, and the least part of a message
COLLECTIVES: list[tuple[Any, float, float, Split, str | None, Choices, float]] = [
    *(("reduce", 3, 8192, split, pod, OPEN, 1) for split in (TP2, TP4, TP8) for pod in ("g", None)),
    *(("reduce", 1, size, TP2, "g", OPEN, 1) for size in (32768, 32769, M, M + 1)),
    ("reduce", 1, 4 * M, TP2, "g", OPEN, 0.25),
    *(("reduce", 1, size, TP4, "g", OPEN, 1) for size in (3 * M, 3 * M + 1)),
    *(("gather", 2, 8192, split, pod, OPEN, 1) for split in (TP4, STAGES) for pod in ("g", None)),
    *(("reduce", 1, M, split, pod, TREE, 1) for split in (TP4, TP8) for pod in ("g", None)),
    ("reduce", 1, M, TP4, "g", known("reduce", M, "TREE", "LL", {0: 1, 1: 2}), 1),
    ("reduce", 1, M, TP4, "g", known("reduce", M, "RING", "LL"), 1),
    ("reduce", 1, M, TP4, None, known("reduce", M, "RING"), 1),
    ("gather", 1, M, TP4, "g", known("gather", M, "RING", "LL"), 1),
    *(("send", 3, 1000, STAGES, pod, OPEN, 1) for pod in ("g", None)),
    *(("reduce", 1, M, TP4, "g", known("reduce", M, "NVLS", each), 1) for each in ("LL", "LL128", "SIMPLE")),
    *(("reduce", 1, M, TP4, "g", known("reduce", M, "PAT", each), 1) for each in ("LL", "LL128", "SIMPLE")),
]
# NCCL's choice for one token is known, and does not count for a mean of two.
WORKS = [
    *((LARGE, TP2, Work(8, passes, 0, 0)) for passes in (1, 2)),
    (ODD, TP2, Work(3, 2, 0, 0)),
    (LARGE, TP2, Work(0, 0, 4, 4)),
    *((LARGE, TP2, Work(0, 0, 8, 4, captured)) for captured in ((), (4,))),
    (ODD, TP2, Work(0, 0, 3, 2, ())),
    (LARGE, DRAFTS, Work(0, 0, 4, 4)),
    (LARGE, DRAFTS, Work(0, 0, 8, 4, (4,))),
    (LARGE, STAGES, Work(2, 1, 4, 4)),
]
TIMES = {8192: 50e-6, 16384: 60e-6, 65536: 100e-6}


def test_predicted_bytes_are_as_stored() -> None:
    """Ring: 2 (n - 1) / n messages; tree: an edge carries one up and one down; LL doubles; each has 190 bytes more."""
    found: dict[str, list[str]] = {"of a collective": [], "of the work": [], "durations": []}
    for kind, number, size, split, pod, choices, least in COLLECTIVES:
        words = f"{number} {kind} of {size}, {split.nodes} nodes, pp {split.pp}, pod {pod}, least {least}"
        said = [f"{choice} {choices.neighbours}" for sizes in choices.sizes.values() for choice in sizes.values()]
        result = told(exchanged, [Collective(kind, number, size)], split, Scope(pod, choices), least)
        found["of a collective"].append(f"{', '.join([words, *said])}: {result}")
    for shape, split, work in WORKS:
        scope = Scope("g", known("reduce", M, "RING"))
        found["of the work"].append(f"{shape} {split} {work}: {told(predict, shape, split, work, scope)}")
    for size in (1000, 12288, 16384, 40960, M):
        found["durations"].append(f"{size} bytes: {told(duration, TIMES, size)}")
    found["durations"] += [told(duration, TIMES | {8192: 10e-6}, 12288), told(duration, {8192: 50e-6}, 65536)]
    shape = Shape.read(LLAMA)
    # The sends of a pipeline and the drafts count too.
    for split, batch, times in (
        (TP2, 1, TIMES),
        (STAGES, 2, {1024: 1.0, M: 1.0}),
        (DRAFTS, 2, {1024: 1.0, M: 1.0}),
        (Split(2, 2, 1, 0, 3), 2, {1: 1.0, M: float(M)}),
    ):
        found["durations"].append(f"{split}, batch {batch}: {told(fabric_seconds, shape, split, batch, times)}")
    stored.compare("ledger_bytes", found)


TREES = "NCCL INFO Trees [0] 1/-1/-1->2->0 [1] -1/-1/-1->2->3"
OTHER_TREES = "NCCL INFO Trees [0] 1/-1/-1->2->-1 [1] -1/-1/-1->2->3"
EDGES = [([TREES], channels) for channels in ((0, 1), (1, 1), (0, 2), (1, 0))]
EDGES += [(lines, (0, 0)) for lines in ([TREES, TREES], [TREES, OTHER_TREES], [])]
LINE = "g:1:1 [0] NCCL INFO {}: {} Bytes -> Algo {} proto {} channel{{Lo..Hi}}={{0..{}}}"
SAID = "AllReduce 8 RING LL 1; AllReduce 8 RING LL 1; AllReduce 16 RING LL 1; AllGather 8 RING SIMPLE 1"
# A size between two has their choice only if they agree. Two that agree in name, and share the message between other
# channels, leave the trees open.
CHOICES = [
    SAID,
    f"{SAID}; AllReduce 16 RING SIMPLE 1",
    *(f"AllReduce 8 TREE LL 1; AllReduce 16 {above}" for above in ("TREE LL 1", "TREE LL 3", "RING LL 1")),
]
PAGE = """
sglang:cuda_graph_passes_total{{mode="decode_cuda_graph",tp_rank="0"}} {}
sglang:cuda_graph_passes_total{{mode="prefill_none",tp_rank="0"}} {}
sglang:realtime_tokens_total{{mode="decode",tp_rank="0"}} {}
sglang:realtime_tokens_total{{mode="prefill_compute",tp_rank="0"}} {}
sglang:realtime_tokens_total{{mode="prefill_cache",tp_rank="0"}} 99
"""
BEFORE, AFTER = PAGE.format(10, 1, 40, 8), PAGE.format(110, 3, 440, 24)
# A pass that verifies drafts has a row per verified sequence, and each of them may make several tokens.
VERIFIED = "sglang:spec_verify_calls_total {}\n"
PAGES = {
    "work": (BEFORE, AFTER),
    "nothing before": ("", AFTER),
    "verified": (BEFORE, AFTER + VERIFIED.format(160)),
    "verified before": (BEFORE + VERIFIED.format(10), AFTER + VERIFIED.format(170)),
    "no passes": (BEFORE, PAGE.format(10, 1, 80, 8)),
    "no tokens": (BEFORE, PAGE.format(20, 1, 40, 8)),
    "nothing more": (AFTER, AFTER),
    "restarted": (BEFORE, PAGE.format(1, 1, 4, 8)),
}


def test_what_nccl_and_the_server_say_is_read_as_stored() -> None:
    edges = [
        f"{len(lines)} lines, channels {each}: {Choices(4).read('g', lines).edges('g', each)}" for lines, each in EDGES
    ]
    found = {"neighbours": [*edges, str(Choices(4).read("g", [TREES, OTHER_TREES]).neighbours)], "work": []}
    for words in CHOICES:
        choices = Choices(4)
        for number, each in enumerate(words.split("; ")):
            choices.read(f"pod {number}", [LINE.format(*each.split())])
        found[words] = [f"reduce of {size}: {choices.of('reduce', size)}" for size in (4, 8, 12, 16, 20)]
        found[words].append(f"gather of 32: {choices.of('gather', 32)}")
    for name, pages in PAGES.items():
        found["work"].append(f"{name}: {told(work_between, *map(parse_metrics, pages))}")
    stored.compare("ledger_read", found)


NEEDED = Bytes(100e6, 150e6, 200e6)
# MB by RDMA, by TCP, and perhaps by the scheduler
MOVED = """
150 0 0; 91 0 0; 219 0 0; 88 0 0; 222 0 0; 100 8.9 0; 100 9.1 0; 100 45 0; 70 30 0; 30 150 0; 60 25 0; 0 150 0; 0 90 0
0 89.999999 0; 90 0 0; 89.999999 0 0; 70 20 0; 70 19.999999 0; 8.9 900 0; 9.1 900 0; 80 70 0; 0 0 0; 40 0 0; 0 40 0
900 0 0; 300 0 0; 1 1 0; 150 90 0; 100 90 0; 70 90 0; 0 900 0
150 8.9 60; 150 9.1 8.9; 150 21 30; 150 38 30; 150 40 30; 70 38 30; 70 40 30; 60 25 30; 900 25 30; 0 150 300; 0 80 70
"""


def test_the_bytes_alone_name_the_path_and_a_contradiction_says_which_of_the_two_to_doubt() -> None:
    found: dict[str, list[str]] = {"MB by RDMA, by TCP, and perhaps by the scheduler": [], "doubts": []}
    verdicts, doubts = found.values()
    agrees = {"rdma": judge(NEEDED, 150_000_000, 0), "tcp": judge(NEEDED, 0, 150_000_000)}
    for words in MOVED.replace("\n", ";").strip("; ").split(";"):
        rdma, tcp, scheduler = (round(float(each) * 1e6) for each in words.split())
        entry = judge(NEEDED, rdma, tcp, scheduler)
        line = f"{words.strip()}: {entry.msg if entry.unclear else entry.verdict}"
        for said, right in agrees.items():
            if (
                why := doubt(said, {"g-1": right, "g-0": entry})
                .replace(entry.msg, "MSG")
                .replace(f"says {said}", "says SAID")
            ):
                doubts += [] if why in doubts else [why]
                line += f"; against {said} doubt {doubts.index(why) + 1}"
        verdicts.append(line)
    beside = [{"mlx8": 1_000_000}, {"mlx9": 4_000_000, "mlx8": 6_000_000}, {}]
    found["elsewhere"] = [doubt("rdma", {"g-0": judge(NEEDED, 0, 0, elsewhere=each)}) for each in beside]
    found["an unknown log"] = [doubt("unknown", {"g-0": judge(NEEDED, 150_000_000, 0)}, "plan")]
    entry = judge(NEEDED, 30_000_000, 150_000_000, 5.0, ("mlx1",), {"net1": 7, "net2": 9}, {"mlx8": 8})
    found["as data"] = [f"{name}: {value}" for name, value in entry.as_dict().items()]
    stored.compare("ledger_verdicts", found)


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


@given(low=st.floats(1e6, 1e12), idle=st.floats(0, 1e4), share=st.floats(0.1, 1))
def test_a_tenth_of_the_bytes_by_tcp_never_passes_as_rdma(low: float, idle: float, share: float) -> None:
    """However long the window is, and however much the scheduler may have sent in it."""
    tcp = int(low * share) + 1
    entry = judge(Bytes(low, low, 2 * low), int(2 * low) - tcp, tcp, scheduler_bytes(idle, Work(0, 0, 1, 1)))
    assert entry.verdict in ("mixed", "unexplained")
