#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve one small random model per architecture with real SGLang, by the command lines that the serving plan writes.

    tests/gpu/architectures.py [--logs DIR] [dense | moe | hybrid]...

Needs two NVIDIA GPUs of one machine and what tests/gpu/sglang_two_ranks.py needs. Every model is a profile like those
of users: resolved for the release, planned as a group of one node with TP 2, started with the plan's arguments and
environment, and compared with the settings that the server reports. All servers start at once, because most of a
start is the compilation of kernels, which leaves the GPUs idle.
Prints one JSON object; the exit status is 0 only if every server generated, ran every setting as asked, and its
NCCL log says that the ranks use no network.

Seen on 2 x H200 (SGLang 0.5.16, PyTorch 2.11, NCCL 2.28.9), 2026-11-22, all three at once: ready after 238 to 242 s
(156 s in another run), 3 x 64 tokens each, prefill and decode graphs on, verdict `intra`. Tokens per second of one
stream: hybrid 368, moe 575, dense 222 with EAGLE, whose accept length is 1.0 since the draft is random.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import sglang_two_ranks as two

sys.path.insert(0, str(two.ROOT / "collections"))

from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import has_errors
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.compare import differences
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.model import RankPlan, Settings
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.plan import plan_group
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.profile import to_serving
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile import Library, ResolvedProfile, resolve

RELEASE = "0.5.16"
MOE = two.TARGET | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
# Mamba, MLP, attention, MLP, Mamba, MLP: every kind of layer that needs a kernel or a state of its own.
HYBRID = two.TARGET | {
    "architectures": ["NemotronHForCausalLM"],
    "model_type": "nemotron_h",
    "hybrid_override_pattern": "M-*-M-",
    "num_hidden_layers": 6,
    "mlp_hidden_act": "relu2",
    "mamba_num_heads": 8,
    "mamba_head_dim": 64,
    # SGLang 0.5.16 reads the layers' groups by the one name, and the states' by the other; both default to 8.
    "mamba_n_groups": 2,
    "n_groups": 2,
    "ssm_state_size": 128,
    "conv_kernel": 4,
    "expand": 2,
    "chunk_size": 128,
    "use_conv_bias": True,
    "layer_norm_epsilon": 1e-5,
}
CONFIGS = {"dense": two.TARGET, "moe": MOE, "hybrid": HYBRID}
EAGLE = {
    "speculative_algorithm": "EAGLE",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}


def profile(name: str, models: Path) -> dict[str, Any]:
    """Return the profile of a model as a user writes it; token ids go in and out, so that no tokenizer is needed."""
    two.write_model(models / name, CONFIGS[name])
    settings = {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        # SGLang before 0.5.19 refuses triton for a model whose first layer is not attention.
        "attention_backend": "flashinfer" if name == "hybrid" else "triton",
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "skip_server_warmup": True,
        "disable_custom_all_reduce": True,
        # On SM90 SGLang switches it on for MoE and hybrid models. Compiling its kernels took more than 90 s.
        "enforce_disable_flashinfer_allreduce_fusion": True,
        "mem_fraction_static": 0.2,
        "max_total_tokens": 8192,
        "max_running_requests": 8,
        "cuda_graph_max_bs_decode": 8,
    }
    if name == "dense":
        two.write_model(models / "draft", two.DRAFT)
        settings |= EAGLE | {"speculative_draft_model_path": str(models / "draft")}
    return {
        "name": f"tiny-{name}",
        "description": f"A {name} model of random weights",
        "model": {
            "repo": str(models / name),
            "arch": CONFIGS[name]["architectures"][0],
            "quantization": "none",
            "moe": name == "moe",
            "weights_gb": 0.01,
        },
        "hardware": "h200",
        "sglang_version": RELEASE,
        "image": "localhost/sglang:any",
        "topology": {"nodes": 1, "tp": 2, "pp": 1, "ep": 1},
        "server_args": settings,
    }


