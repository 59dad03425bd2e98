# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Cases of the rules about single flags and what they need."""

from .words import (
    SIZES,
)

CASES = [
    ("argparse.abbrev", "info", "0.5.13", "--tp 1", {}, "0.5.13", "--ep 1", {}),
    ("name.former", "error", "0.5.23", "--enable-ep-moe", {}, "0.5.23", "--ep-size 1", {}),
    ("name.quantization", "error", "0.5.16", "--quantization nvfp4", {}, "0.5.16", "--quantization modelopt_fp4", {}),
    ("name.vllm", "error", "0.5.23", "--gpu-memory-utilization 0.8", {}, "0.5.23", "--mem-fraction-static 0.8", {}),
    ("value.range", "error", "0.5.13", "--mem-fraction-static 80", {}, "0.5.13", "--mem-fraction-static 0.99", {}),
    ("value.range", "error", "0.5.13", "--mem-fraction-static nan", {}, "0.5.13", "", {}),
    ("value.range", "error", "0.5.10", "--context-length -5", {}, "0.5.10", "--context-length 1", {}),
    ("value.range", "error", "0.5.23", "--max-running-requests 0", {}, "0.5.23", "--max-running-requests 1", {}),
    ("value.range", "error", "0.5.23", "--speculative-num-steps -2", {}, "0.5.23", "--speculative-num-steps 1", {}),
    ("value.range", "error", "0.5.23", "--speculative-num-steps 0", {},
     "0.5.23", "--speculative-num-steps 0 --speculative-adaptive", {}),
    ("value.range", "error", "0.5.20", "--decode-log-interval 0", {}, "0.5.20", "--decode-log-interval 1", {}),
    ("value.range", "error", "0.5.10", f"{SIZES} --dist-init-addr 192.168.1.5", {},
     "0.5.10", f"{SIZES} --dist-init-addr 192.168.1.5:5000", {}),
    ("config.file", "warning", "0.5.23", "--config /x.yaml", {}, "0.5.23", "", {}),
    ("value.range", "error", "0.5.13", f"{SIZES} --node-rank 4", {}, "0.5.13", f"{SIZES} --node-rank 3", {}),
    ("value.range", "error", "0.5.13", "--port 99999999", {}, "0.5.13", "--port 65535", {}),
]  # fmt: skip
