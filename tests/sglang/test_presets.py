# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask the four newest releases whether they accept the presets that are meant for current releases."""

from collections.abc import Mapping
from typing import Any

import _sglang_environment
import pytest
import sglang_catalogue
from ansible_collections.gb10.cluster.plugins.module_utils._common.versions import Version
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.models import Model, find, find_draft
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile import Library, resolve, topology_argv
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile_files import find_profiles, load_profile

LIBRARY = Library.load()
NEWEST = [str(catalogue.version) for catalogue in LIBRARY.knowledge.history.catalogues[-4:]]
TYPES = {
    "BailingMoeV3ForCausalLM": "bailing_hybrid",
    "DFlash2DraftModel": "qwen3",
    "DeepseekV41ForCausalLM": "deepseek_v41",
    "DeepseekV4ForCausalLM": "deepseek_v4",
    "Gemma4AssistantForCausalLM": "gemma4_assistant",
    "Gemma4ForConditionalGeneration": "gemma4",
    "Glm4MoeForCausalLM": "glm4_moe",
    "Glm5NextForConditionalGeneration": "glm5_next",
    "GptOssForCausalLM": "gpt_oss",
    "InklingForConditionalGeneration": "inkling_mm_model",
    "LingDSparkModel": "qwen3",
    "Llama4ForConditionalGeneration": "llama4",
    "MiniMaxM2ForCausalLM": "minimax_m2",
    "MistralLarge3ForCausalLM": "deepseek_v3",
    "NemotronHForCausalLM": "nemotron_h",
    "NemotronHForCausalLMMTP": "nemotron_h",
    "Qwen3DSparkModel": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Qwen3NextForCausalLM": "qwen3_next",
    "Qwen3_5ForConditionalGeneration": "qwen3_5",
    "Qwen3_5MoeForConditionalGeneration": "qwen3_5_moe",
    "Qwen4ExpForConditionalGeneration": "qwen4_exp",
}
"""``model_type`` of each architecture in the shipped facts."""
V4: dict[str, Any] = {
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "num_hidden_layers": 43,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "sliding_window": 128,
    "expert_dtype": "fp4",
    "compress_ratios": [0, 0, *[4, 128] * 20, 4],
    "index_topk": 512,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "num_nextn_predict_layers": 1,
    "dspark_block_size": 5,
    "dspark_markov_rank": 256,
    "dspark_noise_token_id": 128799,
    "dspark_target_layer_ids": [40, 41, 42],
}
SIZES: dict[str, dict[str, Any]] = {
    "deepseek_v4": V4,
    "deepseek_v41": V4 | {"compress_ratios": [0, 0, *[2, 1] * 20, 2]},
    "glm5_next": {"num_attention_heads": 64},
}
"""Sizes of which a release has no default."""
WITH_TEXT = ("gemma4", "glm5_next", "llama4", "qwen3_5", "qwen3_5_moe", "qwen4_exp")


def config(model: Model) -> dict[str, Any]:
    """Return a config.json with the published facts; the release fills in the rest."""
    kind = TYPES[model.architecture]
    sizes = {"max_position_embeddings": model.max_context or 1048576, "num_attention_heads": 32, **SIZES.get(kind, {})}
    found = {"architectures": [model.architecture], "model_type": kind, "torch_dtype": "bfloat16"}
    if kind.startswith("deepseek_v4"):
        experts = {"quant_algo": "MIXED_PRECISION", "moe_quant_algo": "NVFP4", "group_size": 16}
        blocks = {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"}
        found["quantization_config"] = blocks | (experts if model.quantization == "modelopt_mixed" else {})
    if kind in WITH_TEXT:
        return found | {"text_config": {"model_type": f"{kind}_text", **sizes}}
    if kind == "gemma4_assistant":
        per_layer = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
        return found | {"text_config": {"model_type": "gemma4_text", **per_layer, **sizes}}
    if kind == "inkling_mm_model":
        return found | {"text_config": sizes}
    return found | sizes


def needs_fork(profile: Mapping[str, Any], version: str) -> bool:
    """Return whether the profile's image for this release has flag values that no release has."""
    images = [image for image in profile.get("images", ()) if image["sglang"] == version]
    return any(word.startswith("--") for image in images for word in image.get("carries", ()))


def questions(version: str) -> dict[str, dict[str, Any]]:
    """Return a question per preset whose own release is 0.5.16 or later."""
    asked = {}
    for name in find_profiles():
        profile = load_profile(name)
        for preset in profile["presets"]:
            resolved = resolve(profile, preset, library=LIBRARY)
            if resolved.hardware != "gb10" or not is_asked(profile, resolved.sglang_version, version):
                continue
            there = resolve(profile, preset, version, {"image": "any@sha256:0"}, LIBRARY)
            assert not [f for f in there.findings if f.severity == "error"], (name, preset)
            target = find(LIBRARY.models, there.model["repo"])
            draft = find_draft(LIBRARY.models, there.model["draft"])
            assert target is not None
            if there.model["draft"] and draft is None:
                continue
            question = {"argv": ["--model-path", "m", *there.argv, *topology_argv(there.topology)],
                        "arch": target.architecture, "config": config(target)}  # fmt: skip
            if draft is not None:
                question |= {"draft_arch": draft.architecture, "draft_config": config(draft)}
            asked[f"{name}/{preset}"] = question
    return asked


def is_asked(profile: Mapping[str, Any], release: str, version: str) -> bool:
    """Return whether a preset for a release is meant for this version of the stock server too."""
    current = Version.parse(release).within("0.5.16", None)
    return current and Version.parse(version).within(release, None) and not needs_fork(profile, release)


@pytest.mark.parametrize("version", NEWEST)
def test_presets_for_current_releases_are_accepted_by_the_releases(version: str) -> None:
    asked = questions(version)
    answers = _sglang_environment.ask(sglang_catalogue.unpack(version), sglang_catalogue.CACHE, list(asked.values()))
    refused = {
        name: answer["message"] for name, answer in zip(asked, answers, strict=True) if answer["verdict"] != "accepted"
    }
    assert not refused
    shipped = {name: load_profile(name) for name in find_profiles()}
    wanted = {
        name
        for name, profile in shipped.items()
        if profile.get("hardware", "gb10") == "gb10"
        and any(is_asked(profile, resolve(profile, preset).sglang_version, version) for preset in profile["presets"])
    }
    assert {name.partition("/")[0] for name in asked} == wanted
