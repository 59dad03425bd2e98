# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Estimate the memory that a model needs on one GPU, and show the arithmetic. Private to the collection.

mem_fraction_static is the share of the memory that weights and caches may use; SGLang takes it of what is available
before it loads the weights. SGLang gives the part that the weights do not use to the caches: first to the Mamba states,
then to the KV cache (model_runner_kv_cache_mixin and pool_configurator). Where CPU and GPU share one memory, nobody
knows before the start how much is available, so the estimate is a range. Sizes are in GiB (2^30 bytes); the published
sizes of weights are in GB (10^9 bytes).

The formulas are SGLang's: pool_configurator.py (tokens) and configs/mamba_utils.py (states).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, isfinite
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import Finding, Rule, Rules

from .models import GPUS, Model

RULES = Rules(
    {
        "memory.unknown": Rule(
            "the size of the weights is not known, so nobody can tell before the start whether they fit",
            "Give model.weights_gb in the profile: the sum of the weight files in GB",
            "model.weights_gb",
            "warning",
        ),
        "memory.weights": Rule(
            "weights of {weights:.1f} GiB do not fit into {static:.1f} GiB per GPU",
            "Raise mem_fraction_static, or spread the model over more GPUs (tp, pp)",
            "mem_fraction_static",
        ),
        "memory.system": Rule(
            "{free:.1f} GiB stay for graphs, activations, the system and its page cache",
            "Lower mem_fraction_static, so that {needed:.0f} GiB or more stay free",
            "mem_fraction_static",
            "warning",
        ),
        "memory.mamba": Rule(
            "Mamba states of {mamba:.1f} GiB leave no room for KV in {cache:.1f} GiB",
            "Lower max_mamba_cache_size or max_running_requests, or make room for caches",
            "max_mamba_cache_size",
        ),
        "memory.mamba/requests": Rule(
            "the states that fit are enough for {requests} requests at once, fewer than requested ({slots})",
            "Lower max_running_requests, or make room: mem_fraction_static, mamba_full_memory_ratio, mamba_ssm_dtype",
            "max_running_requests",
            "warning",
        ),
        "memory.context": Rule(
            "one request may have {value} tokens, but the cache holds about {tokens}",
            "Lower context_length, or make room for caches",
            "context_length",
            "warning",
        ),
    }
)

