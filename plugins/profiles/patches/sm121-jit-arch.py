# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compile SGLang's own CUDA kernels for sm_121a on GB10, because code for sm_121 has instructions it can't decode."""

from __future__ import annotations

from gb10_patch import Edit, run

FILE = "sglang/jit_kernel/utils.py"
SUFFIX = '"a" if (major, minor) == (12, 1) else ""'

run(
    "sm121-jit-arch",
    [Edit(FILE, '_CUDA_ARCH = ArchInfo(major, minor, "")', f"_CUDA_ARCH = ArchInfo(major, minor, {SUFFIX})")],
    # 0.5.9 passes the architecture to the compiler as text
    [Edit(FILE, 'return f"{major}.{minor}"\n', f'return f"{{major}}.{{minor}}" + ({SUFFIX})\n')],
)