def plan(name: str, models: Path, port: int, library: Library) -> tuple[RankPlan, ResolvedProfile]:
    """Return the only rank of the group and its resolved profile; raises ValueError with the findings otherwise."""
    resolved = resolve(profile(name, models), library=library, platform="h200")
    serving = to_serving(resolved, str(models), metrics=True)
    place = {"platform": "h200", "port": port, "models_dir": str(models)}
    settings = Settings(instance=f"tiny-{name}", nodes=("gpus",), gpus_per_node=2, **place)
    group, findings = plan_group({}, serving, settings)
    found = [*resolved.findings, *findings]
    if has_errors(found):
        raise ValueError("; ".join(str(finding) for finding in found if finding.severity == "error"))
    return group.ranks[0], resolved


def verdict(log: Path) -> dict[str, Any]:
    """Return the verdict of scripts/nccl_verdict.py on a log whose ranks share one host."""
    argv = [sys.executable, str(two.ROOT / "scripts" / "nccl_verdict.py"), "--json", "--allow-intra", str(log)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    keys = ("verdict", "transport_class", "evidence", "nccl_version")
    return {key: json.loads(done.stdout)[0][key] for key in keys}


def exercise(rank: RankPlan, resolved: ResolvedProfile, library: Library, log: Path) -> dict[str, Any]:
    """Generate, read metrics, and compare the server's settings with those of the plan."""
    generation = two.generate()
    page = two.ask("/metrics")
    answer = two.ask("/server_info")
    log.with_suffix(".server_info.json").write_text(answer)
    info = json.loads(answer)
    different = differences(rank.argv, info, RELEASE, library.knowledge.history)
    text = log.read_text(errors="replace")
    return {
        "version": info.get("version"),
        "generation": generation,
        "different": different,
        "predicted_changes": [change["key"] for change in resolved.changes if "key" in change],
        "metrics": sum(line.startswith("sglang:generation_tokens_total") for line in page.splitlines()),
        "accept": [
            line.rsplit(" ", 1)[1] for line in page.splitlines() if line.startswith("sglang:spec_accept_length{")
        ],
        "graphs": sorted({line.split("] ", 1)[-1] for line in text.splitlines() if "CUDA graph end" in line}),
        "verdict": verdict(log),
    }


def run(names: list[str], models: Path, logs: Path) -> dict[str, Any]:
    """Start all servers, exercise them in turn, and return what was seen of each."""
    logs.mkdir(parents=True, exist_ok=True)
    library, started, seen = Library.load(), {}, {}
    begin = time.monotonic()
    try:
        for place, name in enumerate(names):
            rank, resolved = plan(name, models, two.PORT + 10 * place, library)
            # The plan has the interpreter's name in an image; here it is the one of this environment.
            argv = [sys.executable, *rank.argv[1:]]
            rank = replace(rank, env={**rank.env, "PYTHONUNBUFFERED": "1"})
            started[name] = (two.start(argv, os.environ | dict(rank.env), logs / f"{name}.log"), rank, resolved)
        first = two.PORT
        for place, (name, (server, rank, resolved)) in enumerate(started.items()):
            two.PORT = first + 10 * place
            try:
                two.wait_until_ready([server])
                ready = round(time.monotonic() - begin, 1)
                seen[name] = {"ready_s": ready} | exercise(rank, resolved, library, logs / f"{name}.log")
            except (RuntimeError, OSError) as error:
                seen[name] = {"error": str(error)}
    finally:
        two.stop([server for server, _rank, _resolved in started.values()])
    return seen


def passed(each: dict[str, Any]) -> bool:
    """Return whether one server did everything that the profile asks for."""
    if "error" in each:
        return False
    return (
        each["generation"]["tokens"] == [64, 64, 64]
        and not each["different"]
        and each["verdict"]["transport_class"] == "intra"
    )


def main() -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="architectures; all of them if none is given")
    parser.add_argument("--logs", type=Path, default=Path("architecture-logs"), help="where the logs are kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as models:
        seen = run(options.names or list(CONFIGS), Path(models), options.logs)
    result = {"passed": all(map(passed, seen.values())), "seen": seen}
    print(json.dumps(result, indent=2))
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
