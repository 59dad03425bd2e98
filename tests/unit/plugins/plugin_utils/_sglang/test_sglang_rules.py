# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test every rule with a command line to which it applies and a similar one to which it does not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.expression import evaluate
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.rules import Rule, load_rules
from sglang_cases import KNOWLEDGE, PROFILES, ask, rules_of

NEMOTRON = {"arch": "NemotronHForCausalLM", "quantization": "modelopt_fp4"}
QWEN = {"arch": "Qwen3_5MoeForConditionalGeneration", "quantization": "modelopt_fp4"}
GLM = {"arch": "Glm4MoeForCausalLM", "quantization": "modelopt_fp4"}
MINIMAX = {"arch": "MiniMaxM2ForCausalLM", "quantization": "modelopt_fp4"}
OMNI = {"arch": "NemotronH_Nano_Omni_Reasoning_V3", "quantization": "modelopt_mixed"}
FP8 = {"arch": "Qwen3_5MoeForConditionalGeneration", "quantization": "fp8"}
DENSE_FP8 = {"arch": "LlamaForCausalLM", "quantization": "fp8"}
LLAMA4 = {"arch": "Llama4ForConditionalGeneration", "quantization": "modelopt_fp4"}
INKLING = {"arch": "InklingForConditionalGeneration", "quantization": "modelopt_fp4"}
DSA = {"arch": "GlmMoeDsaForCausalLM", "quantization": "modelopt_fp4"}
V4 = {"arch": "DeepseekV4ForCausalLM", "quantization": "modelopt_mixed"}
SPARSE_MLA = "--dsa-prefill-backend flashinfer_sparse_mla --dsa-decode-backend flashinfer_sparse_mla"
NVFP4_KV = (
    "--kv-cache-dtype nvfp4 --prefill-attention-backend flashinfer --decode-attention-backend trtllm_mha"
    " --attention-backend flashinfer"
)
GPTOSS = {"arch": "GptOssForCausalLM", "quantization": "mxfp4"}
DEEPSEEK = {"arch": "DeepseekV3ForCausalLM"}
GEMMA = {"arch": "Gemma4ForConditionalGeneration"}
MTP = {**GEMMA, "draft_arch": "Gemma4AssistantForCausalLM"}
DRAFT = "--speculative-algorithm NEXTN --speculative-draft-model-path d --speculative-eagle-topk 1"
STEPS = "--speculative-algorithm EAGLE --speculative-num-steps 3"
EAGLE = f"{STEPS} --speculative-eagle-topk 1 --speculative-num-draft-tokens"
TREE = f"{STEPS} --speculative-eagle-topk 4 --speculative-num-draft-tokens 8"
PREFILL_ONLY = "--prefill-only-disable-kv-cache --is-embedding --chunked-prefill-size -1 --disable-radix-cache"
NGRAM = "--speculative-algorithm NGRAM"
DFLASH = "--speculative-algorithm DFLASH --speculative-draft-model-path d --speculative-num-draft-tokens 8"
DSPARK = "--speculative-algorithm DSPARK --speculative-draft-model-path d --speculative-dspark-block-size 7"
SIZES = "--tp-size 4 --nnodes 4"
V2 = {"env": {"SGLANG_ENABLE_SPEC_V2": "1"}}
MISTRAL = f"{EAGLE} 4 --speculative-draft-model-path mistralai/Mistral-Large-3-675B-Instruct-2512-Eagle"
EP_PATCHES = ("cutlass-moe-zero-init", "cutlass-moe-mask-topk", "modelopt-ep-input-scale")

