# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Give the TileLang indexer of sparse attention two-dimensional shared buffers, which TileLang 0.1.8 requires."""

from __future__ import annotations

from gb10_patch import Edit, run

FILE = "sglang/srt/layers/attention/dsa/tilelang_kernel.py"
VIEW = "kvcache_u8 = kvcache_fp8{}.view(-1, block_size * (head_dim + 4))"

run(
    "dsv4-tilelang-indexer",
    [
        Edit(FILE, "k_smem_u8 = T.alloc_shared((B * D,), UINT8)", "k_smem_u8 = T.alloc_shared((1, B * D), UINT8)"),
        Edit(FILE, "k_s_smem_u8 = T.alloc_shared((B * 4,), UINT8)", "k_s_smem_u8 = T.alloc_shared((1, B * 4), UINT8)"),
        Edit(FILE, VIEW.format(""), VIEW.format(".view(torch.uint8)")),
    ],
)
