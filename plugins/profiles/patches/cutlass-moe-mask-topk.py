# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Set the weight of experts on other ranks to zero in cutlass_moe_fp4, whose rows for them hold wrong results."""

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
