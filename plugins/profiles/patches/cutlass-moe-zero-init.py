# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Initialize the expert maps of cutlass_moe with zeros: rows of experts on other ranks are read but never written."""

from __future__ import annotations

from gb10_patch import Edit, run

SHAPE = "((topk_ids.numel()), dtype=torch.int32, device=device)"

run(
    "cutlass-moe-zero-init",
    [
        Edit("sglang/srt/layers/moe/cutlass_moe.py", f"{name} = torch.empty{SHAPE}", f"{name} = torch.zeros{SHAPE}")
        for name in ("a_map", "c_map")
    ],
)
