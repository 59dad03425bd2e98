# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Published facts about models: a few values of their config.json, each with its source. Private to the collection."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from .._controller.data import PROFILES
from .schema import load_schema, violations

# What is known beside the flags: the model, the GPU, and what the image carries.

GPUS: dict[str, tuple[int, bool, float]] = {
    "gb10": (121, True, 119.0),
    "b300": (103, False, 268.6),
    "b200": (100, False, 179.0),
    "h200": (90, False, 139.0),
    "h100": (90, False, 79.0),
    "rtx-pro-6000": (120, False, 95.0),
    "rtx-5090": (120, False, 31.4),
}
"""Known GPUs: compute capability, whether CPU and GPU share memory, and the visible GiB."""
PROCESSORS = {"gb10": 48, "b300": 148, "b200": 148, "h200": 132, "h100": 132, "rtx-pro-6000": 188, "rtx-5090": 170}
"""Streaming multiprocessors of the known GPUs, as CUDA reports them."""


def described(gpu: str, count: int) -> dict[str, object]:
    """Return a known GPU as SGLang's questions about it are answered without one; ``memory`` is in GiB."""
    capability, _unified, memory = GPUS[gpu]
    return {
        "name": f"NVIDIA {gpu.replace('-', ' ').upper()}",
        "capability": list(divmod(capability, 10)),
        "count": count,
        "memory": memory,
        "processors": PROCESSORS[gpu],
    }


@dataclass(frozen=True)
class Facts:
    """Facts about the model: a few values of its config.json; None means unknown, not absent."""

    arch: str | None = None
    draft_arch: str | None = None
    quantization: str | None = None
    moe: bool | None = None
    max_context: int | None = None
    kv_heads: int | None = None
    expert_blocks: int | None = None


@dataclass(frozen=True)
class Setting:
    """The environment of the flags: hardware, extras of the image, variables; ``patches`` is None if unknown."""

    gpu: str = "gb10"
    gpus_per_node: int = 1
    carries: tuple[str, ...] = ()
    patches: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)


NAMES: dict[str, tuple[str, ...]] = {
    "max_context": ("max_position_embeddings", "model_max_length"),
    "layers": ("num_hidden_layers",),
    "experts": ("n_routed_experts", "num_experts", "num_local_experts"),
    "draft_layers": ("num_nextn_predict_layers", "mtp_num_hidden_layers"),
    "mamba_heads": ("linear_num_value_heads", "mamba_num_heads"),
    "mamba_head_dim": ("linear_value_head_dim", "mamba_head_dim"),
    "mamba_state_size": ("linear_key_head_dim", "ssm_state_size"),
    "mamba_groups": ("linear_num_key_heads", "n_groups"),
    "mamba_conv": ("linear_conv_kernel_dim", "conv_kernel"),
}
"""Facts and the names that architectures give them: Qwen's linear attention first, Nemotron's Mamba second."""

KINDS = {"mamba": "linear_attention", "attention": "full_attention"}
"""Kinds of layers that Nemotron names otherwise than Qwen and Gemma."""

MODELOPT = {"NVFP4": "modelopt_fp4", "FP8": "modelopt_fp8", "MIXED_PRECISION": "modelopt_mixed"}
"""Quantizations of ModelOpt and SGLang's names for them (model_config.py, _parse_modelopt_quant_config)."""


def facts_of(config: Mapping[str, Any], repo: str, source: str) -> dict[str, Any]:
    """Return the facts as ``plugins/profiles/models`` has them; raise ValueError if the file names no architecture."""
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures or not architectures[0]:
        raise ValueError(f"{source}: it names no architecture. Give the config.json of the model's repository")
    text = config.get("text_config")
    text = text if isinstance(text, Mapping) else config
    facts: dict[str, Any] = {"repo": repo, "architecture": str(architectures[0])}
    facts |= {"evidence": "measured", "source": source}
    for fact, names in NAMES.items():
        found = next((text[name] for name in names if isinstance(text.get(name), int)), None)
        if found:
            facts[fact] = found
    facts["moe"] = "experts" in facts
    quantization = quantization_of(config)
    if quantization:
        facts["quantization"] = quantization
    blocks = (config.get("quantization_config") or {}).get("weight_block_size")
    if blocks and facts["moe"] and isinstance(width := text.get("moe_intermediate_size"), int):
        facts["expert_blocks"] = width // max(blocks)
    return facts | _attention(text)


def quantization_of(config: Mapping[str, Any]) -> str | None:
    """Return SGLang's name of the checkpoint's quantization."""
    about = config.get("quantization_config") or config.get("compression_config") or {}
    if about.get("moe_quant_algo") == "NVFP4":
        return "modelopt_mixed"  # blocks in fp8 and experts in NVFP4: DeepSeek-V4 (HybridFp8NvFp4Config)
    method = str(about.get("quant_method") or "")
    algorithm = str(about.get("quant_algo") or "")
    return MODELOPT.get(algorithm, method) if method.startswith("modelopt") else method or None


