# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Load the experts' zero points by their index on this rank; the loader uses the index in the whole model."""

from __future__ import annotations

from gb10_patch import Edit, run

FILE = "sglang/srt/layers/quantization/moe_wna16.py"
LOCAL = """                local_id = layer._map_global_expert_id_to_local_expert_id(expert_id)
                if local_id == -1:
                    return
                moe_rank = tp_rank % layer.moe_tp_size
"""
W13_OLD = """            if "w13_qzeros" in weight_name:
                tensor = loaded_weight.view(
                    layer.moe_tp_size, -1, loaded_weight.size(1)
                )[tp_rank]
                if shard_id == "w1":
                    param.data[expert_id, : shard_size // 2] = tensor
                else:
                    param.data[expert_id, shard_size // 2 :] = tensor
"""
W13_NEW = f"""            if "w13_qzeros" in weight_name:
{LOCAL}                tensor = loaded_weight.view(
                    layer.moe_tp_size, -1, loaded_weight.size(1)
                )[moe_rank]
                if shard_id == "w1":
                    param.data[local_id, : shard_size // 2] = tensor
                else:
                    param.data[local_id, shard_size // 2 :] = tensor
"""
W2_OLD = """            elif "w2_qzeros" in weight_name:
                param.data[expert_id] = loaded_weight.view(
                    loaded_weight.size(0), layer.moe_tp_size, -1
                )[:, tp_rank]
"""
W2_NEW = f"""            elif "w2_qzeros" in weight_name:
{LOCAL}                param.data[local_id] = loaded_weight.view(
                    loaded_weight.size(0), layer.moe_tp_size, -1
                )[:, moe_rank]
"""

run("moe-wna16-ep-qzeros", [Edit(FILE, W13_OLD, W13_NEW), Edit(FILE, W2_OLD, W2_NEW)])
