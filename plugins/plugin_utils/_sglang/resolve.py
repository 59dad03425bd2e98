# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Predict the decisions of SGLang on which the rules and the estimate of memory rest. Private to the collection.

This does not replace SGLang's resolver, which ``serve`` asks in the image and ``scripts/sglang_check.py --deep`` runs.
"""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version

FROZEN_KV_PATCH = "sglang#24436"
"""The change that introduced FROZEN_KV_MTP; images of 0.5.11 that carry it behave like 0.5.12 in this respect."""

NEMOTRON_RADIX_PATCH = "sglang#27998"
"""The change that lets NemotronH speculate with the radix cache, part of 0.5.14; images of 0.5.13 may carry it."""


BLOCK_DRAFTERS = ("DFLASH", "DSPARK")
"""Drafters that write a block of tokens at once: SGLang always runs one step with one candidate."""


PARAMETERS = re.compile(r"(?<![\d.A-Za-z])(\d+(?:\.\d+)?)([bBT])(?![a-zA-Z])")
FOUR_BITS, EIGHT_BITS = re.compile("FP4|AWQ|INT4|GPTQ|W4A|4.?BIT", re.I), re.compile("FP8|INT8|W8A|8.?BIT", re.I)


def named_weights(name: str, quantization: str | None, world: int) -> float | None:
    """Return the GiB of weights per GPU that a model's name suggests (480B-A35B-FP8); None if it has no size."""
    found = PARAMETERS.search(name.rstrip("/").rpartition("/")[2])
    if found is None:
        return None
    text = f"{name} {quantization or ''}"
    size = 0.55 if FOUR_BITS.search(text) else 1.0 if EIGHT_BITS.search(text) else 2.0
    known = quantization in (None, "fp8", "modelopt_fp8") or size < 1
    billions = float(found[1]) * (1000 if found[2] == "T" else 1)
    return round(billions * (size if known else 0.5) * 1e9 / 2**30 / world, 1)


def mamba_ratio(strategy: str, overlap: bool, radix: bool) -> int:
    """Return the number of Mamba states per running request (kv_cache_configurator._calculate_mamba_ratio)."""
    if not radix:
        return 1
    if strategy == "extra_buffer":
        return 5 if overlap else 4
    return 4 if strategy == "extra_buffer_lazy" else 3


def _speculation(context: dict[str, Any], version: Version) -> None:
    """Set ``spec``, the algorithm that runs, and the draft depth with SGLang's defaults filled in."""
    asked = context["speculative_algorithm"]
    spec = None if asked is None else str(asked).upper()
    if spec in ("NEXTN", "EAGLE"):
        known = version.within("0.5.12", None) or FROZEN_KV_PATCH in context["carries"]
        spec = "FROZEN_KV_MTP" if context["assistant_draft"] and known else "EAGLE"
    steps, topk, draft = (context[f"speculative_{k}"] for k in ("num_steps", "eagle_topk", "num_draft_tokens"))
    eagle = spec in ("EAGLE", "EAGLE3", "STANDALONE")
    if eagle and steps is None and topk is None and draft is None:
        llama = context["arch"] in ("LlamaForCausalLM", "Grok1ForCausalLM") and spec != "STANDALONE"
        steps, topk, draft = (5, 4, 8) if llama else (3, 1, 4)
    if spec in BLOCK_DRAFTERS:
        block, steps, topk = context.get(f"speculative_{spec.lower()}_block_size"), 1, 1
        draft = draft if block is None else block + (spec == "DSPARK")
    if spec == "NGRAM":
        topk, draft = context["speculative_ngram_max_bfs_breadth"], 12 if draft is None else draft
    context.update(spec=spec, eagle_family=eagle, steps=steps, topk=topk, draft_tokens=draft)
    adjusted = eagle and topk == 1 and steps is not None
    context["draft_tokens_run"] = steps + 1 if adjusted else draft
    # Earlier releases sized the caches without the draft, which used memory outside mem_fraction_static.
    context["draft_inside"] = version.within("0.5.14", None)


