# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Allow the SM120 block-scaled instruction of the CUTLASS DSL on GB10 (SM121), as DSL releases from 4.5.0 do.

The class is MmaSM120BlockScaledOp. A published report names BlockScaledMmaOp, which describes tcgen05, the instruction
of SM100; SM12x does not have it, so that admitting sm_121a there would not help.

SGLang up to 0.5.10 does not pin the DSL, so an image may contain a release without the instruction (4.3) or a release
that already allows SM121.
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
