# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Models and flags that several cases need."""

NEMOTRON = {"arch": "NemotronHForCausalLM", "quantization": "modelopt_fp4"}
QWEN = {"arch": "Qwen3_5MoeForConditionalGeneration", "quantization": "modelopt_fp4"}
GLM = {"arch": "Glm4MoeForCausalLM", "quantization": "modelopt_fp4"}
MINIMAX = {"arch": "MiniMaxM2ForCausalLM", "quantization": "modelopt_fp4"}
OMNI = {"arch": "NemotronH_Nano_Omni_Reasoning_V3", "quantization": "modelopt_mixed"}
AWQ = {"arch": "Qwen3MoeForCausalLM", "quantization": "awq"}
PACKED = {"arch": "Qwen3MoeForCausalLM", "quantization": "compressed-tensors"}
NAMED = "--quantization modelopt_fp4"
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
QSA = {"arch": "Qwen4ExpForConditionalGeneration", "quantization": "modelopt_fp4"}
K2 = {"arch": "K2HorizonForCausalLM", "quantization": "fp8"}
MOVA = "--model-path IFM/K2-Horizon-MoVA-36B-A4B-FP8"
KIMI = {"arch": "KimiLinearForCausalLM"}
GPTOSS = {"arch": "GptOssForCausalLM", "quantization": "mxfp4"}
DEEPSEEK = {"arch": "DeepseekV3ForCausalLM"}
GEMMA = {"arch": "Gemma4ForConditionalGeneration"}
MTP = {**GEMMA, "draft_arch": "Gemma4AssistantForCausalLM"}
DRAFT = "--speculative-algorithm NEXTN --speculative-draft-model-path d --speculative-eagle-topk 1"
STEPS = "--speculative-algorithm EAGLE --speculative-num-steps 3"
EAGLE = f"{STEPS} --speculative-eagle-topk 1 --speculative-num-draft-tokens"
EAGLE3 = "--speculative-algorithm EAGLE3 --speculative-draft-model-path d"
TREE = f"{STEPS} --speculative-eagle-topk 4 --speculative-num-draft-tokens 8"
SIZES = "--tp-size 4 --nnodes 4"
LAZY = "--mamba-radix-cache-strategy extra_buffer_lazy"
YARN = """--json-model-override-args
 '{"rope_scaling": {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 131072}}'"""
DFLASH = "--speculative-algorithm DFLASH --speculative-draft-model-path d --speculative-num-draft-tokens 8"
DSPARK = "--speculative-algorithm DSPARK --speculative-draft-model-path d --speculative-dspark-block-size 7"
V2 = {"env": {"SGLANG_ENABLE_SPEC_V2": "1"}}
MISTRAL = f"{EAGLE} 4 --speculative-draft-model-path mistralai/Mistral-Large-3-675B-Instruct-2512-Eagle"
EP_PATCHES = ("cutlass-moe-zero-init", "cutlass-moe-mask-topk", "modelopt-ep-input-scale")
