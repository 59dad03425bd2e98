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

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from .._sglang.items import options_of

WIDTH = 2
# Bytes around each message of a ring: headers and acknowledgements. Measured with Socket on two ranks: 215 bytes for
# the two messages of an all-reduce with protocol Simple, 368 to 410 with LL.
_LEAST, _USUAL, _MOST = 100, 190, 250
# NCCL 2.28.9 chose LL, which doubles every byte, for 16 KiB and less, and Simple from 48 KiB on (two ranks, Socket).
_LL_UP_TO = 32768
# Other networks and numbers of ranks may choose LL for larger messages, but not beyond this size: it halves the
# bandwidth to save some microseconds per step. The measured choice changed at a 20th of this size.
_LL_AT_MOST = 1 << 20
# One value of these switches to collectives that are not NCCL's all-reduce, or splits the batch between the ranks.
_OTHER = {
    "--moe-a2a-backend": "none",
    "--dp-size": "1",
    "--data-parallel-size": "1",
    "--attn-dp-size": "1",
    "--attn-cp-size": "1",
}
_OTHER_SWITCHES = {"--enable-dp-attention", "--enable-mscclpp", "--enable-sp-layernorm"}


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

    @property
    def batch(self) -> float:
        """Return the mean number of sequences of a decode pass."""
        return self.rows / self.decode_passes if self.decode_passes else 0.0


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


def exchanged(group: Iterable[Collective], split: Split) -> Bytes:
    """Return the bytes that one node sends and receives for these collectives.

    The range covers rings with the protocols Simple and LL, trees, and a direct exchange of all ranks.
    """
    low = usual = high = 0.0
    ranks = split.crossing
    for kind, number, size in group:
        if kind == "send":
            # The first and the last stage send or receive, the others do both.
            low, usual, high = low + number * size / 2, usual + number * size, high + number * 4 * size
            continue
        messages = (ranks - 1) * (2 if kind == "reduce" else 1)
        share = messages / ranks * size
        # A tree of more than two ranks also doubles the bytes of its inner ranks, for messages of any size.
        doubled = 2 if size <= _LL_AT_MOST or (kind == "reduce" and ranks > 2) else 1
        most = max(doubled * share, (ranks - 1) * size) if kind == "reduce" else doubled * share
        # Only the last stage of a pipeline gathers logits.
        low += 0 if kind == "gather" and split.pp > 1 else 2 * number * (share + messages * _LEAST)
        usual += 2 * number * (share * (2 if size <= _LL_UP_TO else 1) + messages * _USUAL)
        high += 2 * number * (most + messages * _MOST)
    return Bytes(low, usual, high)


def predict(shape: Shape, split: Split, work: Work) -> Bytes:
    """Return the bytes that each node sends and receives for the work of a window."""
    total = [0.0, 0.0, 0.0]
    for bytes_of in _passes(shape, split, work):
        total = [have + more for have, more in zip(total, bytes_of, strict=True)]
    return Bytes(*total)


def _passes(shape: Shape, split: Split, work: Work) -> Iterable[Bytes]:
    if work.prefill_passes:
        tokens = work.prefill_tokens / work.prefill_passes
        yield exchanged(collectives(shape, split, tokens, 1), split).times(work.prefill_passes)
    if work.decode_passes:
        tokens = work.batch * split.draft_tokens
        yield exchanged(collectives(shape, split, tokens, tokens), split).times(work.decode_passes)
        drafts = exchanged(drafting(shape, split, work.batch), split).times(work.decode_passes)
        # A draft may also run on every rank as a whole, without an exchange.
        yield drafts._replace(low=0.0)


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