# rule, severity, version, flags and facts to which it applies; then a similar version and flags to which it does not
CASES: list[tuple[str, str, str, str, dict[str, Any], str, str, dict[str, Any]]] = [
    ("spec.topk1.autoadjust", "warning", "0.5.13", f"{EAGLE} 7", {}, "0.5.13", f"{EAGLE} 4", {}),
    ("spec.topk1.autoadjust", "warning", "0.5.23", f"{EAGLE} 5", {}, "0.5.23", TREE, {}),
    ("spec.frozenkv.nsteps", "error", "0.5.13", f"{DRAFT} --speculative-num-steps 4 --speculative-num-draft-tokens 6",
     MTP,
     "0.5.13", f"{DRAFT} --speculative-num-steps 4 --speculative-num-draft-tokens 5", MTP),
    ("spec.frozenkv.promote", "info", "0.5.13", f"{DRAFT} --speculative-num-steps 4 --speculative-num-draft-tokens 5",
     MTP,
     "0.5.13", f"{EAGLE} 4", GLM),
    ("spec.frozenkv.promote", "error", "0.5.11", f"{DRAFT} --speculative-num-steps 4 --speculative-num-draft-tokens 5",
     MTP,
     "0.5.11", f"{DRAFT} --speculative-num-steps 4 --speculative-num-draft-tokens 5",
     {**MTP, "carries": ("sglang#24436",)}),
    ("spec.frozenkv.eagle3", "error", "0.5.14", f"{DRAFT} --speculative-algorithm EAGLE3 --speculative-num-steps 4",
     MTP,
     "0.5.14", f"{DRAFT} --speculative-num-steps 4", MTP),
    ("spec.frozenkv.eagle3", "error", "0.5.11", f"{DRAFT} --speculative-algorithm EAGLE3 --speculative-num-steps 4",
     MTP,
     "0.5.11", f"{DRAFT} --speculative-num-steps 4", MTP),
    ("spec.frozenkv.transformers", "error", "0.5.12.post1", f"{DRAFT} --speculative-num-steps 4", MTP,
     "0.5.13", f"{DRAFT} --speculative-num-steps 4", MTP),
    ("spec.alias.remote_fetch", "warning", "0.5.12", f"{EAGLE} 4 --speculative-draft-model-path d", {},
     "0.5.11", f"{EAGLE} 4 --speculative-draft-model-path d", {}),
    ("spec.alias.remote_fetch", "error", "0.5.11", MISTRAL, {"carries": ("sglang#24436",)}, "0.5.11", MISTRAL, {}),
    ("spec.alias.remote_fetch", "error", "0.5.12.dev155", MISTRAL, {}, "0.5.12", MISTRAL, {}),
    ("spec.alias.remote_fetch", "warning", "0.5.13", f"{EAGLE} 4 --speculative-draft-model-path mistralai/draft", {},
     "0.5.13", MISTRAL, {}),
    ("spec.alias.remote_fetch", "info", "0.5.12", DRAFT, MTP, "0.5.12", f"{EAGLE} 4", MTP),
    ("spec.maxrunning48", "warning", "0.5.9", f"{EAGLE} 4", {}, "0.5.9", f"{EAGLE} 4 --max-running-requests 16", {}),
    ("spec.v2env", "error", "0.5.14", f"{EAGLE} 4", {**V2, "patches": ()}, "0.5.14", f"{EAGLE} 4", V2),
    ("spec.v2env", "warning", "0.5.14", f"{EAGLE} 4", V2, "0.5.13", f"{EAGLE} 4", V2),
    ("spec.v2env", "error", "0.5.12", "--enable-spec-v2", {}, "0.5.12", "", V2),
    ("spec.v2env", "info", "0.5.10.post1", f"{EAGLE} 4", {}, "0.5.11", f"{EAGLE} 4", {}),
    ("spec.v2.topk", "error", "0.5.10", TREE, V2, "0.5.11", TREE, V2),
    ("spec.mixedchunk", "info", "0.5.23", f"{EAGLE} 4 --enable-mixed-chunk", {}, "0.5.23", "--enable-mixed-chunk", {}),
    ("spec.pp", "error", "0.5.16", f"{EAGLE} 4 --pp-size 2 --nnodes 2", {}, "0.5.16", "--pp-size 2 --nnodes 2", {}),
    ("spec.pp", "error", "0.5.22", f"{EAGLE} 4 --pp-size 2 --nnodes 2", {},
     "0.5.22", f"{EAGLE} 4 --pp-size 2 --nnodes 2", {"env": {"SGLANG_ENABLE_PP_SPEC": "1"}}),
    ("spec.trtllm_topk", "error", "0.5.23", f"{TREE} --attention-backend trtllm_mha", {},
     "0.5.23", f"{EAGLE} 4 --attention-backend trtllm_mha", {}),
    ("spec.page_tree", "error", "0.5.12", f"{TREE} --page-size 16 --attention-backend triton", {},
     "0.5.13", f"{TREE} --page-size 16 --attention-backend triton", {}),
    ("spec.page_tree", "error", "0.5.23", f"{TREE} --page-size 16 --attention-backend trtllm_mha", {},
     "0.5.23", f"{TREE} --page-size 1 --attention-backend trtllm_mha", {}),
    ("spec.page_tree", "error", "0.5.16", f"{NGRAM} --page-size 16 --attention-backend triton", {},
     "0.5.16", f"{NGRAM} --page-size 16 --attention-backend flashinfer", {}),
    ("spec.dp_attention", "error", "0.5.16", f"{NGRAM} --enable-dp-attention --dp-size 2", {},
     "0.5.16", f"{NGRAM} --enable-dp-attention", {}),
    ("par.pp.mixedchunk", "error", "0.5.10", "--pp-size 2 --nnodes 2 --enable-mixed-chunk", {},
     "0.5.11", "--pp-size 2 --nnodes 2 --enable-mixed-chunk", {}),
    ("spec.nextn_draft_path", "warning", "0.5.10", f"{EAGLE} 4 --speculative-draft-model-path m", GLM, "0.5.10",
     f"{EAGLE} 4", GLM),
    ("spec.topk.required", "error", "0.5.10", "--speculative-algorithm NEXTN --speculative-num-steps 3", GLM,
     "0.5.10", "--speculative-algorithm NEXTN", GLM),
    ("spec.steps.required", "error", "0.5.10", "--speculative-algorithm NEXTN --speculative-eagle-topk 1", GLM,
     "0.5.10", "--speculative-algorithm NEXTN", GLM),
    ("spec.depth.required", "error", "0.5.14", DRAFT, MTP, "0.5.14", f"{DRAFT} --speculative-num-steps 2", MTP),
    ("spec.depth.alone", "warning", "0.5.14", "--speculative-num-steps 2", {}, "0.5.14", f"{EAGLE} 4", {}),
    ("spec.nemotron.loader", "error", "0.5.12", f"{EAGLE} 4", {**NEMOTRON, "patches": ()}, "0.5.12", f"{EAGLE} 4",
     {**NEMOTRON, "patches": (), "carries": ("sglang#21138",)}),
    ("spec.nemotron.loader", "warning", "0.5.12", f"{EAGLE} 4", NEMOTRON, "0.5.13", f"{EAGLE} 4", NEMOTRON),
    ("spec.block.path", "error", "0.5.21", "--speculative-algorithm DSPARK", QWEN, "0.5.21",
     "--speculative-algorithm DSPARK", {"arch": "DeepseekV4ForCausalLM"}),
    ("spec.block.tokens", "error", "0.5.21", f"{DFLASH} --speculative-dflash-block-size 6", QWEN, "0.5.21",
     f"{DFLASH} --speculative-dflash-block-size 8", QWEN),
    ("spec.block.tokens", "error", "0.5.21", f"{DSPARK} --speculative-num-draft-tokens 7", QWEN, "0.5.21",
     f"{DSPARK} --speculative-num-draft-tokens 8", QWEN),
    ("spec.block.chain", "warning", "0.5.21", f"{DSPARK} --speculative-num-steps 3", QWEN, "0.5.21",
     f"{DSPARK} --speculative-num-steps 1 --speculative-eagle-topk 1", QWEN),
    ("spec.dflash.dp", "error", "0.5.21", f"{DFLASH} --enable-dp-attention --dp-size 2 --tp-size 2 --nnodes 2", QWEN,
     "0.5.21", DFLASH, QWEN),
    ("mamba.lazy.spec", "error", "0.5.17", f"{DFLASH} --mamba-radix-cache-strategy extra_buffer_lazy", QWEN, "0.5.18",
     f"{DFLASH} --mamba-radix-cache-strategy extra_buffer_lazy", QWEN),
    ("spec.nemotron.nan", "warning", "0.5.13.post1", f"{EAGLE} 4", NEMOTRON, "0.5.14", f"{EAGLE} 4", NEMOTRON),
    ("attn.nemotron.triton", "error", "0.5.18", "--attention-backend triton", NEMOTRON, "0.5.19",
     "--attention-backend triton", NEMOTRON),
    ("attn.nemotron.triton", "error", "0.5.13", "--attention-backend triton", NEMOTRON, "0.5.13",
     "--attention-backend triton", OMNI),
    ("attn.gemma4.allow", "error", "0.5.11", "--attention-backend flashinfer", GEMMA, "0.5.11",
     "--attention-backend triton", GEMMA),
    ("attn.gemma4.allow", "error", "0.5.23", "--decode-attention-backend flashinfer", GEMMA, "0.5.23", "", GEMMA),
    ("attn.gemma4.unset", "warning", "0.5.10", "", GEMMA, "0.5.11", "", GEMMA),
    ("attn.trtllm_sm12x", "error", "0.5.19", "--attention-backend trtllm_mha", {}, "0.5.19",
     "--attention-backend trtllm_mha", {"gpu": "b300"}),
    ("attn.trtllm_sm12x", "error", "0.5.20", "--attention-backend trtllm_mha --kv-cache-dtype fp8_e4m3", {},
     "0.5.20", "--attention-backend trtllm_mha", {}),
    ("mamba.radix.nobuffer", "error", "0.5.10", f"{EAGLE} 4", QWEN, "0.5.14", f"{EAGLE} 4", QWEN),
    ("mamba.radix.nobuffer", "error", "0.5.13.post1", f"{EAGLE} 4", NEMOTRON,
     "0.5.13.post1", f"{EAGLE} 4 --mamba-scheduler-strategy extra_buffer", QWEN),
    ("mamba.extra.noradix", "error", "0.5.13", "--disable-radix-cache --mamba-scheduler-strategy extra_buffer", QWEN,
     "0.5.14", "--disable-radix-cache --mamba-radix-cache-strategy extra_buffer", QWEN),
    ("mamba.nemotron.extra", "error", "0.5.12", "--mamba-scheduler-strategy extra_buffer", NEMOTRON,
     "0.5.13", "--mamba-scheduler-strategy extra_buffer", NEMOTRON),
    ("mamba.lazy.spec", "error", "0.5.16", f"{EAGLE} 4 --mamba-radix-cache-strategy extra_buffer_lazy", QWEN,
     "0.5.16", f"{EAGLE} 4 --mamba-radix-cache-strategy extra_buffer", QWEN),
    ("mamba.nobuffer.overlap", "error", "0.5.14", "--mamba-radix-cache-strategy no_buffer", QWEN,
     "0.5.14", "--mamba-radix-cache-strategy no_buffer --disable-overlap-schedule", QWEN),
    ("mamba.track", "error", "0.5.23", "--page-size 48 --mamba-track-interval 256", QWEN, "0.5.23",
     "--page-size 64 --mamba-track-interval 256", QWEN),
    ("mamba.slots", "warning", "0.5.13", "--max-mamba-cache-size 96 --max-running-requests 48", NEMOTRON,
     "0.5.13", "--max-mamba-cache-size 96 --max-running-requests 32", NEMOTRON),
    ("moe.fi_cutlass.ep", "error", "0.5.23", f"{SIZES} --moe-runner-backend flashinfer_cutlass --ep-size 2", NEMOTRON,
     "0.5.23", f"{SIZES} --moe-runner-backend flashinfer_cutlass --ep-size 4", NEMOTRON),
    ("moe.ep_divides", "error", "0.5.16", f"{SIZES} --ep-size 3", QWEN, "0.5.16", f"{SIZES} --ep-size 2", QWEN),
    ("moe.a2a.ep", "warning", "0.5.16", f"{SIZES} --moe-a2a-backend deepep", QWEN, "0.5.16",
     f"{SIZES} --moe-a2a-backend deepep --ep-size 4", QWEN),
    ("moe.nvfp4.runner", "warning", "0.5.15", "--moe-runner-backend triton", QWEN, "0.5.15",
     "--moe-runner-backend flashinfer_cutlass", QWEN),
    ("moe.nvfp4.runner", "error", "0.5.12", "--moe-runner-backend cutlass", MINIMAX, "0.5.11",
     "--moe-runner-backend cutlass", MINIMAX),
    ("moe.nvfp4.runner", "error", "0.5.13", "--moe-runner-backend triton", NEMOTRON, "0.5.13",
     "--moe-runner-backend flashinfer_cutlass", NEMOTRON),
    ("moe.nvfp4.runner", "warning", "0.5.16", "--moe-runner-backend cutlass", {"quantization": "modelopt_fp4"},
     "0.5.16", "", {"quantization": "modelopt_fp4"}),
    ("moe.nvfp4.runner", "error", "0.5.16", "--moe-runner-backend cutlass", QWEN,
     "0.5.16", "", QWEN),
    ("moe.nvfp4.runner", "error", "0.5.23", "--moe-runner-backend triton", GLM, "0.5.23", "", GLM),
    ("moe.nvfp4.ep_patches", "error", "0.5.9", f"{SIZES} --ep-size 4 --moe-runner-backend triton",
     {**QWEN, "patches": EP_PATCHES[:2]},
     "0.5.10", f"{SIZES} --ep-size 4 --moe-runner-backend triton", {**QWEN, "patches": EP_PATCHES}),
    ("moe.nvfp4.ep_patches", "error", "0.5.12", f"{SIZES} --ep-size 4", {**QWEN, "patches": ()},
     "0.5.13", f"{SIZES} --ep-size 4", {**QWEN, "patches": ()}),
    ("moe.nvfp4.ep_patches", "error", "0.5.15", f"{SIZES} --ep-size 4 --moe-runner-backend cutlass",
     {**QWEN, "patches": EP_PATCHES[:2]},
     "0.5.15", f"{SIZES} --ep-size 4 --moe-runner-backend cutlass",
     {**QWEN, "patches": EP_PATCHES[:1], "carries": EP_PATCHES[2:]}),
    ("moe.nvfp4.ep_patches", "error", "0.5.10", f"{SIZES} --ep-size 4 --moe-runner-backend cutlass",
     {**QWEN, "patches": ()},
     "0.5.10", f"{SIZES} --ep-size 1 --moe-runner-backend cutlass", {**QWEN, "patches": ()}),
    ("moe.nvfp4.ep_patches", "warning", "0.5.15", f"{SIZES} --ep-size 4 --moe-runner-backend cutlass", QWEN,
     "0.5.15", f"{SIZES} --ep-size 4 --moe-runner-backend flashinfer_cutlass", QWEN),
    ("moe.wna16.ep_patch", "warning", "0.5.21", f"{SIZES} --ep-size 4 --quantization moe_wna16", {"patches": ()},
     "0.5.22", f"{SIZES} --ep-size 4 --quantization moe_wna16", {"patches": ()}),
    ("moe.nvfp4.fi_cutlass.ep", "error", "0.5.10", f"{SIZES} --moe-runner-backend flashinfer_cutlass --ep-size 4", QWEN,
     "0.5.10", f"{SIZES} --moe-runner-backend flashinfer_cutlass --ep-size 4", MINIMAX),
    ("moe.nvfp4.fi_cutlass.early", "warning", "0.5.10", "--moe-runner-backend flashinfer_cutlass", QWEN,
     "0.5.12", "--moe-runner-backend flashinfer_cutlass", QWEN),
    ("moe.fi_cutlass.quant", "error", "0.5.12", "--moe-runner-backend flashinfer_cutlass", FP8,
     "0.5.12", "--moe-runner-backend triton", FP8),
    ("moe.sm12x.runner", "error", "0.5.17", "--moe-runner-backend flashinfer_trtllm", QWEN,
     "0.5.17", "--moe-runner-backend flashinfer_trtllm", {**QWEN, "gpu": "b300"}),
    ("moe.sm12x.runner", "warning", "0.5.12", "--moe-runner-backend flashinfer_trtllm", {},
     "0.5.12", "--moe-runner-backend flashinfer_trtllm", {"arch": "LlamaForCausalLM", "moe": False}),
    ("moe.fi_cutlass.quant", "error", "0.5.12", "--moe-runner-backend flashinfer_cutlass --quantization fp8",
     {"arch": "LlamaForCausalLM"}, "0.5.12", "--moe-runner-backend flashinfer_cutlass", DENSE_FP8),
    ("moe.fi_cutlass.quant", "warning", "0.5.12", "--moe-runner-backend flashinfer_cutlass", DENSE_FP8,
     "0.5.12", "--moe-runner-backend flashinfer_cutlass", {**DENSE_FP8, "moe": False}),
    ("moe.sm12x.runner", "warning", "0.5.18", "--moe-runner-backend flashinfer_cutedsl", QWEN,
     "0.5.18", "--moe-runner-backend flashinfer_cutlass", QWEN),
    ("moe.llama4.fi_cutlass", "error", "0.5.15", "--moe-runner-backend flashinfer_cutlass", LLAMA4,
     "0.5.15", "--moe-runner-backend triton", LLAMA4),
    ("moe.awq", "error", "0.5.16", "--quantization awq", {"arch": QWEN["arch"]},
     "0.5.16", "--quantization awq_marlin", {"arch": QWEN["arch"]}),
    ("moe.awq", "error", "0.5.16", "--quantization awq", {"arch": "NewMoeForCausalLM"},
     "0.5.16", "--quantization awq", {"arch": "LlamaForCausalLM", "moe": False}),
    ("moe.awq", "warning", "0.5.16", "--quantization awq", {"arch": "LlamaForCausalLM"},
     "0.5.16", "--quantization awq", {"arch": "LlamaForCausalLM", "moe": False}),
    ("moe.compressed.w4a16", "warning", "0.5.14", "--moe-runner-backend marlin",
     {"arch": "HYV3ForCausalLM", "quantization": "compressed-tensors"},
     "0.5.14", "", {"arch": "HYV3ForCausalLM", "quantization": "compressed-tensors"}),
    ("moe.eplb", "error", "0.5.16", f"{SIZES} --enable-eplb", GLM, "0.5.16", f"{SIZES} --enable-eplb --ep-size 4", GLM),
    ("moe.eplb", "warning", "0.5.16", f"{SIZES} --enable-eplb --ep-size 4", QWEN,
     "0.5.16", f"{SIZES} --ep-size 4", QWEN),
    ("moe.eplb", "error", "0.5.23", f"{SIZES} --enable-eplb --ep-size 4", LLAMA4,
     "0.5.23", f"{SIZES} --enable-eplb --ep-size 4", NEMOTRON),
    ("moe.eplb", "error", "0.5.21", f"{SIZES} --enable-eplb --ep-size 4", NEMOTRON,
     "0.5.21", f"{SIZES} --enable-eplb --ep-size 4", GLM),
    ("moe.a2a.flashinfer", "error", "0.5.16", f"{SIZES} --ep-size 4 --moe-a2a-backend flashinfer", GLM,
     "0.5.16", f"{SIZES} --ep-size 4 --moe-a2a-backend flashinfer --dp-size 4 --enable-dp-attention"
     " --moe-runner-backend flashinfer_cutlass", GLM),
    ("moe.a2a.flashinfer", "error", "0.5.16",
     f"{SIZES} --ep-size 4 --moe-a2a-backend flashinfer --dp-size 4 --enable-dp-attention", GLM,
     "0.5.23", f"{SIZES} --ep-size 4 --moe-a2a-backend flashinfer --dp-size 4 --enable-dp-attention", NEMOTRON),
    ("moe.a2a.flashinfer", "error", "0.5.20",
     f"{SIZES} --ep-size 4 --moe-a2a-backend flashinfer --dp-size 4 --enable-dp-attention", GLM,
     "0.5.20", f"{SIZES} --ep-size 4 --moe-a2a-backend flashinfer --dp-size 4 --enable-dp-attention"
     " --moe-runner-backend deep_gemm", GLM),
    ("moe.a2a.flashinfer", "error", "0.5.10", "--moe-a2a-backend flashinfer", GLM,
     "0.5.10", "--moe-a2a-backend flashinfer --moe-runner-backend flashinfer_cutlass", GLM),
    ("moe.nvfp4.fi_cutlass.attn", "error", "0.5.10",
     "--moe-runner-backend flashinfer_cutlass --attention-backend flashinfer", GLM,
     "0.5.10", "--moe-runner-backend flashinfer_cutlass --attention-backend flashinfer", NEMOTRON),
    ("fp8gemm.sm12x", "error", "0.5.13", "--fp8-gemm-backend deep_gemm", FP8,
     "0.5.13", "--fp8-gemm-backend cutlass", FP8),
    ("fp8gemm.sm12x", "error", "0.5.13", "--fp8-gemm-backend deep_gemm", FP8,
     "0.5.13", "--fp8-gemm-backend deep_gemm", QWEN),
    ("fp8gemm.sm12x", "error", "0.5.9", "", {**FP8, "patches": ()}, "0.5.10", "", {**FP8, "patches": ()}),
    ("fp8gemm.sm12x", "warning", "0.5.9", "", FP8, "0.5.10", "", FP8),
    ("fp8gemm.sm12x", "error", "0.5.10", "--fp8-gemm-backend flashinfer_trtllm", FP8,
     "0.5.10", "--fp8-gemm-backend flashinfer_trtllm", QWEN),
    ("fp4gemm.cutlass", "error", "0.5.16", "--fp4-gemm-backend cutlass", QWEN, "0.5.15.post1",
     "--fp4-gemm-backend cutlass", QWEN),
    ("fp4gemm.cutlass", "error", "0.5.9", "--fp4-gemm-backend cutlass", QWEN, "0.5.10", "--fp4-gemm-backend cutlass",
     QWEN),
    ("fp4gemm.cudnn", "warning", "0.5.13", "--fp4-gemm-backend flashinfer_cudnn", NEMOTRON,
     "0.5.13", "--fp4-gemm-backend flashinfer_cudnn", {**NEMOTRON, "carries": ("nvidia-cudnn-cu12",)}),
    ("fp4gemm.cudnn", "warning", "0.5.10", "--fp4-gemm-backend flashinfer_cudnn", QWEN, "0.5.10",
     "--fp4-gemm-backend flashinfer_cutlass", QWEN),
    ("kv.fp4_e2m1", "error", "0.5.21", "--kv-cache-dtype fp4_e2m1", {}, "0.5.20", "--kv-cache-dtype fp4_e2m1", {}),
    ("kv.nvfp4", "error", "0.5.16", "--kv-cache-dtype nvfp4", QWEN, "0.5.16", NVFP4_KV, QWEN),
    ("kv.nvfp4", "error", "0.5.16", "--kv-cache-dtype nvfp4 --attention-backend triton", QWEN,
     "0.5.16", NVFP4_KV, QWEN),
    ("kv.nvfp4", "error", "0.5.16", f"{NVFP4_KV} {EAGLE} 4", QWEN, "0.5.16", NVFP4_KV, QWEN),
    ("kv.nvfp4", "warning", "0.5.16", NVFP4_KV, QWEN, "0.5.16", "--kv-cache-dtype fp8_e4m3", QWEN),
    ("graph.flags.rename", "error", "0.5.20", "--cuda-graph-max-bs 8", {}, "0.5.20", "--cuda-graph-max-bs-decode 8",
     {}),
    ("graph.flags.rename", "warning", "0.5.19", "--mamba-scheduler-strategy no_buffer", {}, "0.5.13",
     "--mamba-scheduler-strategy no_buffer", {}),
    ("graph.flags.rename", "warning", "0.5.23", "--disable-cuda-graph", {}, "0.5.13", "--disable-cuda-graph", {}),
    ("graph.flags.rename", "error", "0.5.13", "--cuda-graph-backend-prefill disabled", {}, "0.5.14",
     "--cuda-graph-backend-prefill disabled", {}),
    ("graph.piecewise.autooff", "info", "0.5.10", "", QWEN, "0.5.10", "", GLM),
    ("graph.piecewise.autooff", "info", "0.5.23", "", GEMMA, "0.5.9", "", GEMMA),
    ("graph.piecewise.autooff", "info", "0.5.15", "", QWEN, "0.5.16", "", QWEN),
    ("graph.piecewise.autooff", "info", "0.5.10", "--disable-piecewise-cuda-graph", QWEN, "0.5.10",
     "--disable-piecewise-cuda-graph", GLM),
    ("graph.piecewise.autooff", "info", "0.5.10", f"{EAGLE} 4", {}, "0.5.14", f"{EAGLE} 4", {}),
    ("graph.piecewise.autooff", "info", "0.5.12", f"{EAGLE} 4", {}, "0.5.14", f"{EAGLE} 4", {}),
    ("graph.piecewise.nvfp4", "error", "0.5.10", "", {**GLM, "patches": ()}, "0.5.10", "",
     {**GLM, "patches": (), "carries": ("sglang#23745",)}),
    ("graph.piecewise.nvfp4", "warning", "0.5.10", "", GLM, "0.5.10", "--disable-piecewise-cuda-graph", GLM),
    ("graph.piecewise.nvfp4", "warning", "0.5.10", "", {"quantization": "modelopt_fp4"}, "0.5.9", "",
     {"quantization": "modelopt_fp4"}),
    ("graph.piecewise.nvfp4", "info", "0.5.14", "", GLM, "0.5.15", "", GLM),
    ("graph.piecewise.nvfp4", "info", "0.5.16", "--cuda-graph-backend-prefill tc_piecewise", GLM, "0.5.16", "", GLM),
    ("graph.eager_regime", "error", "0.5.10", f"{SIZES} --ep-size 4 --disable-cuda-graph", QWEN,
     "0.5.10", f"{SIZES} --disable-cuda-graph", QWEN),
    ("graph.eager_regime", "warning", "0.5.10", f"{SIZES} --ep-size 4 --disable-cuda-graph", MINIMAX,
     "0.5.10", f"{SIZES} --disable-cuda-graph", MINIMAX),
    ("graph.eager_regime", "warning", "0.5.10",
     f"{SIZES} --ep-size 4 --cuda-graph-max-bs 8 --max-running-requests 32", QWEN,
     "0.5.10", f"{SIZES} --ep-size 4 --cuda-graph-max-bs 8 --max-running-requests 8", QWEN),
    ("graph.eager_regime", "warning", "0.5.10", f"{SIZES} --ep-size 4 --cuda-graph-max-bs 8", QWEN,
     "0.5.10", f"{SIZES} --cuda-graph-max-bs 8", QWEN),
    ("graph.eager_regime", "warning", "0.5.10", "--cuda-graph-max-bs 8 --max-running-requests 32", GEMMA,
     "0.5.10", "--cuda-graph-max-bs 32 --max-running-requests 32", GEMMA),
    ("graph.eager_regime", "warning", "0.5.23", "--cuda-graph-max-bs-decode 8 --max-running-requests 32", QWEN,
     "0.5.23", "--cuda-graph-max-bs-decode 32 --max-running-requests 32", QWEN),
    ("sm121.jit_arch", "info", "0.5.15", "--kv-cache-dtype fp8_e4m3", GLM, "0.5.16", "--kv-cache-dtype fp8_e4m3",
     GLM),
    ("sm121.jit_arch", "info", "0.5.15", "--kv-cache-dtype fp8_e4m3", {**GLM, "patches": ()},
     "0.5.15", "--kv-cache-dtype fp8_e4m3", {**GLM, "patches": ("sm121-jit-arch",)}),
    ("sm121.admissible_archs", "warning", "0.5.11", "", GLM, "0.5.12", "", GLM),
    ("sm121.admissible_archs", "error", "0.5.10", "", {**GLM, "patches": ()}, "0.5.10", "",
     {**GLM, "gpu": "b300", "patches": ()}),
    ("par.nnodes", "error", "0.5.13", "--tp-size 4 --nnodes 3", {}, "0.5.13", SIZES, {}),
    ("par.nnodes", "error", "0.5.13", "--tp-size 8 --nnodes 4", {}, "0.5.13", "--tp-size 8 --nnodes 4",
     {"gpus_per_node": 2}),
    ("par.dp", "error", "0.5.13", f"{SIZES} --dp-size 2", {}, "0.5.13", f"{SIZES} --dp-size 2 --enable-dp-attention",
     {}),
    ("par.dp", "error", "0.5.23", f"{SIZES} --dp-size 2", {}, "0.5.23", f"{SIZES} --attn-dp-size 2", {}),
    ("ctx.derived", "error", "0.5.13", "--context-length 524288", {"max_context": 262144},
     "0.5.13", """--context-length 524288 --json-model-override-args '{"max_position_embeddings": 524288}'""",
     {"max_context": 262144}),
    ("mem.unified", "warning", "0.5.13", "", {}, "0.5.13", "", {"gpu": "b300"}),
    ("mem.unified", "warning", "0.5.13", "--mem-fraction-static 0.9", {}, "0.5.13", "--mem-fraction-static 0.80", {}),
    ("value.range", "error", "0.5.13", "--mem-fraction-static 80", {}, "0.5.13", "--mem-fraction-static 0.99", {}),
    ("value.range", "error", "0.5.13", "--mem-fraction-static nan", {}, "0.5.13", "", {}),
    ("value.range", "error", "0.5.10", "--context-length -5", {}, "0.5.10", "--context-length 1", {}),
    ("value.range", "error", "0.5.23", "--max-running-requests 0", {}, "0.5.23", "--max-running-requests 1", {}),
    ("value.range", "error", "0.5.23", "--speculative-num-steps -2", {}, "0.5.23", "--speculative-num-steps 1", {}),
    ("value.range", "error", "0.5.23", "--speculative-num-steps 0", {},
     "0.5.23", "--speculative-num-steps 0 --speculative-adaptive", {}),
    ("value.range", "error", "0.5.13", f"{SIZES} --node-rank 4", {}, "0.5.13", f"{SIZES} --node-rank 3", {}),
    ("value.range", "error", "0.5.13", "--port 99999999", {}, "0.5.13", "--port 65535", {}),
    ("name.colon", "error", "0.5.13", "--served-model-name a:b", {}, "0.5.13", "--served-model-name a/b", {}),
    ("model.arch.unsupported", "warning", "0.5.10", "", GEMMA, "0.5.11", "", GEMMA),
    ("model.arch.unsupported", "error", "0.5.10", "", {**GEMMA, "patches": ()},
     "0.5.10", "", {**GEMMA, "patches": (), "carries": (GEMMA["arch"],)}),
    ("name.quantization", "error", "0.5.16", "--quantization nvfp4", {}, "0.5.16", "--quantization modelopt_fp4", {}),
    ("name.vllm", "error", "0.5.23", "--gpu-memory-utilization 0.8", {}, "0.5.23", "--mem-fraction-static 0.8", {}),
    ("value.json", "error", "0.5.16", "--json-model-override-args nonsense", {},
     "0.5.16", "--json-model-override-args {}", {}),
    ("par.attention_dp", "error", "0.5.16", f"{SIZES} --dp-size 3 --enable-dp-attention", {},
     "0.5.16", f"{SIZES} --dp-size 2 --enable-dp-attention", {}),
    ("par.tbo", "error", "0.5.16", "--enable-two-batch-overlap", {},
     "0.5.16", "--enable-two-batch-overlap --moe-a2a-backend deepep", {}),
    ("cache.hierarchical", "error", "0.5.16", "--enable-hierarchical-cache --disable-radix-cache", {},
     "0.5.16", "--enable-hierarchical-cache", {}),
    ("cache.chunk_page", "error", "0.5.16", "--chunked-prefill-size 1000 --page-size 64", {},
     "0.5.16", "--chunked-prefill-size 1000", {}),
    ("cache.swa_ratio", "error", "0.5.16", "--swa-full-tokens-ratio 2", {}, "0.5.16", "--swa-full-tokens-ratio 1", {}),
    ("lora.incomplete", "error", "0.5.16", "--enable-lora", {},
     "0.5.16", "--enable-lora --max-lora-rank 8 --lora-target-modules q_proj", {}),
    ("schedule.priority", "error", "0.5.16", "--enable-priority-scheduling --schedule-policy lpm", {},
     "0.5.16", "--enable-priority-scheduling", {}),
    ("schedule.conservativeness", "error", "0.5.16", "--schedule-conservativeness -1", {},
     "0.5.16", "--schedule-conservativeness 0", {}),
    ("ssl.pair", "error", "0.5.16", "--ssl-keyfile k", {}, "0.5.16", "--ssl-keyfile k --ssl-certfile c", {}),
    ("attn.deterministic", "error", "0.5.16", "--enable-deterministic-inference --attention-backend cutlass_mla", {},
     "0.5.16", "--enable-deterministic-inference --attention-backend triton", {}),
    ("attn.llama4.allow", "error", "0.5.15", "--attention-backend flashinfer", LLAMA4,
     "0.5.15", "--attention-backend triton", LLAMA4),
    ("attn.gptoss.allow", "error", "0.5.16", "--attention-backend flashinfer", {"arch": "GptOssForCausalLM"},
     "0.5.16", "--attention-backend triton", {"arch": "GptOssForCausalLM"}),
    ("attn.inkling.allow", "error", "0.5.17", "--attention-backend flashinfer", INKLING,
     "0.5.17", "--attention-backend triton", INKLING),
    ("attn.fa3_sm12x", "error", "0.5.16", "--attention-backend fa3", {},
     "0.5.16", "--attention-backend fa3", {"gpu": "h200"}),
    ("attn.dsa_sm12x", "error", "0.5.15", "--attention-backend dsa", {**DSA, "patches": ()},
     "0.5.15", "--attention-backend flashinfer", {**DSA, "patches": ()}),
    ("attn.dsa_sm12x", "warning", "0.5.15", "--attention-backend dsa", DSA,
     "0.5.15", "--attention-backend flashinfer", DSA),
    ("attn.dsa_sm12x", "error", "0.5.20", "--attention-backend dsa --dsa-decode-backend flashinfer_sparse_mla",
     {**DSA, "patches": ()}, "0.5.20", f"--attention-backend dsa {SPARSE_MLA}", {**DSA, "patches": ()}),
    ("attn.dsa_sm12x", "warning", "0.5.20", "", {"arch": "Glm5NextForConditionalGeneration"},
     "0.5.20", SPARSE_MLA, {"arch": "Glm5NextForConditionalGeneration"}),
    ("attn.dsa_sm12x", "warning", "0.5.15", "", DSA, "0.5.15", "--attention-backend flashinfer", DSA),
    ("model.inkling", "warning", "0.5.17", "--disable-prefill-cuda-graph --kv-cache-dtype fp8_e4m3", INKLING,
     "0.5.17", "--disable-prefill-cuda-graph", INKLING),
    ("model.inkling", "warning", "0.5.17", "", INKLING, "0.5.17", "--disable-prefill-cuda-graph", INKLING),
    ("model.inkling", "warning", "0.5.17", f"--disable-prefill-cuda-graph {EAGLE} 4 --page-size 128", INKLING,
     "0.5.17", f"--disable-prefill-cuda-graph {EAGLE} 4 --page-size 1", INKLING),
    ("model.inkling", "warning", "0.5.17", "--disable-prefill-cuda-graph --moe-runner-backend flashinfer_cutlass",
     INKLING, "0.5.17", "--disable-prefill-cuda-graph --moe-runner-backend marlin", INKLING),
    ("spec.frozenkv.bf16", "error", "0.5.13", f"{DRAFT} --speculative-num-steps 4 --speculative-num-draft-tokens 5",
     MTP, "0.5.14", f"{DRAFT} --speculative-num-steps 4 --speculative-num-draft-tokens 5", MTP),
    ("spec.algorithm.name", "error", "0.5.12", "--speculative-algorithm EAGEL", {},
     "0.5.12", "--speculative-algorithm dflash", {}),
    ("spec.algorithm.name", "error", "0.5.23", "--speculative-algorithm MTP", {},
     "0.5.23", "--speculative-algorithm NEXTN", {}),
    ("spec.algorithm.name", "error", "0.5.14", "--speculative-algorithm DSPARK", {},
     "0.5.16", "--speculative-algorithm DSPARK", {}),
    ("spec.draft.quantization", "warning", "0.5.16",
     f"{EAGLE} 4 --speculative-draft-model-path d --quantization modelopt_fp4", {},
     "0.5.16", f"{EAGLE} 4 --speculative-draft-model-path d --quantization modelopt_fp4"
     " --speculative-draft-model-quantization unquant", {}),
    ("spec.draft.load_format", "error", "0.5.10", f"{EAGLE} 4 --load-format sharded_state", QWEN,
     "0.5.10", f"{EAGLE} 4 --load-format sharded_state --speculative-draft-load-format auto", QWEN),
    ("spec.tree.size", "error", "0.5.16", f"{STEPS} --speculative-eagle-topk 2 --speculative-num-draft-tokens 12", {},
     "0.5.16", f"{STEPS} --speculative-eagle-topk 2 --speculative-num-draft-tokens 11", {}),
    ("spec.flashinfer.plan", "warning", "0.5.16", f"{EAGLE} 4 --attention-backend flashinfer",
     {"carries": ("flashinfer>=0.6.16",)}, "0.5.16", f"{EAGLE} 4 --attention-backend flashinfer", {}),
    ("quant.mismatch", "error", "0.5.16", "--quantization mxfp8", FP8, "0.5.16", "--quantization humming", FP8),
    ("quant.mismatch", "error", "0.5.20", "--quantization nvfp4_online", GLM, "0.5.20", "", GLM),
    ("hw.other", "error", "0.5.16", "--attention-backend aiter", {}, "0.5.16", "--attention-backend triton", {}),
    ("hw.other", "error", "0.5.23", "--quantization mlx_q4", {}, "0.5.23", "--quantization fp8", {}),
    ("hw.other", "error", "0.5.16", "--enable-quant-communications", {}, "0.5.16", "", {}),
    ("hw.sm12x", "error", "0.5.16", "--attention-backend cutedsl_mla", {},
     "0.5.16", "--attention-backend cutedsl_mla", {"gpu": "b300"}),
    ("hw.sm12x", "error", "0.5.16", "--quantization nvfp4_online", {},
     "0.5.16", "--quantization nvfp4_online", {"gpu": "b300"}),
    ("hw.sm12x", "error", "0.5.16", "--enable-deepseek-v4-fp4-indexer", {},
     "0.5.16", "--enable-deepseek-v4-fp4-indexer", {"gpu": "b300"}),
    ("hw.sm12x", "error", "0.5.23", "--moe-runner-backend megamoe", {},
     "0.5.23", "--moe-runner-backend megamoe", {"gpu": "b300"}),
    ("attn.tokenspeed.kv", "error", "0.5.16", "--attention-backend tokenspeed_mla", {},
     "0.5.16", "--attention-backend tokenspeed_mla --kv-cache-dtype fp8_e4m3", {}),
    ("mamba.linear.flashinfer", "error", "0.5.16", "--linear-attn-backend flashinfer", GLM,
     "0.5.16", "--linear-attn-backend flashinfer --linear-attn-decode-backend triton", GLM),
    ("mamba.linear.flashinfer", "error", "0.5.16", "--linear-attn-backend flashinfer", QWEN,
     "0.5.16", "--linear-attn-backend flashinfer --mamba-ssm-dtype bfloat16", QWEN),
    ("kv.fp4_e2m1.attn", "error", "0.5.15", "--kv-cache-dtype fp4_e2m1", GLM,
     "0.5.16", "--kv-cache-dtype fp4_e2m1", GLM),
    ("kv.fp4_e2m1.attn", "error", "0.5.16", "--kv-cache-dtype fp4_mx_block16", GLM,
     "0.5.16", "--kv-cache-dtype fp4_mx_block16 --attention-backend triton", GLM),
    ("kv.fp4_e2m1.attn", "error", "0.5.20", "--kv-cache-dtype fp4_mx_block16 --prefill-attention-backend flashinfer",
     QWEN, "0.5.20", "--kv-cache-dtype fp4_mx_block16 --prefill-attention-backend triton", QWEN),
    ("kv.fp4_e2m1.attn", "error", "0.5.23", "--kv-cache-dtype fp4_mx_block16", {"arch": "DeepseekV3ForCausalLM"},
     "0.5.23", "--kv-cache-dtype fp4_mx_block16 --attention-backend flashinfer", {"arch": "DeepseekV3ForCausalLM"}),
    ("kv.fp4_e2m1.attn", "error", "0.5.16", "--kv-cache-dtype fp4_mx_block16 --attention-backend trtllm_mla",
     {"arch": "DeepseekV3ForCausalLM"}, "0.5.16", "--kv-cache-dtype fp8_e4m3 --attention-backend trtllm_mla",
     {"arch": "DeepseekV3ForCausalLM"}),
    ("attn.deterministic", "error", "0.5.10", "--enable-deterministic-inference --attention-backend fa4", GLM,
     "0.5.16", "--enable-deterministic-inference --attention-backend fa4", GLM),
    ("attn.deterministic", "error", "0.5.16", "--enable-deterministic-inference --attention-backend fa4",
     {"arch": "DeepseekV3ForCausalLM"}, "0.5.16", "--enable-deterministic-inference --attention-backend fa4", GLM),
    ("attn.deterministic", "error", "0.5.23", "--enable-deterministic-inference --attention-backend flashinfer",
     {"arch": "DeepseekV3ForCausalLM"}, "0.5.23", "--enable-deterministic-inference --attention-backend flashinfer",
     GLM),
    ("cache.hierarchical", "error", "0.5.16", "--enable-hierarchical-cache --disaggregation-mode decode", {},
     "0.5.16", "--enable-hierarchical-cache --disaggregation-mode prefill", {}),
    ("par.divides", "error", "0.5.16", f"{SIZES} --attn-cp-size 3", {}, "0.5.16", f"{SIZES} --attn-cp-size 2", {}),
    ("par.divides", "error", "0.5.16", f"{SIZES} --moe-dp-size 3", {}, "0.5.16",
     f"{SIZES} --moe-dp-size 2 --attn-cp-size 2", {}),
    ("par.divides", "error", "0.5.13", f"{SIZES} --moe-dp-size 2", {}, "0.5.13", f"{SIZES} --attn-cp-size 2", {}),
    ("mamba.strategy.dense", "error", "0.5.23", "--mamba-radix-cache-strategy extra_buffer", GLM,
     "0.5.23", "--mamba-radix-cache-strategy extra_buffer", QWEN),
    ("load.expert_pack", "error", "0.5.23", "--load-format expert_pack", {},
     "0.5.23", "--load-format auto", {}),
    ("mamba.track", "error", "0.5.23",
     "--speculative-algorithm STANDALONE --speculative-num-steps 1 --speculative-eagle-topk 1"
     " --speculative-num-draft-tokens 16 --mamba-track-interval 4", QWEN,
     "0.5.23", f"{EAGLE} 4 --mamba-track-interval 4", QWEN),
    ("spec.page_tree", "error", "0.5.23", f"{NGRAM} --attention-backend trtllm_mla", {},
     "0.5.23", f"{NGRAM} --attention-backend flashinfer", {}),
    ("spec.page_tree", "error", "0.5.20", f"{NGRAM} --page-size 128", GEMMA, "0.5.20", f"{NGRAM} --page-size 128", GLM),
    ("attn.gptoss.allow", "error", "0.5.20", "--decode-attention-backend triton", {"arch": "GptOssForCausalLM"},
     "0.5.20", "", {"arch": "GptOssForCausalLM"}),
    ("par.tbo", "error", "0.5.14", f"{SIZES} --enable-two-batch-overlap --enable-dp-attention --dp-size 4", {},
     "0.5.15", f"{SIZES} --enable-two-batch-overlap --enable-dp-attention --dp-size 4", {}),
    ("flag.needs", "error", "0.5.23", "--quantize-and-serve --quantization modelopt_fp4", {}, "0.5.23",
     "--quantization modelopt_fp4", {}),
    *(("flag.needs", "error", version, f"{SIZES} {line}", known, version, f"{SIZES} {line} {more}", other)
      for version, line, more, known, other in (
        ("0.5.16", "--prefill-only-disable-kv-cache --attention-backend fa4"
         " --is-embedding --disable-radix-cache",
         "--chunked-prefill-size -1",
         {}, {}),
        ("0.5.16", "--prefill-only-disable-kv-cache --attention-backend fa4"
         " --chunked-prefill-size -1 --disable-radix-cache",
         "--is-embedding",
         {}, {}),
        ("0.5.16", "--prefill-only-disable-kv-cache --attention-backend fa4"
         " --chunked-prefill-size -1 --is-embedding",
         "--disable-radix-cache",
         {}, {}),
        ("0.5.16", "--enable-ssl-refresh", "--ssl-certfile c --ssl-keyfile k", {}, {}),
        ("0.5.16", f"{EAGLE} 4 --speculative-skip-dp-mlp-sync --speculative-algorithm EAGLE3",
         "--speculative-algorithm EAGLE", {}, {}),
        ("0.5.16", "--speculative-skip-dp-mlp-sync", f"{EAGLE} 4", {}, {}),
        ("0.5.10", "--multi-item-scoring-delimiter 2", "--disable-radix-cache --chunked-prefill-size -1", {}, {}),
        ("0.5.16", "--elastic-ep-rejoin", "--elastic-ep-backend mooncake", {}, {}),
        ("0.5.16", "--max-ep-size 4", "--elastic-ep-backend mooncake", {}, {}),
        ("0.5.16", "--kv-canary-sweep-interval 4", "--kv-canary log", {}, {}),
        ("0.5.20", "--enable-tp-lm-head-all-to-all", "--enable-dp-attention --dp-size 4", {}, {}),
        ("0.5.16", "--disaggregation-decode-enable-offload-kvcache",
         "--disaggregation-mode decode --hicache-storage-backend file", {}, {}),
        ("0.5.20", "--dcp-replicate-q-proj", "--dcp-size 2", {}, {}),
        ("0.5.23", "--prefill-kv-cache-dequant-dtype fp8_e4m3", "--kv-cache-dtype nvfp4", {}, {}),
        ("0.5.16", "--enable-dsa-cache-layer-split", "", GLM, DSA),
        ("0.5.23", "--speculative-use-block-verification", f"{EAGLE} 4", {}, {}),
        ("0.5.20", "--moe-a2a-backend pplx", "--enable-dp-attention --dp-size 4", {}, {}),
        ("0.5.20", "--enable-layernorm-sp", "", GLM, {"arch": "Qwen3ForCausalLM"}),
        ("0.5.20", "--flashinfer-a2a-dispatch-type mxfp8",
         "--moe-a2a-backend flashinfer --enable-dp-attention --dp-size 4", {}, {}),
        ("0.5.23", "--speculative-draft-sink-size 2", "--speculative-draft-window-size 64", {}, {}),
        ("0.5.23", "--enable-mis", "--attention-backend flashinfer", {"arch": "DeepseekV3ForCausalLM"}, {}),
        ("0.5.16", "--enable-pdmux", "--chunked-prefill-size -1 --disable-overlap-schedule", {}, {}),
        ("0.5.23", "--moe-runner-backend lora_marlin", "--enable-lora", {}, {}),
        ("0.5.20", "--disaggregation-decode-retraction-backup host_pool", "--disaggregation-mode decode", {}, {}),
    )),
    ("moe.dsv4.draft", "error", "0.5.16", f"{EAGLE} 4", V4, "0.5.16",
     f"{EAGLE} 4 --speculative-moe-runner-backend marlin", V4 | {"patches": ("dsv4-draft-marlin",)}),
    ("attn.dsv4.indexer", "warning", "0.5.14", "", V4 | {"patches": ()}, "0.5.14", "",
     V4 | {"patches": ("dsv4-tilelang-indexer",)}),
    # Differences of the fuzz with the seed "november".
    *(("flag.needs", "error", version, f"{SIZES} {line}", known, other_version, f"{SIZES} {other_line}", known)
      for version, line, other_version, other_line, known in (
        ("0.5.20", "--elastic-ep-join-mode recover", "0.5.20",
         "--elastic-ep-join-mode recover --elastic-ep-backend mooncake", {}),
        ("0.5.16", "--enable-mamba-cache-stochastic-rounding", "0.5.16",
         "--enable-mamba-cache-stochastic-rounding --mamba-ssm-dtype float16 --mamba-backend flashinfer", {}),
        ("0.5.16", "--enable-mamba-cache-stochastic-rounding --mamba-ssm-dtype float16", "0.5.16",
         "--enable-mamba-cache-stochastic-rounding --mamba-ssm-dtype float16 --mamba-backend flashinfer", {}),
        ("0.5.10", "--enable-hisparse", "0.5.10", "", GLM),
        ("0.5.20", "--ep-dispatch-algorithm lp", "0.5.20", "--ep-dispatch-algorithm dynamic", {}),
        ("0.5.23", "--enable-unified-memory --speculative-algorithm NGRAM", "0.5.23",
         "--enable-unified-memory", {}),
        ("0.5.10", "--quantization marlin", "0.5.10", "--quantization gptq_marlin", {}),
    )),
    ("flag.needs", "error", "0.5.16", "--enable-hisparse", GLM, "0.5.16", "--enable-hisparse", DSA),
    ("cache.hierarchical", "error", "0.5.12", "--enable-hierarchical-cache --enable-deterministic-inference", {},
     "0.5.11", "--enable-hierarchical-cache --enable-deterministic-inference", {}),
    ("cache.hierarchical", "warning", "0.5.11", "--enable-hierarchical-cache --enable-deterministic-inference", {},
     "0.5.11", "--enable-hierarchical-cache", {}),
    ("attn.gemma4.allow", "error", "0.5.20", "--attention-backend fa4", GEMMA,
     "0.5.22", "--attention-backend fa4", GEMMA),
    ("attn.deterministic", "error", "0.5.20", "--enable-deterministic-inference --attention-backend fa4",
     {"arch": "DeepseekV3ForCausalLM"}, "0.5.20", "--enable-deterministic-inference --attention-backend fa4", GLM),
    ("spec.page_tree", "error", "0.5.20", f"{NGRAM} --page-size 128", {"arch": "DeepseekV3ForCausalLM"},
     "0.5.20", f"{NGRAM} --page-size 1", {"arch": "DeepseekV3ForCausalLM"}),
    ("kv.nvfp4", "error", "0.5.23", "--kv-cache-dtype nvfp4", GEMMA, "0.5.23", NVFP4_KV, QWEN),
    ("argparse.abbrev", "warning", "0.5.13", "--tp 1", {}, "0.5.13", "--ep 1", {}),
    ("mem.named", "warning", "0.5.16", "--model-path a/Qwen3-480B-A35B-FP8 --mem-fraction-static 0.8 --tp-size 4", {},
     "0.5.16", "--model-path a/Qwen3-235B-A22B-FP8 --mem-fraction-static 0.8 --tp-size 4", {}),
    ("mem.named", "warning", "0.5.16", "--model-path /models/Llama-70B --mem-fraction-static 0.9", {},
     "0.5.16", "--model-path /models/Llama-70B --mem-fraction-static 0.9", {"quantization": "awq"}),
    ("flag.needs", "error", "0.5.23", f"--enable-unified-memory {EAGLE} 4", {"arch": "LlamaForCausalLM"},
     "0.5.23", f"--enable-unified-memory {EAGLE} 4", QWEN),
    ("flag.needs", "error", "0.5.23", "--moe-runner-backend lora_triton", {},
     "0.5.23", "--moe-runner-backend lora_triton --enable-lora --max-lora-rank 8 --lora-target-modules all", {}),
    # Neighbours of the published launches, and what the releases' source says about them.
    ("moe.wna16.ep_patch", "warning", "0.5.10", f"{SIZES} --ep-size 4 --quantization moe_wna16", GLM,
     "0.5.10", f"{SIZES} --quantization moe_wna16", GLM),
    ("moe.gptq", "error", "0.5.10", "--quantization gptq", {"arch": "Qwen3MoeForCausalLM"},
     "0.5.10", "--quantization gptq_marlin", {"arch": "Qwen3MoeForCausalLM"}),
    ("moe.omni.ep", "warning", "0.5.13", f"{SIZES} --ep-size 4", OMNI, "0.5.13", SIZES, OMNI),
    ("spec.qwen35.fp8", "warning", "0.5.10", f"{EAGLE} 4", FP8, "0.5.11", f"{EAGLE} 4", FP8),
    ("moe.mxfp4.runner", "warning", "0.5.16", "--moe-runner-backend flashinfer_mxfp4", GPTOSS,
     "0.5.16", "--moe-runner-backend triton_kernel", GPTOSS),
    ("moe.a2a.gb10", "warning", "0.5.13", f"{SIZES} --ep-size 4 --moe-a2a-backend deepep", FP8,
     "0.5.13", f"{SIZES} --ep-size 4", FP8),
    ("attn.mla_sm12x", "warning", "0.5.13", "--attention-backend cutlass_mla", DEEPSEEK,
     "0.5.13", "--attention-backend trtllm_mla", DEEPSEEK),
    ("attn.mla_only", "warning", "0.5.13", "--attention-backend trtllm_mla", GLM,
     "0.5.13", "--attention-backend trtllm_mla", DEEPSEEK),
    ("attn.mla_only", "error", "0.5.21", "--decode-attention-backend trtllm_mha", DEEPSEEK,
     "0.5.21", "--decode-attention-backend trtllm_mha", GLM),
    # Differences on lines beside the limits of the rules, on 0.5.13.post1, 0.5.16, 0.5.20 and 0.5.23.
    ("moe.fi_cutlass.ep", "error", "0.5.13.post1", f"{SIZES} --ep-size 2", NEMOTRON,
     "0.5.13.post1", f"{SIZES} --ep-size 2", GLM),
    *(("moe.fi_cutedsl.quant", "error", version, "--moe-runner-backend flashinfer_cutedsl", QWEN,
       version, "--moe-runner-backend flashinfer_cutedsl --quantization modelopt_fp4", QWEN)
      for version in ("0.5.13", "0.5.20")),
    ("kv.nvfp4", "error", "0.5.23", f"{NVFP4_KV} --decode-attention-backend torch_native", QWEN,
     "0.5.23", NVFP4_KV, QWEN),
    ("mamba.track", "error", "0.5.16", "--mamba-radix-cache-strategy extra_buffer --mamba-track-interval 2"
     " --speculative-num-draft-tokens 6", QWEN, "0.5.16",
     "--mamba-radix-cache-strategy extra_buffer --mamba-track-interval 64 --speculative-num-draft-tokens 6", QWEN),
    *(("flag.needs", "error", version, f"{SIZES} {line}", {}, version, f"{SIZES} {other_line}", {})
      for version, line, other_line in (
        ("0.5.23", f"{PREFILL_ONLY}", f"{PREFILL_ONLY} --prefill-attention-backend fa4"),
        ("0.5.23", "--elastic-ep-backend mooncake --elastic-ep-initial-size 4", "--elastic-ep-backend mooncake"),
        ("0.5.23", "--elastic-ep-backend mooncake --max-ep-size 8", "--elastic-ep-backend mooncake --max-ep-size 4"),
        ("0.5.16", "--enable-unified-memory", "--enable-unified-memory --attention-backend triton"),
        ("0.5.16", f"--enable-unified-memory --attention-backend triton {EAGLE} 4",
         "--enable-unified-memory --attention-backend triton"),
        ("0.5.20", f"--enable-unified-memory {EAGLE} 4", f"--enable-unified-memory {DSPARK}"),
        ("0.5.23", "--enable-page-major-kv-layout", "--enable-page-major-kv-layout --enable-unified-memory"),
    )),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[f"{case[0]}-{case[1]}-{case[2]}" for case in CASES])