KV_BYTES: dict[str, float] = {"fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "fp4_e2m1": 0.5625, "nvfp4": 0.5625, "mxfp8": 1.03125}
"""Bytes per cached number; types that are not listed use two bytes (bfloat16)."""


class Sized(NamedTuple):
    """A number of bytes, and the text of its calculation."""

    size: float
    text: str


@dataclass(frozen=True)
class Share:
    """How a model is divided: one GPU holds a part of the heads (tp) of a part of the layers (pp)."""

    tp: int
    pp: int = 1

    def layers(self, count: int) -> int:
        """Return the number of layers in the largest pipeline stage."""
        return ceil(count / self.pp)

    def heads(self, count: int) -> int:
        """Return the number of KV heads per GPU; with fewer heads than GPUs each GPU keeps one."""
        return max(1, count // self.tp)

    def show(self, count: int) -> str:
        """Return the number of layers of a stage as text."""
        return f"{count} layers" if self.pp == 1 else f"{self.layers(count)} of {count} layers"


def token_size(model: Model, kv_dtype: str, share: Share, sliding: float) -> Sized | None:
    """Return the cache size of one token, or None if the model's heads are unknown.

    ``sliding`` is the share of all tokens that the layers with a sliding window keep.
    """
    layers = model.attention_layers or model.layers
    if layers is not None and model.latent_dim is not None:
        return _latents(model, model.latent_dim, layers, kv_dtype, share, sliding)
    if layers is None or model.kv_heads is None or model.head_dim is None:
        return None
    found = _keys_and_values(share, layers, model.kv_heads, model.head_dim, kv_dtype)
    if model.sliding_layers is None or model.sliding_kv_heads is None or model.sliding_head_dim is None:
        return found
    window = _keys_and_values(share, model.sliding_layers, model.sliding_kv_heads, model.sliding_head_dim, kv_dtype)
    return Sized(found.size + sliding * window.size, f"{found.text} + {sliding:g} x {window.text}")


def _keys_and_values(share: Share, layers: int, heads: int, head_dim: int, kv_dtype: str) -> Sized:
    held, width = share.heads(heads), KV_BYTES.get(kv_dtype, 2.0)
    text = f"2 x {share.show(layers)} x {held} of {heads} heads x {head_dim} x {width:g} bytes"
    return Sized(2 * share.layers(layers) * held * head_dim * width, text)


def _latents(model: Model, latent: int, layers: int, kv_dtype: str, share: Share, sliding: float) -> Sized:
    """Return the size of a token whose heads share one latent; every GPU of a stage keeps all of it.

    A row in FP8 has its position in bfloat16 and scales: one of four bytes per 128 numbers in sparse attention
    (calculate_mla_kv_cache_dim), eight bytes in DeepSeek-V4 (DSV4PoolConfigurator), whose layers also keep a window.
    """
    index = model.index_dim + model.index_dim // 128 * 4
    if model.compressed is None:
        row = (latent + model.rope_dim) * KV_BYTES.get(kv_dtype, 2.0)
        if index and kv_dtype.startswith("fp8"):
            row = latent + latent // 128 * 4 + model.rope_dim * 2
        return Sized(share.layers(layers) * (row + index), f"{share.show(layers)} x {row + index:g} bytes")
    row = latent + model.rope_dim * 2 + 8
    # Layers that compress 128 tokens have no indexer; those that compress one or two tokens have one in FP4.
    indexes = {"4": index, "2": model.index_dim // 2 + model.index_dim // 32}
    sizes = {ratio: (row + indexes.get("2" if ratio == "1" else ratio, 0)) / int(ratio) for ratio in model.compressed}
    size = sum(share.layers(count) * sizes[ratio] for ratio, count in model.compressed.items())
    terms = [f"{share.show(count)} x {sizes[ratio]:g} bytes" for ratio, count in model.compressed.items()]
    terms.append(f"{sliding:g} x {share.show(layers)} x {row:g} bytes")
    return Sized(size + sliding * share.layers(layers) * row, " + ".join(terms))


def state_size(model: Model, share: Share, ssm_bytes: int) -> Sized | None:
    """Return the size of one Mamba state, or None if its shape is unknown.

    ``ssm_bytes`` is the width of the recurrent part (mamba_ssm_dtype); the convolution part uses two bytes.
    """
    if (
        model.mamba_layers is None
        or model.mamba_heads is None
        or model.mamba_head_dim is None
        or model.mamba_state_size is None
        or model.mamba_groups is None
        or model.mamba_conv is None
    ):
        return None
    inner = model.mamba_heads * model.mamba_head_dim
    # If the groups cannot be divided evenly, they are repeated, one per GPU.
    groups = model.mamba_groups if model.mamba_groups % share.tp == 0 else share.tp
    channels, kept = inner + 2 * groups * model.mamba_state_size, model.mamba_conv - 1
    size = (
        share.layers(model.mamba_layers) * (inner * model.mamba_state_size * ssm_bytes + channels * kept * 2) / share.tp
    )
    text = (
        f"{share.show(model.mamba_layers)} x ({model.mamba_heads} x {model.mamba_head_dim} x {model.mamba_state_size}"
        f" x {ssm_bytes} + {channels} x {kept} x 2) bytes / tp {share.tp}"
    )
    return Sized(size, text)


GIB = 2**30
TAKEN_GIB = (10.0, 16.0)
"""Memory of a GB10 node that is not available before the load: system, driver, CUDA's context, NCCL's buffers. Computed
back from the tokens in six public logs of DGX Sparks with 119 GiB, where 103 to 109 GiB were available."""

LIKELY_GIB = 15.2
"""The same as the most likely value: with it, five of the six figures are within 15 %."""

SYSTEM_GIB = 8.0
"""Memory that the system, the page cache and the kubelet of a GB10 node need besides the server."""

MAMBA_TO_KV = 0.9
"""SGLang's default of mamba_full_memory_ratio: memory of Mamba states divided by memory of the KV cache."""

SLIDING_TO_FULL = 0.8
"""SGLang's default of swa_full_tokens_ratio: tokens in sliding-window layers per token in full-attention layers."""

SLIDING_TO_COMPRESSED = 0.1
"""The same default for DeepSeek-V4 (DSV4_DEFAULT_SWA_FULL_TOKENS_RATIO)."""


UNCOMPARED = {
    "derived": "compared with the config.json of a sibling or with a release's source code, not with its own",
    "reported": "no config.json was at hand to compare them with",
}
"""Evidence of facts that were not compared with the config.json of their repository."""


@dataclass
class Estimate:
    """An estimate per GPU; values that are not published for a model are None and are left out of the sum.

    Its sizes are those for the least memory that may be available, ``available_gib``; ``most_gib`` and ``most_tokens``
    are those for the most, ``likely_tokens`` those for LIKELY_GIB. ``doubt`` is why the facts of the model are not
    certain. ``total_gib`` is the memory of the GPU, ``fraction`` mem_fraction_static. ``cache_gib`` is
    the memory that the weights leave for caches, ``mamba_gib`` the part of it that Mamba states use, ``requests`` the
    number of concurrent requests that the states allow, and ``outside_gib`` the memory that stays free for graphs,
    activations and the system. ``load_gib`` is what the weights need on a GPU that shares the memory of the CPU, 0 if
    that is not known, None on others. ``download_gb`` (10^9 bytes) is the size of all weight files.
    """

    total_gib: float
    available_gib: float
    fraction: float
    static_gib: float
    most_gib: float = 0.0
    most_tokens: int | None = None
    likely_tokens: int | None = None
    doubt: str = ""
    weights_gib: float | None = None
    draft_gib: float | None = None
    cache_gib: float | None = None
    mamba_gib: float | None = None
    requests: int | None = None
    tokens: int | None = None
    outside_gib: float = 0.0
    load_gib: float | None = None
    download_gb: float | None = None
    lines: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data without the findings, because the caller adds them to its own findings."""
        plain = {name: value for name, value in vars(self).items() if name not in ("doubt", "findings")}
        sizes = {name: size for name, size in plain.items() if name.endswith("_gib") and size is not None}
        rounded = {name: round(size, 1) for name, size in sizes.items() if name != "load_gib"}
        return plain | rounded | {"fits": self.fits}

    @property
    def fits(self) -> str:
        """Return the estimate in one line, with numbers of two digits."""
        if self.cache_gib is None:
            return "not estimated, because the size of the weights is not known"
        more = max(self.most_gib, self.available_gib) - self.available_gib
        caches = self.cache_gib, self.cache_gib + more * self.fraction
        if caches[1] <= 0:
            return f"does not fit: the weights leave no room in {self.static_gib + more * self.fraction:.0f} GiB"
        known = self.tokens is not None or self.most_tokens is not None
        ends = (self.tokens or 0, self.most_tokens or self.tokens or 0) if known else caches
        size = (
            " to ".join(dict.fromkeys(two_digits(end) for end in ends))
            if ends[0] > 0
            else f"up to {two_digits(ends[1])}"
        )
        if self.likely_tokens:
            size = f"about {two_digits(self.likely_tokens)} ({size})"
        fits = "fits" if caches[0] > 0 else f"fits if more than {self.available_gib:.0f} GiB are available"
        requests = f", at most {self.requests} requests at once" if self.requests is not None else ""
        doubt = (
            f"; uncertain, because parts of the model are unknown (its facts are {self.doubt})" if self.doubt else ""
        )
        return f"{fits}: {size} {'tokens in the cache' if known else 'GiB for caches'}{requests}{doubt}"


def two_digits(number: float) -> str:
    """Return a number rounded to two digits: ``0.67 M``, ``53,000``, ``57``."""
    if not number:
        return "0"
    if number >= 100_000:
        return f"{float(f'{number / 1e6:.2g}'):g} M"
    return f"{float(f'{number:.2g}'):,g}" if number < 1000 else f"{int(float(f'{number:.2g}')):,}"


def estimate(
    model: Model | None,
    context: Mapping[str, Any],
    draft: Model | None,
    gpu: str,
    where: str = "",
    read: float | None = None,
) -> Estimate:
    """Estimate the memory of one GPU; ``context`` is the context of the rules with defaults filled in.

    ``read`` is the memory of the group's smallest node as its host told it, without what other programs hold. An error
    for the least memory that may be available is a warning if there is none for the most.
    """
    unified, total = GPUS[gpu][1:]
    if not unified:
        return _estimate(model, context, draft, unified, total, total, where)
    total = read or total
    least, likely, most = (max(total - taken, 1.0) for taken in (TAKEN_GIB[1], LIKELY_GIB, TAKEN_GIB[0]))
    result, middle, best = (
        _estimate(model, context, draft, unified, total, given, where) for given in (least, likely, most)
    )
    seen = {finding.rule for finding in best.findings}
    tight = [finding for finding in result.findings if finding.severity == "error" and finding.rule not in seen]
    result.findings = best.findings + [
        replace(
            finding, severity="warning", reason=f"if {least:.0f} GiB are available before the load, {finding.reason}"
        )
        for finding in tight
    ]
    result.most_gib, result.most_tokens, result.likely_tokens = most, best.tokens, middle.tokens
    source = "read from the hosts" if read else "public logs of DGX Sparks"
    result.lines.insert(
        0, f"available before the load: {least:.0f} to {most:.0f} GiB ({source}); below for {least:.0f}"
    )
    for given, tokens in ((likely, middle.tokens), (most, best.tokens)):
        if tokens is not None:
            result.lines.append(f"tokens with {given:.0f} GiB: about {two_digits(tokens)}")
    return result


def _estimate(
    model: Model | None,
    context: Mapping[str, Any],
    draft: Model | None,
    unified: bool,
    total: float,
    given: float,
    where: str,
) -> Estimate:
    """Estimate for so many available GiB."""
    share = Share(max(1, int(context.get("tp_size") or 1)), max(1, int(context.get("pp_size") or 1)))
    fraction = context.get("mem_fraction_static")
    static = float(fraction) if fraction is not None else 0.87
    if not isfinite(static):
        return Estimate(total, given, 0.0, 0.0, lines=[f"not estimated: mem_fraction_static is {fraction}"])
    result = Estimate(total, given, static, given * static, outside_gib=given * (1 - static))
    named = f"{static:.2f}" + ("" if fraction is not None else " (approximately SGLang's own choice)")
    result.lines.append(f"weights and caches may take {given:.1f} GiB x {named} = {result.static_gib:.1f} GiB")
    if model is not None and model.evidence in UNCOMPARED:
        result.doubt = model.evidence
        result.lines.append(f"facts of the model: {model.evidence}, {UNCOMPARED[model.evidence]}")
    if model is None or model.weights_gb is None:
        result.lines.append("the size of the weights is not known")
        result.findings.append(RULES.finding("memory.unknown", None, where))
        result.load_gib = 0.0 if unified else None
        return result
    # A draft that is built into the checkpoint is downloaded whether it is used or not.
    result.download_gb = model.weights_gb + (model.draft_gb or 0.0)
    result.download_gb += (draft.weights_gb or 0.0) if draft is not None else 0.0
    weights = _weights(result, model, model.weights_gb, context, unified, share)
    result.weights_gib, result.cache_gib = weights, result.static_gib - weights
    inside = bool(context.get("draft_inside", True))
    drafted = _draft(result, model, context, draft, share)
    if inside:
        result.cache_gib -= result.draft_gib or 0.0
    else:
        result.outside_gib -= result.draft_gib or 0.0
    if unified:
        result.load_gib = round(result.static_gib - result.cache_gib, 2)
    result.lines.append(f"left for caches: {result.cache_gib:.1f} GiB")
    if result.cache_gib > 0:
        _mamba(result, model, context, share)
        _cache(result, model, context, share, drafted, inside)
    _free(result, context, inside)
    _report_limits(result, context, unified, where)
    return result


def _weights(
    result: Estimate, model: Model, size: float, context: Mapping[str, Any], unified: bool, share: Share
) -> float:
    """Return the weights of a GPU, with what the flags that move weights do to them.

    ``ple_offload_embedding`` keeps the n-gram table outside the GPU: in a file, or pinned in the memory of every node,
    which is the same memory on a GB10 (sglang#37995). ``cpu_offload_gb`` frees nothing there either.
    """
    split = share.tp * share.pp
    moved = bool(context.get("ple_offload_embedding")) and model.table_gb is not None
    table = (model.table_gb or 0.0) if moved else 0.0
    held = (size - table) * 1e9 / GIB / split
    note = f" ({model.weights_note})" if model.weights_note else ""
    kept = f"{size:.0f} GB" if not moved else f"({size:.0f} - {table:.0f} of the table) GB"
    line = f"weights: {kept} / (tp {share.tp} x pp {share.pp}) = {held:.1f} GiB{note}"
    result.lines.append(line)
    if moved and unified and context.get("ple_offload_backend") != "file":
        held += table * 1e9 / GIB
        result.lines.append(f"pinned table: {table * 1e9 / GIB:.1f} GiB of every node's one memory")
    if offloaded := float(context.get("cpu_offload_gb") or 0):
        if unified:
            result.lines.append("cpu_offload_gb frees nothing, because CPU and GPU share one memory")
        else:
            held = max(0.0, held - offloaded)
            result.lines.append(f"cpu_offload_gb: {offloaded:.1f} GiB of them are in the memory of the CPU")
    return held


def _draft(result: Estimate, model: Model, context: Mapping[str, Any], draft: Model | None, share: Share) -> int:
    """Add the draft's weights; return the number of its layers with their own KV cache (0 for a Gemma-4 assistant)."""
    spec, eagle = context.get("spec"), bool(context.get("eagle_family"))
    if spec is None or spec == "NGRAM":
        return 0
    if draft is not None or context.get("speculative_draft_model_path"):
        size, note = (draft.weights_gb, draft.weights_note) if draft is not None else (None, "")
        layers = (draft.layers or 0) if draft is not None and eagle else 0
    elif eagle and model.draft_layers:
        size, layers, note = model.draft_gb, model.draft_layers, "built into the checkpoint"
        if size is None and model.weights_gb is not None and model.layers:
            size, note = model.weights_gb * layers / model.layers, f"{note}; estimated: as large as its other layers"
        elif model.draft_note:
            note = f"{note}; {model.draft_note}"
    else:
        size, layers, note = model.draft_gb, 0, f"built into the checkpoint; {model.draft_note}"
    if size is None:
        result.lines.append("draft: not estimated, its size is not known here")
        return layers
    result.draft_gib = size * 1e9 / GIB / share.tp
    result.lines.append(
        f"draft: {size:.1f} GB / tp {share.tp} = {result.draft_gib:.1f} GiB" + (f" ({note})" if note else "")
    )
    return layers


def _mamba(result: Estimate, model: Model, context: Mapping[str, Any], share: Share) -> None:
    """Add the pool of Mamba states: the size that was set, else the share of the cache that SGLang gives to it."""
    ratio, given = context.get("mamba_ratio"), context.get("max_mamba_cache_size")
    if ratio is None or result.cache_gib is None:
        return
    found = state_size(model, share, 2 if context.get("mamba_ssm_dtype") in ("bfloat16", "float16") else 4)
    slots = context.get("slots")
    steps = int(context.get("draft_tokens_run") or 0) if context.get("spec") else 0
    if given is None and context.get("disable_radix_cache"):
        given = slots
    if found is None:
        result.lines.append("Mamba pool: not estimated, the size of the model's states is not known here")
        _requests(result, given, ratio)
        return
    size = found.size / GIB
    result.lines.append(f"one Mamba state: {found.text} = {size * 1024:.1f} MiB")
    pool = _pool(result, context, size, steps) if given is None else given
    _requests(result, pool, ratio)
    running = pool // ratio if slots is None else min(slots, pool // ratio)
    # SGLang keeps one state per draft token during verification, so that it can go back to the last accepted one.
    result.mamba_gib = (pool + running * steps) * size
    count = f"({pool} states + {running} requests x {steps} draft tokens)" if steps else f"{pool} states"
    result.lines.append(f"Mamba pool: {count} x {size * 1024:.1f} MiB = {result.mamba_gib:.1f} GiB")


def _pool(result: Estimate, context: Mapping[str, Any], size: float, steps: int) -> int:
    """Return the number of states for which SGLang reserves memory by default; ``size`` is the GiB of one state."""
    ratio, cache = int(context["mamba_ratio"]), result.cache_gib or 0.0
    part = max(0.0, float(context.get("mamba_full_memory_ratio") or MAMBA_TO_KV))
    shown, each, how = f"{cache:.1f} GiB", size, f"{size * 1024:.1f} MiB"
    if context.get("mamba_jointly", True):
        each *= 1 + steps / ratio
        how = f"({how} x (1 + {steps} draft tokens / {ratio}))" if steps else how
    elif steps:
        ahead = size * steps * int(context.get("slots") or 0)
        cache, shown = cache - ahead, f"({cache:.1f} - {ahead:.1f} of draft tokens) GiB"
    budget = cache * part / (1 + part)
    pool = max(0, int(budget // each))
    result.lines.append(f"Mamba states: {shown} x {part:g} / {1 + part:g} = {budget:.1f} GiB; / {how} = {pool} states")
    return pool


def _requests(result: Estimate, pool: int | None, ratio: int) -> None:
    if pool is not None:
        result.requests = pool // ratio
        result.lines.append(f"Mamba states: {pool} // {ratio} per request = {result.requests} requests at once")


def _cache(
    result: Estimate, model: Model, context: Mapping[str, Any], share: Share, drafted: int, inside: bool
) -> None:
    """Convert the remaining memory to tokens; a draft with ``drafted`` layers keeps KV for them too."""
    room = (result.cache_gib or 0.0) - (result.mamba_gib or 0.0)
    dtype = str(context.get("kv_cache_dtype") or "auto")
    default = SLIDING_TO_FULL if model.compressed is None else SLIDING_TO_COMPRESSED
    sliding = max(0.0, float(context.get("swa_full_tokens_ratio") or default))
    found = token_size(model, dtype, share, sliding)
    if found is None:
        result.lines.append("tokens in the cache: not estimated, the model's KV heads are not known here")
        return
    size, text = found
    own = size * drafted / share.layers(model.attention_layers or model.layers or 1)
    if inside and own:
        size, text = size + own, f"{text} + {own / 1024:.1f} KiB of the draft"
    result.tokens = max(0, int(room * GIB / size))
    result.lines.append(f"one token: {text} = {size / 1024:.1f} KiB")
    if model.mamba_layers is None and context.get("mamba_ratio") is not None:
        result.lines.append(f"tokens: about {two_digits(result.tokens)} if all of {room:.1f} GiB held KV")
    else:
        result.lines.append(f"tokens: {room:.1f} GiB / {size / 1024:.1f} KiB = about {two_digits(result.tokens)}")
    limit = context.get("max_total_tokens")
    if limit and limit < result.tokens:
        unused = (result.tokens - limit) * size / GIB
        result.tokens = int(limit)
        result.lines.append(f"tokens: {limit}, because max_total_tokens limits them; {unused:.1f} GiB stay unused")
    if model.sliding_window:
        kept = int(result.tokens * sliding)
        result.lines.append(
            f"sliding layers: about {two_digits(kept)} tokens, of which a request needs its last {model.sliding_window}"
        )
    if own and not inside:
        cache = result.tokens * own / GIB
        result.draft_gib = (result.draft_gib or 0.0) + cache
        result.outside_gib -= cache
        result.lines.append(
            f"draft's cache: {two_digits(result.tokens)} tokens x {own / 1024:.1f} KiB = {cache:.1f} GiB"
        )


def _free(result: Estimate, context: Mapping[str, Any], inside: bool) -> None:
    """Add the memory that mem_fraction_static leaves free; SGLang allocates CUDA graphs there after the caches."""
    taken = f" - {result.draft_gib:.1f} of the draft" if result.draft_gib and not inside else ""
    graphs = ", ".join(
        f"{phase} {'on' if context[key] else 'off'}"
        for phase, key in (("decode", "decode_graph"), ("prefill", "prefill_graph"))
        if key in context
    )
    result.lines.append(
        f"left free: {result.available_gib:.1f} - {result.static_gib:.1f}{taken} = {result.outside_gib:.1f} GiB"
        f" for CUDA graphs{f' ({graphs})' if graphs else ''}, activations and the system, whose sizes are not modelled"
    )


def _report_limits(result: Estimate, context: Mapping[str, Any], unified: bool, where: str) -> None:
    def note(rule: str, key: str, **words: Any) -> None:
        result.findings.append(RULES.finding(rule, context.get(key), where, key=key, **words))

    if result.cache_gib is not None and result.cache_gib <= 0:
        weights = result.static_gib - result.cache_gib
        note("memory.weights", "mem_fraction_static", weights=weights, static=result.static_gib)
    if unified and result.outside_gib < SYSTEM_GIB:
        note("memory.system", "mem_fraction_static", free=result.outside_gib, needed=SYSTEM_GIB)
    # SGLang's own number for speculative decoding (48) is nobody's request.
    asked, chosen = context.get("max_running_requests"), context.get("max_mamba_cache_size") is None
    if result.mamba_gib is not None and result.mamba_gib >= (result.cache_gib or 0.0):
        note("memory.mamba", "max_mamba_cache_size", mamba=result.mamba_gib, cache=result.cache_gib)
    elif chosen and result.requests is not None and asked is not None and result.requests < asked:
        note("memory.mamba/requests", "max_running_requests", requests=result.requests, slots=asked)
    wanted = context.get("context_length")
    if result.tokens is not None and wanted is not None and wanted > result.tokens:
        note("memory.context", "context_length", tokens=two_digits(result.tokens))
