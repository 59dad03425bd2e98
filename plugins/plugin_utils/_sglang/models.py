# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Published facts about models: a few values of their config.json, each with its source. Private to the collection."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from .._paths import PROFILES
from .facts import Facts
from .schema import load_schema, violations

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
