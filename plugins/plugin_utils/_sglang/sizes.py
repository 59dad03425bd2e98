# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compute the size of one token and of one Mamba state on one GPU, and show the arithmetic. Private to the collection.

The formulas are SGLang's: pool_configurator.py (tokens) and configs/mamba_utils.py (states).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from .models import Model

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
