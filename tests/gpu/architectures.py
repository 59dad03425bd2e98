#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve one small random model per architecture with real SGLang, by the command lines that the serving plan writes.

    tests/gpu/architectures.py [--logs DIR] [--tp 1] [dense | moe | hybrid]...
    tests/gpu/architectures.py [--logs DIR] [--tp 1] defaults

Needs two NVIDIA GPUs of one machine, or one with --tp 1, and what tests/gpu/sglang_two_ranks.py needs. Every model is
a profile like those of users: resolved for the release and planned as a group of one node. The program that asks a
group's image judges the command line without a GPU; then the server is started with the plan's arguments and
environment, and the settings that it reports are compared with those of the plan and of that check. All servers start
at once, because most of a start is the compilation of kernels, which leaves the GPUs idle.
Prints one JSON object; the exit status is 0 only if every check accepted, and every server generated, ran every
setting as asked and as the check resolved it, and its NCCL log says that two ranks use no network.

Seen on 2 x H200 (SGLang 0.5.16, PyTorch 2.11, NCCL 2.28.9), 2026-11-22, all three at once: ready after 238 to 242 s
(156 s in another run), 3 x 64 tokens each, prefill and decode graphs on, verdict `intra`. Tokens per second of one
stream: hybrid 368, moe 575, dense 222 with EAGLE, whose accept length is 1.0 since the draft is random.

Seen on one H200 with --tp 1, 2026-11-29: three at once ready after 121 to 247 s, `defaults` after 58 s; each of the
438 settings that the check resolved in 17 to 23 s (916 MiB) was that of the running server, graphs included.
"""

import argparse
import base64
import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import sglang_two_ranks as two

sys.path.insert(0, str(two.ROOT / "collections"))
sys.path.insert(0, str(two.ROOT / "roles" / "sglang" / "files"))

import ask_sglang
from ansible_collections.gb10.cluster.plugins.module_utils._common.findings import has_errors
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.model import Plan, Settings, to_serving
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.plan import plan_group
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.summary import differences, unforeseen
from ansible_collections.gb10.cluster.plugins.plugin_utils._sglang.profile import Library, ResolvedProfile, resolve

RELEASE = "0.5.16"
PROGRAM = Path(ask_sglang.__file__)
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
ALONE = {"defaults": two.TARGET}
"""A server that sizes itself by the GPU's memory, which must not share it."""
EAGLE = {
    "speculative_algorithm": "EAGLE",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}


def profile(name: str, models: Path, tp: int) -> dict[str, Any]:
    """Return the profile of a model as a user writes it; token ids go in and out, so that no tokenizer is needed."""
    two.write_model(models / name, (CONFIGS | ALONE)[name])
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
        "cuda_graph_max_bs_decode": 8,
    }
    if name in CONFIGS:
        settings |= {"mem_fraction_static": 0.2, "max_total_tokens": 8192, "max_running_requests": 8}
    if name == "dense":
        two.write_model(models / "draft", two.DRAFT)
        settings |= EAGLE | {"speculative_draft_model_path": str(models / "draft")}
    return {
        "name": f"tiny-{name}",
        "description": f"A {name} model of random weights",
        "model": {
            "repo": str(models / name),
            "arch": (CONFIGS | ALONE)[name]["architectures"][0],
            "quantization": "none",
            "moe": name == "moe",
            "weights_gb": 0.01,
        },
        "hardware": "h200",
        "sglang_version": RELEASE,
        "image": "localhost/sglang:any",
        "topology": {"nodes": 1, "tp": tp, "pp": 1, "ep": 1},
        "server_args": settings,
    }


def plan(name: str, models: Path, port: int, library: Library, tp: int) -> tuple[Plan, ResolvedProfile]:
    """Return the group of one rank and its resolved profile; raises ValueError with the findings otherwise."""
    resolved = resolve(profile(name, models, tp), library=library, platform="h200")
    serving = to_serving(resolved, str(models), metrics=True)
    place = {"platform": "h200", "port": port, "models_dir": str(models)}
    settings = Settings(instance=f"tiny-{name}", nodes=("gpus",), gpus_per_node=tp, **place)
    group, findings = plan_group({}, serving, settings)
    found = [*resolved.findings, *findings]
    if has_errors(found):
        raise ValueError("; ".join(str(finding) for finding in found if finding.severity == "error"))
    return group, resolved


