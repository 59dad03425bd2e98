# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Predict the collectives of a forward pass and the bytes that they exchange. Private to the collection.

Source of the collectives: SGLang 0.5.16 (layers/linear.py, vocab_parallel_embedding.py, logits_processor.py, models/).
A pass over T tokens has one all-reduce of T x hidden size for the embedding and one for each attention, MLP, MoE or
Mamba block, and one all-gather of the logits of the sampled tokens. Activations have two bytes in every profile.
Measured with SGLang 0.5.16 at TP 2 over Socket, batches of 1, 4 and 16: the usual bytes are within 1.2 %
(tests/gpu/byte_ledger.py).
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from .._sglang.catalogue import options_of

# Read from NCCL's own lines which algorithm and protocol it takes for which message.
#
# Rank 0 prints a line per collective with subsystem TUNING (NVIDIA/nccl src/enqueue.cc, 2.24.3 to 2.30.7; releases
# before print numbers instead of names). The replay of a CUDA graph prints none. The size is that of a rank's own part,
# so an all-gather of n ranks has n times these bytes. Every rank prints its trees with subsystem INIT (src/init.cc).

_CHOICE = re.compile(
    r"(AllReduce|AllGather): (\d{1,15}) Bytes -> Algo (\w+) proto (\w+) channel\{Lo\.\.Hi\}=\{(\d{1,3})\.\.(\d{1,3})\}"
)
_TREES = re.compile(r"NCCL INFO Trees((?: \[\d{1,3}\] -?\d+/-?\d+/-?\d+->\d+->-?\d+)+)")
_TREE = re.compile(r"\[(\d+)\] (-?\d+)/(-?\d+)/(-?\d+)->\d+->(-?\d+)")
_KINDS = {"AllReduce": "reduce", "AllGather": "gather"}
PROTOCOLS = {"LL": 2.0, "LL128": 16 / 15, "SIMPLE": 1.0}
"""Bytes on the wire per byte of a message: LL sends four bytes of flags with four of data, LL128 eight with 120."""
_RINGS = {"RING", "PAT"}


class Choice(NamedTuple):
    """What NCCL takes for one size: its names of algorithm and protocol, and the channels that share the message."""

    algorithm: str
    protocol: str
    channels: tuple[int, int]

    @property
    def factor(self) -> float:
        """Return the bytes on the wire per byte of the message; raise ValueError for what is not modelled."""
        if self.algorithm not in {*_RINGS, "TREE"} or self.protocol not in PROTOCOLS:
            raise ValueError(f"NCCL takes {self.algorithm} with {self.protocol}, whose exchange is not known")
        return PROTOCOLS[self.protocol]


@dataclass
class Choices:
    """NCCL's choices by kind and bytes of the result, and the neighbours in each channel's tree by pod."""

    ranks: int
    sizes: dict[str, dict[int, Choice]] = field(default_factory=lambda: {"reduce": {}, "gather": {}})
    neighbours: dict[str, dict[int, int]] = field(default_factory=dict)
    _disputed: set[tuple[str, int]] = field(default_factory=set)

    def read(self, pod: str, lines: Iterable[str]) -> Choices:
        """Add what a pod's lines say. What communicators answer differently is unknown: lines don't name them."""
        for line in lines:
            if match := _CHOICE.search(line):
                kind = _KINDS[match[1]]
                size = int(match[2]) * (self.ranks if kind == "gather" else 1)
                choice = Choice(match[3], match[4], (int(match[5]), int(match[6])))
                if self.sizes[kind].setdefault(size, choice) != choice:
                    self._disputed.add((kind, size))
            elif match := _TREES.search(line):
                trees = {int(tree[0]): sum(int(rank) >= 0 for rank in tree[1:]) for tree in _TREE.findall(match[1])}
                if self.neighbours.setdefault(pod, trees) != trees:
                    self.neighbours[pod] = {}
        return self

    def of(self, kind: str, size: float) -> Choice | None:
        """Return NCCL's choice for a size, or that of both neighbouring sizes if they agree; None if it is unknown."""
        known = {each: one for each, one in self.sizes[kind].items() if (kind, each) not in self._disputed}
        below = max((each for each in known if each <= size), default=None)
        above = min((each for each in known if each >= size), default=None)
        if below is None or above is None:
            return None
        return known[below] if known[below] == known[above] else None

    def edges(self, pod: str, channels: tuple[int, int]) -> float | None:
        """Return the mean number of a pod's neighbours in the trees of these channels; None if NCCL did not say."""
        trees = self.neighbours.get(pod, {})
        wanted = range(channels[0], channels[1] + 1)
        return sum(trees[each] for each in wanted) / len(wanted) if wanted and all(c in trees for c in wanted) else None