def test_a_rule_applies_where_it_should_and_only_there(case: tuple[Any, ...]) -> None:
    rule, severity, version, line, known, other_version, other_line, other_known = case
    assert rule in rules_of(ask(version, line, **dict(known)), severity)
    assert rule not in rules_of(ask(other_version, other_line, **dict(other_known)), severity)


def test_every_rule_has_a_case() -> None:
    tried = {(case[0], case[1]) for case in CASES}
    assert {(rule.id, rule.severity) for rule in KNOWLEDGE.rules.rules} <= tried


def test_every_rule_has_a_source_and_well_formed_sentences() -> None:
    for rule in KNOWLEDGE.rules.rules:
        assert rule.source
        assert rule.remedy[0].isupper(), rule.id
        assert not rule.reason.endswith("."), rule.id


def test_messages_are_filled_in() -> None:
    for case in CASES:
        for finding in ask(case[2], case[3], **dict(case[4])).findings:
            assert "{" not in finding.reason.replace("{decode,prefill}", ""), finding
            assert "{" not in finding.remedy.replace("{decode,prefill}", ""), finding


def test_a_post_release_belongs_to_its_release() -> None:
    line = "--fp4-gemm-backend cutlass"
    assert "fp4gemm.cutlass" not in rules_of(ask("0.5.15.post1", line, **QWEN))
    assert "fp4gemm.cutlass" in rules_of(ask("0.5.16.dev3", line, **QWEN))


