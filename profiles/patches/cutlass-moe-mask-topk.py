# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Give experts of other ranks no weight in the sum of cutlass_moe_fp4: their rows hold another expert's result."""

from __future__ import annotations

from gb10_patch import Edit, run

run(
    "cutlass-moe-mask-topk",
    [
        Edit(
            "sglang/srt/layers/moe/cutlass_moe.py",
            "c2 = c2 * topk_weights.view(m_a, num_topk, 1).to(out_dtype)",
            "c2 = c2 * topk_weights.masked_fill(topk_ids < 0, 0.0).view(m_a, num_topk, 1).to(out_dtype)",
        )
    ],
)