WIDTH = 2
# Bytes around each message of a ring, and at each end of a tree's edge: headers and acknowledgements. Measured with
# Socket on two ranks: 215 bytes for the two messages of an all-reduce with protocol Simple, 368 to 410 with LL.
# Counters of payload have none.
_LEAST, _USUAL, _MOST = 0, 190, 250
# NCCL 2.28.9 chose LL, which doubles every byte, for 16 KiB and less, and Simple from 48 KiB on (two ranks, Socket).
_LL_UP_TO = 32768
# NCCL chooses LL to save latency, of which a ring has a share per further rank. The largest message with LL that was
# measured had 512 KiB at two ranks and 1 MiB at four, with 200 Gb/s.
_LL_AT_MOST = 1 << 20
# Neighbours of a rank in NCCL's trees: a parent and two children.
_TREE_EDGES = 3
# One value of these switches to collectives that are not NCCL's all-reduce, or splits the batch between the ranks.
_OTHER = {
    "--moe-a2a-backend": "none",
    "--speculative-moe-a2a-backend": "none",
    "--dp-size": "1",
    "--data-parallel-size": "1",
    "--attn-dp-size": "1",
    "--attn-cp-size": "1",
    "--attention-context-parallel-size": "1",
    "--dcp-size": "1",
    "--decode-context-parallel-size": "1",
    # The dense layers of a model with experts have ranks of their own; the default has no value.
    "--moe-dense-tp-size": "",
    "--disaggregation-mode": "null",
    "--hicache-storage-backend": "",
}
_OTHER_SWITCHES = {
    "--enable-dp-attention",
    "--enable-mscclpp",
    "--enable-sp-layernorm",
    "--enable-two-batch-overlap",
    "--enable-single-batch-overlap",
    "--enable-hierarchical-cache",
    "--enable-lmcache",
    "--enable-attn-tp-input-scattered",
    "--enable-scattered-sconv",
    "--enable-quant-communications",
    # They change the size of the logits that are gathered, or how.
    "--enable-fp32-lm-head",
    "--enable-tp-lm-head-all-to-all",
    "--enable-prefill-cp",
    "--enable-prefill-context-parallel",
    "--enable-nsa-prefill-context-parallel",
    "--enable-dsa-prefill-context-parallel",
    "--dllm-algorithm",
}


class Bytes(NamedTuple):
    """Bytes between the smallest and the largest possible value, and the usual value."""

    low: float
    usual: float
    high: float

    def times(self, factor: float) -> Bytes:
        """Return the bytes of several such exchanges."""
        return Bytes(self.low * factor, self.usual * factor, self.high * factor)


class Collective(NamedTuple):
    """Equal collectives of one forward pass; ``size`` is the size of the result in bytes."""

    kind: Literal["reduce", "gather", "send"]
    number: float
    size: float


@dataclass(frozen=True)
class Shape:
    """The values of a model's config.json that determine what its ranks exchange."""

    hidden: int
    layers: int
    vocabulary: int
    blocks: int

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Shape:
        """Return the shape of a language model; raise ValueError that names the missing value."""
        text = config.get("text_config") or config
        names = ("hidden_size", "num_hidden_layers", "vocab_size")
        # A bool is an int too, and nothing could be compared with a prediction of no bytes.
        given = {name: text.get(name) for name in names}
        usable = {name for name, size in given.items() if isinstance(size, int) and size > 0 and size is not True}
        if lacking := [name for name in names if name not in usable]:
            raise ValueError(f"config.json of the model has no {', '.join(lacking)}")
        if text.get("hidden_size_per_layer_input"):
            raise ValueError("the model has embeddings per layer, whose exchange is not known")
        hidden, layers, vocabulary = (int(text[name]) for name in names)
        if "NemotronH" in "".join(config.get("architectures") or ()):
            # A layer is either attention, Mamba or MLP.
            blocks = 1
        else:
            # Gemma 4 has an MLP beside the experts of each layer.
            blocks = 3 if text.get("enable_moe_block") else 2
        return cls(hidden, layers, vocabulary, layers * blocks)