def check(group: Plan) -> dict[str, Any]:
    """Return the answer of the program that a pod of the image runs, with the configurations but without the GPUs."""
    rank = group.ranks[0]
    models = {word for word in rank.argv if (Path(word) / "config.json").is_file()}
    files = {name: {"config.json": (Path(name) / "config.json").read_text()} for name in models}
    words = list(rank.argv[rank.argv.index("sglang.launch_server") + 1 :])
    asked = {"rank": 0, "argv": words, "env": dict(rank.env)}
    given = json.dumps({"gpu": dict(group.gpu), "limit": 270, "files": files, "ranks": [asked]})
    question = base64.b64encode(zlib.compress(given.encode())).decode()
    argv = [sys.executable, "-c", PROGRAM.read_text(encoding="utf-8"), question]
    own = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(argv, env=own, capture_output=True, text=True, check=False)
    said = [line.removeprefix(ask_sglang.MARK) for line in done.stdout.splitlines() if line.startswith(ask_sglang.MARK)]
    return dict(json.loads(said[0])) if said else {"verdict": "unknown", "message": done.stderr[-600:]}


def verdict(log: Path) -> dict[str, Any]:
    """Return the verdict of scripts/nccl_verdict.py on a log whose ranks share one host."""
    argv = [sys.executable, str(two.ROOT / "scripts" / "nccl_verdict.py"), "--json", "--allow-intra", str(log)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    keys = ("verdict", "transport_class", "evidence", "nccl_version")
    return {key: json.loads(done.stdout)[0][key] for key in keys}


def exercise(group: Plan, said: dict[str, Any], library: Library, log: Path) -> dict[str, Any]:
    """Generate, read metrics, and compare the server's settings with those of the plan and of the check."""
    generation = two.generate()
    page = two.ask("/metrics")
    answer = two.ask("/server_info")
    log.with_suffix(".server_info.json").write_text(answer)
    info = json.loads(answer)
    different = differences(group.ranks[0].argv, info, RELEASE, library.knowledge.history)
    expected = said.get("resolved") or {}
    text = log.read_text(errors="replace")
    return {
        "version": info.get("version"),
        "generation": generation,
        "different": different,
        "check": {key: said.get(key) for key in ("verdict", "message", "overruled", "seconds", "mebibytes")},
        "compared": sum(key in info for key in expected),
        "not_in_server_info": sorted(key for key in expected if key not in info),
        "unforeseen": unforeseen(expected, info),
        "metrics": sum(line.startswith("sglang:generation_tokens_total") for line in page.splitlines()),
        "accept": [
            line.rsplit(" ", 1)[1] for line in page.splitlines() if line.startswith("sglang:spec_accept_length{")
        ],
        "graphs": sorted({line.split("] ", 1)[-1] for line in text.splitlines() if "CUDA graph end" in line}),
        "verdict": verdict(log) if group.expect.ranks > 1 else {},
    }


def run(names: list[str], models: Path, logs: Path, tp: int) -> dict[str, Any]:
    """Ask about all command lines and start all servers, exercise them in turn, and return what was seen of each."""
    logs.mkdir(parents=True, exist_ok=True)
    library, started, seen = Library.load(), {}, {}
    begin = time.monotonic()
    try:
        for place, name in enumerate(names):
            group, resolved = plan(name, models, two.PORT + 10 * place, library, tp)
            # The plan has the interpreter's name in an image; here it is the one of this environment.
            argv = [sys.executable, *group.ranks[0].argv[1:]]
            env = os.environ | dict(group.ranks[0].env) | {"PYTHONUNBUFFERED": "1"}
            started[name] = (two.start(argv, env, logs / f"{name}.log"), group, resolved)
        answers = {name: check(group) for name, (_server, group, _resolved) in started.items()}
        (logs / "checks.json").write_text(json.dumps(answers))
        first = two.PORT
        for place, (name, (server, group, _resolved)) in enumerate(started.items()):
            two.PORT = first + 10 * place
            try:
                two.wait_until_ready([server])
                ready = round(time.monotonic() - begin, 1)
                seen[name] = {"ready_s": ready} | exercise(group, answers[name], library, logs / f"{name}.log")
            except (RuntimeError, OSError) as error:
                seen[name] = {"error": str(error)}
    finally:
        two.stop([server for server, _group, _resolved in started.values()])
    return seen


def passed(each: dict[str, Any]) -> bool:
    """Return whether one server did everything that the profile asks for."""
    if "error" in each:
        return False
    return (
        each["generation"]["tokens"] == [64, 64, 64]
        and each["check"]["verdict"] == "accepted"
        and not each["different"] + each["unforeseen"]
        and each["verdict"].get("transport_class", "intra") == "intra"
    )


def main() -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="architectures; all of them if none is given")
    parser.add_argument("--tp", type=int, choices=(1, 2), default=2, help="GPUs of each server")
    parser.add_argument("--logs", type=Path, default=Path("architecture-logs"), help="where the logs are kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as models:
        seen = run(options.names or list(CONFIGS), Path(models), options.logs, options.tp)
    result = {"passed": all(map(passed, seen.values())), "seen": seen}
    print(json.dumps(result, indent=2))
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