def _attention(text: Mapping[str, Any]) -> dict[str, Any]:
    """Return the heads, and the number of layers of each kind."""
    facts: dict[str, Any] = {}
    kv_heads, heads = text.get("num_key_value_heads"), text.get("num_attention_heads")
    head_dim = text.get("head_dim") or (text.get("hidden_size", 0) // heads if heads else None)
    kinds = [KINDS.get(kind, kind) for kind in text.get("layer_types") or text.get("layers_block_type") or []]
    if (local := text.get("local_layer_ids")) is not None:
        kinds = ["sliding_attention" if n in local else "full_attention" for n in range(text["num_hidden_layers"])]
    pattern = str(text.get("hybrid_override_pattern") or "")
    full, linear = kinds.count("full_attention"), kinds.count("linear_attention")
    if pattern:
        full, linear = pattern.count("*"), pattern.count("M")
    elif not kinds and text.get("full_attention_interval"):
        full = text["num_hidden_layers"] // text["full_attention_interval"]
        linear = text["num_hidden_layers"] - full
    if sliding := kinds.count("sliding_attention"):
        facts |= {"sliding_layers": sliding, "sliding_kv_heads": text.get("swa_num_key_value_heads") or kv_heads}
        facts["sliding_head_dim"] = text.get("swa_head_dim") or head_dim
        facts["sliding_window"] = text.get("sliding_window") or text.get("sliding_window_size")
        kv_heads, head_dim = text.get("num_global_key_value_heads") or kv_heads, text.get("global_head_dim") or head_dim
    if text.get("layers_block_type"):
        facts["layers"] = len(kinds)
    if latent := _latent(text):
        facts |= latent
        kv_heads = head_dim = None
    facts |= {
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "attention_layers": full or None,
        "mamba_layers": linear or None,
    }
    return {key: value for key, value in facts.items() if value is not None}


def _latent(text: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of latent attention: DeepSeek-V4 with its compressed layers, or MLA; else nothing."""
    rope, index = text.get("qk_rope_head_dim") or 0, text.get("index_head_dim") or 0
    found = {key: size for key, size in (("rope_dim", rope), ("index_dim", index)) if size}
    if ratios := list(text.get("compress_ratios") or [])[: text.get("num_hidden_layers")]:
        # Layers that compress one or two tokens share the rows of a few source layers.
        sources = text.get("kv_source_layer_ids") or []
        kept = [ratio for layer, ratio in enumerate(ratios) if ratio > 2 or (ratio and layer in sources)]
        kinds = {str(ratio): kept.count(ratio) for ratio in sorted(set(kept))}
        return found | {"latent_dim": text["head_dim"] - rope, "compressed": kinds}
    return found | {"latent_dim": text["kv_lora_rank"]} if text.get("kv_lora_rank") else {}


def read_facts(path: Path, repo: str) -> dict[str, Any]:
    """Return the facts in a config.json or in the directory of a model; raise ValueError if there are none."""
    file = path / "config.json" if path.is_dir() else path
    name = repo or file.resolve().parent.name.replace("--", "/", 1)
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise ValueError(
            f"{file}: not a model's config.json: {getattr(problem, 'strerror', None) or problem}"
        ) from problem
    if not isinstance(config, Mapping):
        raise ValueError(f"{file}: not a model's config.json: it is not a mapping")
    beside, index = file.with_name("hf_quant_config.json"), file.with_name("model.safetensors.index.json")
    try:
        if beside.is_file() and not config.get("quantization_config"):
            # Older checkpoints of ModelOpt have their quantization in this file, which SGLang reads too.
            about = json.loads(beside.read_text(encoding="utf-8")).get("quantization") or {}
            config = {**config, "quantization_config": {"quant_method": "modelopt", **about}}
        facts = facts_of(config, name, f"config.json of {name}")
        if index.is_file():
            size = json.loads(index.read_text(encoding="utf-8"))["metadata"]["total_size"]
            facts["weights_gb"] = round(size / 1e9, 1)
    except (ArithmeticError, AttributeError, LookupError, OSError, TypeError, json.JSONDecodeError) as problem:
        reason = f"a value in it or in the files beside it is missing or of an unexpected kind: {problem!r}"
        raise ValueError(f"{file}: {reason}. Download these files again") from problem
    return facts


SHIPPED = PROFILES / "models"

MODEL_FLAGS = ("--model-path", "--model")
DRAFT_FLAGS = ("--speculative-draft-model-path", "--speculative-draft-model")


@dataclass(frozen=True)
class Model:
    """Facts of one repository; unknown values are None. Weights are in GB (10^9 bytes), parameters in units of 10^9.

    ``attention_layers``, ``kv_heads`` and ``head_dim`` describe full attention; layers with a sliding window have
    separate fields. With latent attention all heads share ``latent_dim`` numbers and ``rope_dim`` numbers of the
    position, and ``index_dim`` more if an indexer selects tokens; ``compressed`` has the number of layers by the tokens
    that one cached row stands for (DeepSeek-V4). ``draft_*`` describes the MTP layer of the checkpoint, if
    ``weights_gb`` does not include it. ``table_gb`` is the part of ``weights_gb`` that ple_offload_embedding moves.
    ``expert_blocks`` is the width of an expert in blocks that have one scale each (fp8 with ``weight_block_size``),
    which a rank cannot divide. ``evidence`` says with what the facts were compared.
    """

    repo: str
    architecture: str
    source: str
    moe: bool | None = None
    quantization: str | None = None
    max_context: int | None = None
    parameters_b: float | None = None
    weights_gb: float | None = None
    weights_note: str = ""
    table_gb: float | None = None
    layers: int | None = None
    attention_layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    latent_dim: int | None = None
    rope_dim: int = 0
    index_dim: int = 0
    compressed: Mapping[str, int] | None = None
    experts: int | None = None
    expert_blocks: int | None = None
    sliding_layers: int | None = None
    sliding_kv_heads: int | None = None
    sliding_head_dim: int | None = None
    sliding_window: int | None = None
    mamba_layers: int | None = None
    mamba_heads: int | None = None
    mamba_head_dim: int | None = None
    mamba_state_size: int | None = None
    mamba_groups: int | None = None
    mamba_conv: int | None = None
    draft_layers: int | None = None
    draft_gb: float | None = None
    draft_note: str = ""
    evidence: str = ""


@lru_cache(maxsize=4)
def load_models(directory: Path, *own: Path) -> Mapping[str, Model]:
    """Read the facts of all models, by repository in lower case; the first own directory has precedence.

    Raises ValueError that names the invalid file.
    """
    models: dict[str, Model] = {}
    for path in (file for place in (directory, *reversed(own)) for file in sorted(place.glob("*.json"))):
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            # A test checks the shipped facts, so that scripts can read them without jsonschema.
            checked = violations(facts, load_schema("model")) if path.parent.resolve() != SHIPPED.resolve() else ()
            wrong = [f"{found.place or 'file'}: {found.reason}" for found in checked]
        except (OSError, ValueError) as problem:
            raise ValueError(f"{path}: not the facts of a model: {problem}") from problem
        if wrong:
            raise ValueError(f"{path}: not the facts of a model: {'; '.join(wrong)}")
        models[facts["repo"].lower()] = Model(**facts)
    return models


def find(models: Mapping[str, Model], path: str | None) -> Model | None:
    """Return the facts of a model by its repository, or by a directory named ``name`` or ``org--name``."""
    if not path:
        return None
    last = path.rstrip("/").rpartition("/")[2].lower()
    found = models.get(path.lower()) or models.get(last.replace("--", "/", 1))
    if found is not None:
        return found
    name = last.rpartition("--")[2]
    return next((m for m in models.values() if m.repo.lower().rpartition("/")[2] == name), None)


def find_draft(models: Mapping[str, Model], path: str | None) -> Model | None:
    """Return the facts of a draft; the Gemma-4 assistants were first published with names that end in -mtp."""
    found = find(models, path)
    if found is not None or path is None:
        return found
    return find(models, f"{path.rstrip('/').lower().removesuffix('-mtp')}-assistant")


def facts_for(models: Mapping[str, Model], path: str | None, draft_path: str | None, given: Facts) -> Facts:
    """Add published facts about a model and its draft to ``given``, whose values take precedence."""
    model, draft = find(models, path), find_draft(models, draft_path)
    filled: dict[str, Any] = {}
    if model is not None and given.arch in (None, model.architecture):
        names = ("quantization", "moe", "max_context", "kv_heads", "expert_blocks")
        filled = {"arch": model.architecture, **{name: getattr(model, name) for name in names}}
    if draft is not None:
        filled["draft_arch"] = draft.architecture
    return replace(given, **{key: value for key, value in filled.items() if getattr(given, key) is None})


def flag_value(words: Sequence[str], *names: str) -> str | None:
    """Return the last value of a flag in a command line; None if it is not given."""
    found = None
    for index, word in enumerate(words):
        name, equals, text = word.partition("=")
        if name in names:
            found = text if equals else (words[index + 1] if index + 1 < len(words) else None)
    return found