@dataclass(frozen=True)
class Split:
    """How a command line divides a model over nodes, and what it drafts in each decode step."""

    nodes: int
    tp: int
    pp: int
    draft_steps: int = 0
    draft_tokens: int = 1

    @classmethod
    def read(cls, argv: Sequence[str], nodes: int) -> Split:
        """Return the division of a rank's command line; raise ValueError for one whose exchange is not known."""
        flags = options_of(argv)
        for flag, usual in _OTHER.items():
            if flags.get(flag, usual) != usual:
                raise ValueError(f"{flag} {flags[flag]} uses collectives whose exchange is not known")
        if strange := sorted(_OTHER_SWITCHES & flags.keys()):
            raise ValueError(f"{strange[0]} uses collectives whose exchange is not known")
        tp, pp = int(flags.get("--tp-size", "1")), int(flags.get("--pp-size", "1"))
        steps = int(flags.get("--speculative-num-steps", "0")) if "--speculative-algorithm" in flags else 0
        if "--speculative-algorithm" in flags and not steps:
            raise ValueError("--speculative-algorithm without --speculative-num-steps leaves the number of drafts open")
        tokens = int(flags.get("--speculative-num-draft-tokens", str(steps + 1)))
        return cls(nodes, tp, pp, steps, tokens if steps else 1)

    @property
    def crossing(self) -> int:
        """Return the ranks of a tensor-parallel group if it spans nodes, otherwise 1."""
        return self.tp if self.tp > self.tp * self.pp // self.nodes else 1


@dataclass(frozen=True)
class Work:
    """What a server computed in a window, from its counters: ``rows`` are sequences, summed over the decode passes."""

    prefill_tokens: float
    prefill_passes: float
    rows: float
    decode_passes: float
    # The batch sizes for which the server captured CUDA graphs: others are padded to the next one. None if unknown.
    captured: tuple[int, ...] | None = None

    @property
    def batch(self) -> float:
        """Return the mean number of sequences of a decode pass."""
        return self.rows / self.decode_passes if self.decode_passes else 0.0

    @property
    def padding(self) -> float:
        """Return how many times the sequences of a pass may count, at most, because CUDA graphs pad the batch.

        A mean of one leaves no other batch than one. Of a larger mean the batches are not known, so any may be padded.
        """
        if self.batch <= 1 or self.captured == ():
            return 1.0
        # All lists of SGLang have the powers of two up to their end; a batch beyond the end runs without a graph.
        sizes = sorted(self.captured or (1 << power for power in range(10)))
        return max(large / (small + 1) for small, large in pairwise([0, *sizes]))


def collectives(shape: Shape, split: Split, tokens: float, sampled: float) -> list[Collective]:
    """Return the collectives of one pass over ``tokens`` tokens, of which ``sampled`` need logits, on one node."""
    found = []
    if split.crossing > 1:
        reduces = shape.blocks / split.pp + 1
        found.append(Collective("reduce", reduces, tokens * shape.hidden * WIDTH))
        found.append(Collective("gather", 1, sampled * shape.vocabulary * WIDTH))
    if split.pp > 1:
        # A stage passes on the hidden states and, for most models, the residual.
        found.append(Collective("send", 1, 2 * tokens * shape.hidden * WIDTH))
    return found


def drafting(shape: Shape, split: Split, rows: float) -> list[Collective]:
    """Return the collectives with which a draft of one layer proposes tokens before a decode pass."""
    if split.crossing < 2:
        return []
    found = []
    for step in range(split.draft_steps):
        tokens = rows * (1 if step else split.draft_tokens)
        found.append(Collective("reduce", 3, tokens * shape.hidden * WIDTH))
        found.append(Collective("gather", 1, tokens * shape.vocabulary * WIDTH))
    return found


@dataclass(frozen=True)
class Scope:
    """Whose bytes are predicted: those of one pod, or with ``pod`` None of all; and what NCCL said that it takes."""

    pod: str | None = ""
    choices: Choices = field(default_factory=lambda: Choices(0))


ONE, ALL = Scope(), Scope(None)


def exchanged(group: Iterable[Collective], split: Split, scope: Scope = ONE, least: float = 1.0) -> Bytes:
    """Return the bytes that one node, or all nodes together, send and receive for these collectives.

    If NCCL did not say what it takes, the range covers rings and trees with each of its protocols, and a direct
    exchange of all ranks. The smallest message of the work has ``least`` of the collective's bytes. Raise ValueError if
    NCCL takes what is not modelled.
    """
    total = [0.0, 0.0, 0.0]
    for one in group:
        found = _send(one, scope) if one.kind == "send" else _collective(one, split, scope, least)
        total = [have + more for have, more in zip(total, found, strict=True)]
    return Bytes(*total)


def _send(one: Collective, scope: Scope) -> Bytes:
    size = one.number * one.size
    # The first and the last stage send or receive, the others do both. The total of all stages is not compared.
    return Bytes(0, 0, math.inf) if scope.pod is None else Bytes(size / 2, size, 4 * size)


