# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let the CUTLASS DSL's SM120 block-scaled instruction be used on GB10 (SM121), as its releases from 4.5.1 do."""

from __future__ import annotations

from gb10_patch import Edit, run

FILE = "nvidia_cutlass_dsl/python_packages/cutlass/cute/nvgpu/warp/mma.py"

run(
    "sm121-admissible-archs",
    [
        Edit(FILE, '        "sm_120a",\n    ]', '        "sm_120a",\n        "sm_121a",\n    ]'),
        Edit(FILE, "if not arch == Arch.sm_120a:", "if arch not in (Arch.sm_120a, Arch.sm_121a):"),
    ],
)
