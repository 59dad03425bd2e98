# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let the CUTLASS DSL's SM120 block-scaled instruction be used on GB10 (SM121), as its releases from 4.5.0 do.

SGLang up to 0.5.10 asks for no exact release of the DSL, so that an image may hold one without the instruction (4.3)
or one that admits SM121 by itself.
"""

from __future__ import annotations

from gb10_patch import Edit, Right, run

FILE = "cutlass/cute/nvgpu/warp/mma.py"

run(
    "sm121-admissible-archs",
    [
        Edit(FILE, '        "sm_120a",\n    ]', '        "sm_120a",\n        "sm_121a",\n    ]'),
        Edit(FILE, "if not arch == Arch.sm_120a:", "if arch not in (Arch.sm_120a, Arch.sm_121a):"),
    ],
    right=[
        Right(FILE, "class MmaSM120BlockScaledOp", "this CUTLASS DSL has no SM120 block-scaled instruction", has=False),
        Right(FILE, "Arch.sm_121a", "this CUTLASS DSL admits sm_121a by itself"),
    ],
)
