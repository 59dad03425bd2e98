# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Cases of the rules about states of hybrid models, caches and memory."""

from .words import EAGLE, KIMI, LAZY, NEMOTRON, QWEN, YARN

LONG, OF_262144 = "--context-length 524288", {"max_context": 262144}

CASES = [
    ("ctx.derived", "error", "0.5.13", "--context-length 524288", {"max_context": 262144},
     "0.5.13", """--context-length 524288 --json-model-override-args '{"max_position_embeddings": 524288}'""",
     {"max_context": 262144}),
    ("ctx.derived", "error", "0.5.19", f"--context-length 524288 {YARN}", {"max_context": 262144},
     "0.5.19", """--context-length 524288 --json-model-override-args
     '{"text_config": {"max_position_embeddings": 524288}}'""", {"max_context": 262144}),
    ("ctx.derived", "error", "0.5.23", "--context-length 524289", {"max_context": 262144},
     "0.5.23", """--context-length 524288 --json-model-override-args
     '{"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}'""", {"max_context": 262144}),
    *(("ctx.derived", "error", "0.5.23", LONG, OF_262144,
       "0.5.23", f"{LONG} --tp-size 2 --nnodes 2 --json-model-override-args '{wrong}'", OF_262144)
      for wrong in ('{"max_position_embeddings": "262144", "rope_scaling": {"factor": 1.0}}',
                    '{"max_position_embeddings": [1]}',
                    '{"max_position_embeddings": true, "num_key_value_heads": "8"}')),
    *(("ctx.derived", "error", "0.5.23", f"{LONG} --json-model-override-args '{wrong}'", OF_262144,
       "0.5.23", "--context-length 262144", OF_262144)
      for wrong in ('{"rope_scaling": {"factor": Infinity}}', '{"rope_scaling": {"factor": "2"}}')),
    ("mamba.extra.noradix", "error", "0.5.13", "--disable-radix-cache --mamba-scheduler-strategy extra_buffer", QWEN,
     "0.5.14", "--disable-radix-cache --mamba-radix-cache-strategy extra_buffer", QWEN),
    ("mamba.extra.noradix", "error", "0.5.10", "--disable-radix-cache --mamba-scheduler-strategy extra_buffer", QWEN,
     "0.5.10", "--disable-radix-cache --mamba-scheduler-strategy extra_buffer", KIMI),
    ("mamba.lazy.spec", "error", "0.5.16", f"{EAGLE} 4 --mamba-radix-cache-strategy extra_buffer_lazy", QWEN,
     "0.5.16", f"{EAGLE} 4 --mamba-radix-cache-strategy extra_buffer", QWEN),
    ("mamba.lazy.spec", "error", "0.5.13.post1",
     "--mamba-scheduler-strategy extra_buffer_lazy --speculative-num-draft-tokens 6", QWEN,
     "0.5.13.post1", "--mamba-scheduler-strategy extra_buffer_lazy", QWEN),
    ("mamba.lazy.spec", "error", "0.5.16", f"{LAZY} --speculative-algorithm EAGLE", QWEN, "0.5.16", LAZY, QWEN),
    ("mamba.lazy.spec", "error", "0.5.14", f"{EAGLE} 4 {LAZY}", QWEN,
     "0.5.14", f"{EAGLE} 4 {LAZY} --disable-radix-cache", QWEN),
    ("mamba.linear.gdn", "error", "0.5.23", "--linear-attn-backend ptx_kda", QWEN,
     "0.5.23", "--linear-attn-backend cutedsl", QWEN),
    ("mamba.linear.gdn", "error", "0.5.15", "--linear-attn-prefill-backend flashkda", QWEN,
     "0.5.15", "--linear-attn-prefill-backend triton", QWEN),
    ("mamba.linear.gdn", "error", "0.5.23", "--linear-attn-decode-backend flashkda", QWEN,
     "0.5.23", "--linear-attn-decode-backend triton", QWEN),
    ("mamba.linear.gdn", "error", "0.5.16", "--linear-attn-backend flashkda --linear-attn-decode-backend triton", QWEN,
     "0.5.16", "--linear-attn-backend flashkda --linear-attn-prefill-backend triton", QWEN),
    ("mamba.nemotron.extra", "error", "0.5.12", "--mamba-scheduler-strategy extra_buffer", {**NEMOTRON, "patches": ()},
     "0.5.13", "--mamba-scheduler-strategy extra_buffer", NEMOTRON),
    ("mamba.radix.nobuffer", "error", "0.5.10", f"{EAGLE} 4", {**QWEN, "patches": ()}, "0.5.14", f"{EAGLE} 4", QWEN),
    ("mamba.radix.nobuffer", "error", "0.5.10", f"{EAGLE} 4 --disaggregation-mode decode", {**QWEN, "patches": ()},
     "0.5.10", f"{EAGLE} 4 --disaggregation-mode decode --disable-radix-cache", QWEN),
    ("mamba.radix.nobuffer", "error", "0.5.12", f"{EAGLE} 4", {**QWEN, "patches": ()},
     "0.5.12", f"{EAGLE} 4", {**KIMI, "patches": ()}),
    ("mamba.radix.nobuffer", "warning", "0.5.13.post1", f"{EAGLE} 4", NEMOTRON,
     "0.5.13.post1", f"{EAGLE} 4 --mamba-scheduler-strategy extra_buffer", QWEN),
    ("mamba.slots", "info", "0.5.13", "--max-mamba-cache-size 96 --max-running-requests 48", NEMOTRON,
     "0.5.13", "--max-mamba-cache-size 96 --max-running-requests 32", NEMOTRON),
    ("mem.named", "warning", "0.5.16", "--model-path a/Qwen3-480B-A35B-FP8 --mem-fraction-static 0.8 --tp-size 4", {},
     "0.5.16", "--model-path a/Qwen3-235B-A22B-FP8 --mem-fraction-static 0.8 --tp-size 4", {}),
    ("mem.named", "warning", "0.5.16", "--model-path /models/Llama-70B --mem-fraction-static 0.9", {},
     "0.5.16", "--model-path /models/Llama-70B --mem-fraction-static 0.9", {"quantization": "awq"}),
    ("mem.unified", "info", "0.5.13", "", {}, "0.5.13", "", {"gpu": "b300"}),
    ("mem.ple_pinned", "warning", "0.5.20", "--ple-offload-embedding", {},
     "0.5.20", "--ple-offload-embedding --ple-offload-backend file", {}),
    ("mem.unified", "info", "0.5.13", "--mem-fraction-static 0.9", {}, "0.5.13", "--mem-fraction-static 0.80", {}),
]  # fmt: skip
