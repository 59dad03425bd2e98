# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Cases of the rules about graphs, parallel sizes and hardware."""

from __future__ import annotations

from .words import EAGLE, GEMMA, GLM, K2, MINIMAX, MOVA, QWEN, SIZES

CASES = [
    ("graph.eager_regime", "error", "0.5.10", f"{SIZES} --ep-size 4 --disable-cuda-graph", QWEN,
     "0.5.10", f"{SIZES} --disable-cuda-graph", QWEN),
    ("graph.eager_regime", "info", "0.5.10", f"{SIZES} --ep-size 4 --disable-cuda-graph", MINIMAX,
     "0.5.10", f"{SIZES} --disable-cuda-graph", MINIMAX),
    ("graph.eager_regime", "info", "0.5.10",
     f"{SIZES} --ep-size 4 --cuda-graph-max-bs 8 --max-running-requests 32", QWEN,
     "0.5.10", f"{SIZES} --ep-size 4 --cuda-graph-max-bs 8 --max-running-requests 8", QWEN),
    ("graph.eager_regime", "info", "0.5.10", f"{SIZES} --ep-size 4 --cuda-graph-max-bs 8", QWEN,
     "0.5.10", f"{SIZES} --cuda-graph-max-bs 8", QWEN),
    ("graph.eager_regime", "info", "0.5.10", "--cuda-graph-max-bs 8 --max-running-requests 32", GEMMA,
     "0.5.10", "--cuda-graph-max-bs 32 --max-running-requests 32", GEMMA),
    ("graph.eager_regime", "info", "0.5.23", "--cuda-graph-max-bs-decode 8 --max-running-requests 32", QWEN,
     "0.5.23", "--cuda-graph-max-bs-decode 32 --max-running-requests 32", QWEN),
    ("graph.piecewise.autooff", "info", "0.5.10", "", QWEN, "0.5.10", "", GLM),
    ("graph.piecewise.autooff", "info", "0.5.23", "", GEMMA, "0.5.9", "", GEMMA),
    ("graph.piecewise.autooff", "info", "0.5.15", "", QWEN, "0.5.16", "", QWEN),
    ("graph.piecewise.autooff", "info", "0.5.10", "--disable-piecewise-cuda-graph", QWEN, "0.5.10",
     "--disable-piecewise-cuda-graph", GLM),
    ("graph.piecewise.autooff", "info", "0.5.10", f"{EAGLE} 4", {}, "0.5.14", f"{EAGLE} 4", {}),
    ("graph.piecewise.nvfp4", "error", "0.5.10", "", {**GLM, "patches": ()}, "0.5.10", "",
     {**GLM, "patches": (), "carries": ("sglang#23745",)}),
    ("hw.other", "error", "0.5.16", "--attention-backend aiter", {}, "0.5.16", "--attention-backend triton", {}),
    ("hw.sm12x", "error", "0.5.20", "--moe-runner-backend experimental_sgl_trtllm", {},
     "0.5.20", "--moe-runner-backend triton", {}),
    ("hw.sm12x", "error", "0.5.23", "--moe-runner-backend megamoe", {},
     "0.5.23", "--moe-runner-backend megamoe", {"gpu": "b300"}),
    ("model.arch.unsupported", "warning", "0.5.10", "", GEMMA, "0.5.11", "", GEMMA),
    ("model.arch.unsupported", "error", "0.5.10", "", {**GEMMA, "patches": ()},
     "0.5.10", "", {**GEMMA, "patches": (), "carries": (GEMMA["arch"],)}),
    ("model.k2horizon", "warning", "0.5.20", "", K2, "0.5.20", "", {**K2, "carries": ("xllm-fp8",)}),
    ("model.k2horizon", "error", "0.5.20", "", {**K2, "patches": ()}, "0.5.20", "",
     {**K2, "quantization": "compressed-tensors", "patches": ()}),
    ("model.k2horizon.router", "warning", "0.5.20", MOVA, K2, "0.5.20",
     f"{MOVA} --json-model-override-args '{{\"xllm_source_router_gemm_partitions\": 2}}'", K2),
    ("hw.sm12x", "error", "0.5.20", f"{SIZES} --moe-a2a-backend pplx --enable-dp-attention --dp-size 4", {},
     "0.5.20", f"{SIZES} --moe-a2a-backend pplx --enable-dp-attention --dp-size 4", {"gpu": "b300"}),
    ("par.kv_heads", "error", "0.5.23", "--tp-size 3 --nnodes 3", {**GLM, "kv_heads": 8},
     "0.5.23", "--pp-size 3 --nnodes 3", {**GLM, "kv_heads": 8}),
    ("par.kv_heads", "error", "0.5.10", "--tp-size 3 --nnodes 3", {**QWEN, "kv_heads": 2},
     "0.5.10", f"{SIZES}", {**QWEN, "kv_heads": 2}),
    ("par.dp", "error", "0.5.23", "--dp-size 2", {}, "0.5.23", "--dp-size 2", {"gpus_per_node": 2}),
    ("par.nnodes", "error", "0.5.13", "--tp-size 4 --nnodes 3", {}, "0.5.13", SIZES, {}),
    ("par.nnodes", "error", "0.5.13", "--tp-size 8 --nnodes 4", {}, "0.5.13", "--tp-size 8 --nnodes 4",
     {"gpus_per_node": 2}),
]  # fmt: skip
