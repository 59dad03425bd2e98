# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reduce the input scales to this rank's experts, because they are loaded for all experts, unlike the weights."""

from __future__ import annotations

from gb10_patch import Edit, run

OLD = """            w13_input_scale = layer.w13_input_scale.max(dim=-1).values.to(torch.float32)
            w2_input_scale = layer.w2_input_scale
"""
NEW = """            w13_input_scale = layer.w13_input_scale.max(dim=-1).values.to(torch.float32)
            w2_input_scale = layer.w2_input_scale
            if layer.moe_ep_size > 1 and w13_input_scale.shape[0] == layer.num_experts:
                first_local = layer.moe_ep_rank * layer.num_local_experts
                local = slice(first_local, first_local + layer.num_local_experts)
                w13_input_scale = w13_input_scale[local]
                w2_input_scale = w2_input_scale[local]
"""

run("modelopt-ep-input-scale", [Edit("sglang/srt/layers/quantization/modelopt_quant.py", OLD, NEW)])
