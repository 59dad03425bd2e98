# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the facts that are read from a model's config.json."""

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.models import facts_of, read_facts


def test_the_width_of_an_expert_is_counted_in_blocks_of_its_scales() -> None:
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 128,
        "moe_intermediate_size": 768,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
    assert facts_of(config, "a/b", "s")["expert_blocks"] == 6
    assert "expert_blocks" not in facts_of({**config, "quantization_config": {"quant_method": "fp8"}}, "a/b", "s")


@pytest.mark.parametrize(
    "config",
    [
        {"quantization_config": "fp8"},
        {"quantization_config": [1]},
        {"full_attention_interval": 4},
        {"num_experts": 8, "moe_intermediate_size": 768, "quantization_config": {"weight_block_size": [0, 0]}},
        {"num_experts": 8, "moe_intermediate_size": 768, "quantization_config": {"weight_block_size": 128}},
        {"local_layer_ids": [0, 1]},
        {"compress_ratios": [4, 128]},
        {"architectures": [""]},
    ],
    ids=str,
)
def test_a_damaged_config_is_refused_by_its_name(tmp_path: Path, config: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Qwen3NextForCausalLM"], **config}))
    with pytest.raises(ValueError, match=r"config\.json"):
        read_facts(tmp_path, "a/b")


def test_a_list_of_weights_that_is_a_pointer_of_git_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["Qwen3NextForCausalLM"]}')
    (tmp_path / "model.safetensors.index.json").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(ValueError, match=r"config\.json.*beside it"):
        read_facts(tmp_path, "a/b")