def _collective(one: Collective, split: Split, scope: Scope, least: float) -> Bytes:
    kind, number, size = one
    ranks, nodes = split.crossing, split.nodes // split.pp
    messages: float = (ranks - 1) * (2 if kind == "reduce" else 1)
    # What a node sends and receives in a ring. In a tree each edge carries the message up and down; both ends count.
    ring, edge = 2 * messages / ranks * size, 2 * size
    everybody = nodes if scope.pod is None else 1
    choice = scope.choices.of(kind, size)
    # The usual choice doubles small messages; the extremes have one edge or all, with Simple or with LL.
    usual = ring * (2 if size <= _LL_UP_TO else 1) * everybody
    if choice is None:
        doubled = 2 if size * least <= _LL_AT_MOST * max(1, ranks - 1) else 1
        low, high = ring * everybody, doubled * ring * everybody
        if kind == "reduce":
            inner = min(_TREE_EDGES, nodes - 1)
            trees = (edge, inner * edge) if scope.pod is not None else (2 * (nodes - 1) * edge,) * 2
            low, high = min(low, trees[0]), max(high, doubled * trees[1], 2 * (ranks - 1) * size * everybody)
    elif kind == "reduce" and choice.algorithm == "TREE":
        edges = 2.0 * (nodes - 1) if scope.pod is None else scope.choices.edges(scope.pod, choice.channels)
        few, messages, most = (edges,) * 3 if edges else (1, 2 * (nodes - 1) / nodes, min(_TREE_EDGES, nodes - 1))
        low, usual, high = (each * edge * choice.factor for each in (few, messages, most))
        everybody = 1
    else:
        low = usual = high = ring * choice.factor * everybody
    if kind == "gather" and split.pp > 1:
        # Only the last stage of a pipeline gathers logits.
        low = 0
    around = 2 * messages * everybody
    return Bytes(low + around * _LEAST, usual + around * _USUAL, high + around * _MOST).times(number)


def predict(shape: Shape, split: Split, work: Work, scope: Scope = ONE) -> Bytes:
    """Return the bytes that a node, or all nodes together, send and receive for the work of a window."""
    total = [0.0, 0.0, 0.0]
    for bytes_of in _passes(shape, split, work, scope):
        total = [have + more for have, more in zip(total, bytes_of, strict=True)]
    return Bytes(*total)


def _passes(shape: Shape, split: Split, work: Work, scope: Scope) -> Iterable[Bytes]:
    if work.prefill_passes:
        tokens = work.prefill_tokens / work.prefill_passes
        # Prompts of one token may be among the others, and sizes between them; a single pass has its own.
        least = 1.0 if work.prefill_passes == 1 else 1 / max(tokens, 1.0)
        yield exchanged(collectives(shape, split, tokens, 1), split, scope, least).times(work.prefill_passes)
    if work.decode_passes:
        tokens = work.batch * split.draft_tokens
        if work.batch > 1:
            # The batches of the passes are not known, only their mean, and NCCL may choose otherwise for each.
            scope = replace(scope, choices=Choices(0))
        least = 1 / max(work.batch, 1.0)
        exact = exchanged(collectives(shape, split, tokens, tokens), split, scope, least).times(work.decode_passes)
        yield exact._replace(high=exact.high * work.padding)
        drafts = exchanged(drafting(shape, split, work.batch), split, scope, least).times(work.decode_passes)
        # A draft may also run on every rank as a whole, without an exchange.
        yield drafts._replace(low=0.0, high=drafts.high * work.padding)


def fabric_seconds(shape: Shape, split: Split, batch: float, times: Mapping[int, float]) -> float:
    """Return the seconds that the collectives of one decode pass take; ``times`` are seconds of an all-reduce by size.

    A gather counts as an all-reduce of the same size, which takes twice as many steps.
    """
    tokens = batch * split.draft_tokens
    group = [*collectives(shape, split, tokens, tokens), *drafting(shape, split, batch)]
    return sum(
        number * duration(times, size) * {"reduce": 1.0, "gather": 0.5, "send": 0.5}[kind]
        for kind, number, size in group
    )


def duration(times: Mapping[int, float], size: float) -> float:
    """Return the time of an all-reduce of ``size`` bytes, interpolated between the measured sizes."""
    sizes = sorted(times)
    place = min(max(bisect_left(sizes, size), 1), len(sizes) - 1) if len(sizes) > 1 else 0
    if not place or size <= sizes[0]:
        return times[sizes[0]]
    left, right = sizes[place - 1], sizes[place]
    return times[left] + (times[right] - times[left]) * (size - left) / (right - left)
