# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Cases of the rules about states of hybrid models, caches and memory."""

from .words import EAGLE, LAZY, NEMOTRON, QWEN

CASES = [
    ("ctx.derived", "error", "0.5.13", "--context-length 524288", {"max_context": 262144},
     "0.5.13", """--context-length 524288 --json-model-override-args '{"max_position_embeddings": 524288}'""",
     {"max_context": 262144}),
    ("mamba.extra.noradix", "error", "0.5.13", "--disable-radix-cache --mamba-scheduler-strategy extra_buffer", QWEN,
     "0.5.14", "--disable-radix-cache --mamba-radix-cache-strategy extra_buffer", QWEN),
    ("mamba.lazy.spec", "error", "0.5.16", f"{EAGLE} 4 --mamba-radix-cache-strategy extra_buffer_lazy", QWEN,
     "0.5.16", f"{EAGLE} 4 --mamba-radix-cache-strategy extra_buffer", QWEN),
    ("mamba.lazy.spec", "error", "0.5.13.post1",
     "--mamba-scheduler-strategy extra_buffer_lazy --speculative-num-draft-tokens 6", QWEN,
     "0.5.13.post1", "--mamba-scheduler-strategy extra_buffer_lazy", QWEN),
    ("mamba.lazy.spec", "error", "0.5.16", f"{LAZY} --speculative-algorithm EAGLE", QWEN, "0.5.16", LAZY, QWEN),
    ("mamba.linear.gdn", "error", "0.5.23", "--linear-attn-backend ptx_kda", QWEN,
     "0.5.23", "--linear-attn-backend cutedsl", QWEN),
    ("mamba.linear.gdn", "error", "0.5.16", "--linear-attn-backend flashkda --linear-attn-decode-backend triton", QWEN,
     "0.5.16", "--linear-attn-backend flashkda --linear-attn-prefill-backend triton", QWEN),
    ("mamba.nemotron.extra", "error", "0.5.12", "--mamba-scheduler-strategy extra_buffer", {**NEMOTRON, "patches": ()},
     "0.5.13", "--mamba-scheduler-strategy extra_buffer", NEMOTRON),
    ("mamba.radix.nobuffer", "error", "0.5.10", f"{EAGLE} 4", {**QWEN, "patches": ()}, "0.5.14", f"{EAGLE} 4", QWEN),
    ("mamba.radix.nobuffer", "error", "0.5.10", f"{EAGLE} 4 --disaggregation-mode decode", {**QWEN, "patches": ()},
     "0.5.10", f"{EAGLE} 4 --disaggregation-mode decode --disable-radix-cache", QWEN),
    ("mamba.radix.nobuffer", "warning", "0.5.13.post1", f"{EAGLE} 4", NEMOTRON,
     "0.5.13.post1", f"{EAGLE} 4 --mamba-scheduler-strategy extra_buffer", QWEN),
    ("mamba.slots", "info", "0.5.13", "--max-mamba-cache-size 96 --max-running-requests 48", NEMOTRON,
     "0.5.13", "--max-mamba-cache-size 96 --max-running-requests 32", NEMOTRON),
    ("mamba.track", "error", "0.5.16", "--speculative-algorithm STANDALONE --mamba-track-interval 2", QWEN,
     "0.5.16", "--speculative-algorithm STANDALONE --mamba-track-interval 4", QWEN),
    ("mem.named", "warning", "0.5.16", "--model-path a/Qwen3-480B-A35B-FP8 --mem-fraction-static 0.8 --tp-size 4", {},
     "0.5.16", "--model-path a/Qwen3-235B-A22B-FP8 --mem-fraction-static 0.8 --tp-size 4", {}),
    ("mem.named", "warning", "0.5.16", "--model-path /models/Llama-70B --mem-fraction-static 0.9", {},
     "0.5.16", "--model-path /models/Llama-70B --mem-fraction-static 0.9", {"quantization": "awq"}),
    ("mem.unified", "info", "0.5.13", "", {}, "0.5.13", "", {"gpu": "b300"}),
    ("mem.ple_pinned", "warning", "0.5.20", "--ple-offload-embedding", {},
     "0.5.20", "--ple-offload-embedding --ple-offload-backend file", {}),
    ("mem.unified", "info", "0.5.13", "--mem-fraction-static 0.9", {}, "0.5.13", "--mem-fraction-static 0.80", {}),
]  # fmt: skip
