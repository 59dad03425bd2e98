# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much memory a model takes on one GPU, with the arithmetic shown. Private to the collection.

mem_fraction_static is the share of the GPU's memory that weights and caches may fill; what is left of it behind the
weights becomes cache. Sizes are in GiB (2^30 bytes); weights are published in GB (10^9 bytes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ._findings import Finding
from ._sglang_models import Model
from ._sglang_rules import GPUS

GIB = 2**30
KV_BYTES: dict[str, float] = {"fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "fp4_e2m1": 0.5625, "nvfp4": 0.5625, "mxfp8": 1.03125}
"""Bytes of one cached number; whatever isn't listed is two bytes wide (bfloat16)."""

SYSTEM_GIB = 8.0
"""What the system, the page cache and the kubelet of a GB10 node need beside the server."""


@dataclass
class Estimate:
    """An estimate per GPU; what is not publicly known about a model is None and stays out of the sum."""

    total_gib: float
    static_gib: float
    weights_gib: float | None = None
    cache_gib: float | None = None
    kv_bytes_per_token: float | None = None
    tokens: int | None = None
    outside_gib: float = 0.0
    lines: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "total_gib": round(self.total_gib, 1),
            "static_gib": round(self.static_gib, 1),
            "weights_gib": None if self.weights_gib is None else round(self.weights_gib, 1),
            "cache_gib": None if self.cache_gib is None else round(self.cache_gib, 1),
            "tokens": self.tokens,
            "lines": self.lines,
            "findings": [finding.as_dict() for finding in self.findings],
        }


def kv_bytes_per_token(model: Model, kv_dtype: str, tp: int) -> float | None:
    """Return the bytes that one token takes in one GPU's cache, or None when the model's heads aren't known."""
    layers = model.attention_layers or model.layers
    if layers is None or model.kv_heads is None or model.head_dim is None:
        return None
    heads = max(1.0, model.kv_heads / tp)
    return 2 * layers * heads * model.head_dim * KV_BYTES.get(kv_dtype, 2.0)


def estimate(
    model: Model | None, context: Mapping[str, Any], draft: Model | None, gpu: str, where: str = ""
) -> Estimate:
    """Add up what is known of one GPU's memory; ``context`` is that of the rules, with defaults filled in."""
    capability, unified, total = GPUS[gpu]
    del capability
    tp, pp = int(context.get("tp_size") or 1), int(context.get("pp_size") or 1)
    fraction = context.get("mem_fraction_static")
    share = float(fraction) if fraction is not None else 0.87
    result = Estimate(total, total * share)
    named = f"{share:.2f}" + ("" if fraction is not None else " (SGLang's own choice, roughly)")
    result.lines.append(f"weights and caches may take {total:.1f} GiB x {named} = {result.static_gib:.1f} GiB")
    if model is None or model.weights_gb is None:
        result.lines.append("the size of the weights is not known")
        return result
    result.weights_gib = model.weights_gb * 1e9 / GIB / (tp * pp)
    result.lines.append(
        f"weights: {model.weights_gb:.0f} GB / (tp {tp} x pp {pp}) = {result.weights_gib:.1f} GiB"
        + (f" ({model.weights_note})" if model.weights_note else "")
    )
    result.cache_gib = result.static_gib - result.weights_gib
    if draft is not None and draft.weights_gb is not None:
        own = draft.weights_gb * 1e9 / GIB / tp
        result.cache_gib -= own
        result.lines.append(f"draft: {draft.weights_gb:.1f} GB / tp {tp} = {own:.1f} GiB")
    result.lines.append(f"left for caches: {result.cache_gib:.1f} GiB")
    _cache(result, model, context, tp)
    result.outside_gib = total - result.static_gib
    _judge(result, context, unified, where)
    return result


def _cache(result: Estimate, model: Model, context: Mapping[str, Any], tp: int) -> None:
    dtype = str(context.get("kv_cache_dtype") or "auto")
    result.kv_bytes_per_token = kv_bytes_per_token(model, dtype, tp)
    if context.get("mamba_parallel") is not None:
        pool, ratio = context["max_mamba_cache_size"], context["mamba_ratio"]
        result.lines.append(f"Mamba states: {pool} // {ratio} a request = {context['mamba_parallel']} requests at once")
    if result.kv_bytes_per_token is None or result.cache_gib is None:
        result.lines.append("tokens in the cache: not estimated, the model's KV heads are not known here")
        return
    result.tokens = max(0, int(result.cache_gib * GIB / result.kv_bytes_per_token))
    layers = model.attention_layers or model.layers
    result.lines.append(
        f"one token: 2 x {layers} layers x {model.kv_heads}/{tp} heads x {model.head_dim} x"
        f" {KV_BYTES.get(dtype, 2.0):g} bytes = {result.kv_bytes_per_token / 1024:.1f} KiB;"
        f" {result.tokens} tokens if all of it held KV"
    )


def _judge(result: Estimate, context: Mapping[str, Any], unified: bool, where: str) -> None:
    share = context.get("mem_fraction_static")
    if result.cache_gib is not None and result.cache_gib <= 0:
        reason = f"weights of {result.weights_gib:.1f} GiB do not fit into {result.static_gib:.1f} GiB a GPU"
        remedy = "Raise mem_fraction_static, or spread the model over more GPUs (tp, pp)"
        result.findings.append(Finding("error", "memory.weights", "mem_fraction_static", share, reason, remedy, where))
    if unified and result.outside_gib < SYSTEM_GIB:
        reason = f"{result.outside_gib:.1f} GiB stay for graphs, activations, the system and its page cache"
        remedy = f"Lower mem_fraction_static, so that {SYSTEM_GIB:.0f} GiB or more stay free"
        result.findings.append(Finding("warning", "memory.system", "mem_fraction_static", share, reason, remedy, where))
    wanted = context.get("context_length")
    if result.tokens is not None and wanted is not None and wanted > result.tokens:
        reason = f"one request may have {wanted} tokens, but the cache holds about {result.tokens}"
        remedy = "Lower context_length, or make room for caches"
        result.findings.append(Finding("warning", "memory.context", "context_length", wanted, reason, remedy, where))
