# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the facts that are read from a model's config.json."""

from __future__ import annotations

from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.model_config import facts_of


def test_the_width_of_an_expert_is_counted_in_blocks_of_its_scales() -> None:
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 128,
        "moe_intermediate_size": 768,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
    assert facts_of(config, "a/b", "s")["expert_blocks"] == 6
    assert "expert_blocks" not in facts_of({**config, "quantization_config": {"quant_method": "fp8"}}, "a/b", "s")