WHOLE = {"id": "a", "severity": "info", "key": "k", "reason": "r", "remedy": "R", "source": "s", "when": "True"}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"id": "a"}, "needs"),
        ({**WHOLE, "evidence": "derived", "severity": "bad"}, "severity"),
        ({**WHOLE, "evidence": "so"}, "evidence is one of"),
    ],
)
def test_a_malformed_rule_is_refused(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rule.from_dict(raw)


def test_a_missing_rules_file_is_named(tmp_path: Any) -> None:
    path = tmp_path / "rules.json"
    path.write_text(json.dumps({"rules": []}))
    with pytest.raises(ValueError, match=r"rules\.json"):
        load_rules(path)


def test_rules_file_is_the_one_that_is_tested() -> None:
    assert load_rules(PROFILES / "rules.json") == KNOWLEDGE.rules


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a > 1", False),
        ("b > 1 and not a", True),
        ("b + 1 == 3", True),
        ("a + 1 == 3", False),
        ("b % 0 == 0", False),
        ("b in (1, 2)", True),
        ("a in (None,)", False),
        ("'x' in c", True),
        ("'x' not in a", True),
        ("1 if b else 2", 1),
        ("-b < 0 < b", True),
        ("a is None or d", True),
    ],
)
def test_expressions(text: str, value: Any) -> None:
    assert evaluate(text, {"a": None, "b": 2, "c": "xyz", "d": False}) == value


@pytest.mark.parametrize("text", ["e", "b.real", "b()", "b ** 2", "b +", "~b", "[x for x in c]"])
def test_expressions_allow_nothing_else(text: str) -> None:
    with pytest.raises(ValueError, match=r"b|e|x"):
        evaluate(text, {"b": 2, "c": "x"})
