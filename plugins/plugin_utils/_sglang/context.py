# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The names that rules can use: the flags of a release, facts, and what SGLang decides itself.

Private to the collection.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version

from .catalogue import Catalogue, History, Parsed, canonical
from .facts import GPUS, Facts, Setting
from .resolve import derive, named_weights

_TRUE = frozenset({"1", "true", "yes", "y", "on", "t"})


Groups = Mapping[str, frozenset[str]]
"""Architectures by the name of their group, to which rules refer."""


def _defaults(catalogue: Catalogue, history: History) -> dict[str, Any]:
    """Return the default of this release for every canonical key of any release."""
    if catalogue.version not in history.defaults:
        values: dict[str, Any] = {}
        for other in (*history.catalogues, catalogue):
            # Renamed flags come first, so that the default of the newest name counts.
            for flag in sorted(other.flags, key=lambda flag: flag.name not in history.forward):
                default = False if flag.is_switch and flag.default is None else flag.default
                values.update(canonical(history, flag, default if other is catalogue else None))
        history.defaults[catalogue.version] = values
    return dict(history.defaults[catalogue.version])


def _facts(context: dict[str, Any], facts: Facts, setting: Setting, groups: Groups) -> None:
    arch = facts.arch
    context.update({group: arch in members for group, members in groups.items()})
    known = True if context["moe"] or "moe" in (arch or "").lower() else False if context["dense"] else None
    quantization = context["quantization"] or facts.quantization
    modelopt = (facts.quantization or "").startswith("modelopt")
    replaced = modelopt and arch in groups["nemotron"]
    if quantization == "modelopt" or replaced:
        quantization = facts.quantization or quantization  # SGLang reads the method from the checkpoint
    override = _override(context["json_model_override_args"])
    capability, unified, memory = GPUS[setting.gpu]
    env = setting.env
    spec_v2_env = env.get("SGLANG_ENABLE_SPEC_V2")
    context.update(
        arch=arch,
        draft_arch=facts.draft_arch,
        assistant_draft=facts.draft_arch in groups["gemma4_assistant"],
        moe=known if facts.moe is None else facts.moe,
        quant=quantization,
        nvfp4=quantization in ("modelopt_fp4", "modelopt_mixed", "nvfp4"),
        sm=capability,
        sm12x=capability // 10 == 12,
        unified=unified,
        gpu_memory=memory,
        gpus_per_node=setting.gpus_per_node,
        carries=setting.carries,
        patches=setting.patches,
        spec_v2_env=spec_v2_env,
        spec_v2=None if spec_v2_env is None else spec_v2_env.lower() in _TRUE,
        longer_context_env=env.get("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "").lower() in _TRUE,
        max_context=(override or {}).get("max_position_embeddings", facts.max_context),
        expert_blocks=facts.expert_blocks,
        kv_heads=(override or {}).get("num_key_value_heads", facts.kv_heads),
        prefill_attn=context["prefill_attention_backend"] or context["attention_backend"],
        decode_attn=context["decode_attention_backend"] or context["attention_backend"],
    )


def _architecture(context: dict[str, Any], catalogue: Catalogue, history: History) -> None:
    """Set whether the release has the model's class, and a suggestion if no release has it."""
    arch = context["arch"]
    context["arch_known"] = arch is None or arch in catalogue.architectures
    context["arch_hint"] = ""
    if context["arch_known"]:
        return
    having = [str(other.version) for other in history.catalogues if arch in other.architectures]
    close = get_close_matches(arch or "", catalogue.architectures, n=1)
    meant = f" (did you mean {close[0]}?)" if close else ""
    context["arch_hint"] = f" ({having[0]} to {having[-1]})" if having else meant


def _override(text: Any) -> dict[str, Any] | None:
    """Return the config changes that a command line makes to the checkpoint, or None if they are not a JSON object."""
    try:
        override = json.loads(text or "{}")
    except (TypeError, ValueError):
        return None
    return override if isinstance(override, dict) else None


def _packages(context: dict[str, Any], catalogue: Catalogue, setting: Setting) -> None:
    """Set the version of transformers that the image carries, else the one that the release's wheel pins."""
    start = "transformers>="
    pinned = Version.find(catalogue.requires.get("transformers"))
    carried = Version.find(next((w.removeprefix(start) for w in setting.carries if w.startswith(start)), None))
    context["transformers"] = str(carried or pinned or "an unknown version")
    context["transformers_58"] = any(found.within("5.8", None) for found in (carried, pinned) if found)


def build_context(
    catalogue: Catalogue,
    history: History,
    version: Version,
    parsed: Parsed,
    facts: Facts,
    setting: Setting,
    groups: Groups,
) -> dict[str, Any]:
    """Return the names that rules can use: every flag by its newest name, facts, and SGLang's own decisions."""
    context = _defaults(catalogue, history)
    context.update({key: value for key, value in parsed.refused.items() if key in context})
    context.update({key: value for key, value in parsed.values.items() if key in context})
    context["options"] = tuple(item.written for item in parsed.items)
    _facts(context, facts, setting, groups)
    _architecture(context, catalogue, history)
    if context["spec_v2"] is None:
        context["spec_v2"] = version.within("0.5.11", None)
    _packages(context, catalogue, setting)
    context["sglang"] = str(version)
    # SGLang switches attention DP off if there is only one group.
    attention_groups = context["dp_size"] if context["enable_dp_attention"] else context["attn_dp_size"]
    context["attention_dp"] = (attention_groups or 1) > 1
    derive(context, version, frozenset(parsed.values))
    context["graph_state"] = "on" if context["decode_graph"] else "off"
    nodes = context["nnodes"] or 1
    context["world"] = (context["tp_size"] or 1) * (context["pp_size"] or 1)
    context["named_gib"] = named_weights(str(context["model_path"] or ""), context["quant"], max(context["world"], 1))
    context["ranks_per_node"] = context["world"] // nodes if nodes > 0 else None
    return context
