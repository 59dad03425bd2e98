# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The directory of a node that keeps compiled kernels over restarts. Private to the collection."""

from __future__ import annotations

import hashlib

from .model import Plan

CACHE = "/opt/gb10-cache"
# A release ignores the variables that it does not know. HOME's .cache is not used: models that SGLang downloads itself
# are there too. SGLang sets DeepGEMM's own variable from SGLANG_DG_CACHE_DIR. SGLang's own kernels
# ignore SGLANG_CACHE_DIR (kernels/jit/utils/compile/cache.py of 0.5.20 and 0.5.23). Extensions that torch compiles are
# not kept: a process that is killed while it compiles leaves a lock there, and the next one would wait for ever.
_VARIABLES = {
    "TRITON_CACHE_DIR": "triton",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TVM_FFI_CACHE_DIR": "tvm-ffi",
    "CUTE_DSL_CACHE_DIR": "cute-dsl",
    "SGLANG_DG_CACHE_DIR": "deep-gemm",
    "SGLANG_CACHE_DIR": "sglang",
    "SGLANG_JIT_CACHE_DIR": "sglang-jit",
    "TILELANG_CACHE_DIR": "tilelang",
    "CUDA_CACHE_PATH": "cuda",
}


def cache_env() -> dict[str, str]:
    """Return the variables that make all compilers of a rank use the mounted directory."""
    return {variable: f"{CACHE}/{name}" for variable, name in _VARIABLES.items()}


def cache_key(plan: Plan, arch: str, digest: str) -> str:
    """Return the name of a group's directory: compiled kernels fit only one image, release and architecture.

    ``digest`` is what the nodes report for the image. The name of an imported image has none, and its tag may stand for
    another image tomorrow. A server that runs as an ordinary user cannot write files of root, so it gets a directory of
    its own.
    """
    image = plan.image if "@" in plan.image else f"{plan.image} {digest}"
    material = f"{image} {plan.sglang_version} {arch} {plan.rdma_mode == 'restricted'}"
    return f"{plan.sglang_version}-{arch or 'any'}-{hashlib.sha256(material.encode()).hexdigest()[:12]}"