def _mamba(context: dict[str, Any], version: Version) -> None:
    """Set how SGLang divides the state pool of a hybrid model."""
    # SGLang chooses the strategy after the model's own page size and before that of the attention backend.
    sparse = context["dsa"] or context["dsv4"] or context["arch"] == "Qwen4ExpForConditionalGeneration"
    never = context["no_extra_buffer"] or (
        context["arch"] == "KimiLinearForCausalLM" and version.within(None, "0.5.15")
    )
    context["extra_buffer"] = not never and context["linear_attn_backend"] in (None, "triton")
    strategy = context["mamba_radix_cache_strategy"] or "auto"
    overlap = not context["disable_overlap_schedule"]
    if strategy == "auto":
        # This change allows speculation with the radix cache, which requires the extra_buffer strategy.
        # Without the change, behaviour is that of releases before 0.5.14.
        modern = version.within("0.5.14", None) or (context["spec"] and NEMOTRON_RADIX_PATCH in context["carries"])
        paged = sparse or (context["page_size"] or 1) > 1
        strategy = "extra_buffer" if modern and context["extra_buffer"] and (overlap or paged) else "no_buffer"
    if version.within(None, "0.5.10") and context["spec"] and not context["spec_v2"]:
        overlap = False
    if strategy == "no_buffer" and context["spec"] is None and not context["disable_radix_cache"]:
        overlap = False
    ratio = mamba_ratio(strategy, overlap, not context["disable_radix_cache"])
    pool = context["max_mamba_cache_size"]
    context.update(
        mamba_strategy=strategy,
        mamba_ratio=ratio if context["hybrid"] else None,
        mamba_parallel=pool // ratio if context["hybrid"] and pool is not None else None,
        # States of draft tokens use the share of the states; earlier releases reserved memory for them first.
        mamba_jointly=version.within("0.5.13", None),
    )


def _graphs(context: dict[str, Any], version: Version, given: frozenset[str]) -> None:
    """Set the reason why SGLang disables the prefill graph on its own, or None."""
    # Since 0.5.15 the prefill graph is breakable, which works with some multimodal models since 0.5.16.
    breakable = context["breakable_multimodal"] and version.within("0.5.16", None)
    reasons: list[tuple[bool, str]] = [
        (context["no_prefill_graph"], "the architecture is on SGLang's list"),
        (context["multimodal"] and not breakable, "the architecture is multimodal"),
        (bool(context["spec"]) and version.within(None, "0.5.10"), "speculative decoding is on"),
        ((context["pp_size"] or 1) > 1, "pp_size is above 1"),
        (context["moe_a2a_backend"] not in (None, "none"), "moe_a2a_backend is set"),
        (bool(context["enable_lora"] or context["lora_paths"]), "LoRA is on"),
        (bool(context["enable_dp_attention"]) and version.within(None, "0.5.21"), "attention DP is on"),
        (bool(context["cpu_offload_gb"]) or bool(context["enable_hierarchical_cache"]), "the cache is offloaded"),
        ("gguf" in (context["load_format"], context["quantization"]), "the checkpoint is GGUF"),
    ]
    if version.within(None, "0.5.13") and "--disable-piecewise-cuda-graph" not in context["options"]:
        # --disable-cuda-graph maps to the newer names of both phases, but here it disables only decode graphs.
        context["cuda_graph_backend_prefill"] = None
    explicit = context["cuda_graph_backend_prefill"] if "cuda_graph_backend_prefill" in given else None
    forced = explicit == "tc_piecewise" or (explicit is not None and version.within("0.5.14", None))
    why = None if forced else next((reason for applies, reason in reasons if applies), None)
    exists = version.within("0.5.10", None)
    context["piecewise_off"] = why if exists else None
    off = explicit == "disabled"
    context["prefill_graph"] = exists and why is None and not off and not context["disable_prefill_cuda_graph"]
    context["decode_graph"] = (
        context["cuda_graph_backend_decode"] != "disabled" and not context["disable_decode_cuda_graph"]
    )


def derive(context: dict[str, Any], version: Version, given: frozenset[str]) -> None:
    """Add SGLang's own decisions to a context."""
    _speculation(context, version)
    _mamba(context, version)
    _graphs(context, version, given)
    default_slots = context["spec"] in ("EAGLE", "EAGLE3", "STANDALONE", "FROZEN_KV_MTP", "NGRAM", "DFLASH")
    asked = context["max_running_requests"]
    context["slots"] = 48 if default_slots and asked is None else asked
    # Waterfill, named after deepep up to 0.5.15, selects the dispatcher deepep.
    waterfill = context["enable_waterfill"] or context["enable_deepep_waterfill"]
    spread = context["moe_a2a_backend"] not in (None, "none") or waterfill
    context["ep_run"] = context["tp_size"] if spread else context["ep_size"]
