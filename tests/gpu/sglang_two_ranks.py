#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run real SGLang as two ranks on two GPUs of one machine, as on two nodes, and check its log and answers.

    tests/gpu/sglang_two_ranks.py [--eagle] [--logs DIR]

Needs two NVIDIA GPUs and an environment in which `python3 -m sglang.launch_server --help` works; nothing is downloaded,
the model is tiny and random. Each rank has its own NCCL_HOSTID, so NCCL treats them as two hosts and takes Socket
(there is no RDMA between the GPUs of most machines): the verdict must be `socket`, by channel lines, on both ranks.
Prints one JSON object; the exit status is 0 only if every check passes.

Seen on 2 x H200 (SGLang 0.5.16, PyTorch 2.11, NCCL 2.28.9), 2026-11-21: ready in 101 s and 475 tok/s for one stream;
with --eagle, kernels compiled, 46 s and 241 tok/s, accept length 1.0 since the draft is random.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PORT = 30100
DIST = 20100
READY_S = 420

TARGET = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1024,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
}
DRAFT = TARGET | {"architectures": ["LlamaForCausalLMEagle"], "num_hidden_layers": 1}


def write_model(directory: Path, config: dict[str, Any]) -> Path:
    """Write a model directory of a configuration alone; its weights are random (`--load-format dummy`)."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def command(rank: int, models: Path, eagle: bool) -> list[str]:
    """Return the command line of one rank; token ids go in and out, so that no tokenizer is needed."""
    argv = [
        sys.executable, "-m", "sglang.launch_server",
        "--model-path", str(models / "target"), "--load-format", "dummy", "--skip-tokenizer-init",
        "--tp-size", "2", "--nnodes", "2", "--node-rank", str(rank), "--dist-init-addr", f"127.0.0.1:{DIST}",
        "--host", "127.0.0.1", "--port", str(PORT + rank), "--attention-backend", "triton",
        "--sampling-backend", "pytorch", "--grammar-backend", "none", "--skip-server-warmup",
        "--disable-custom-all-reduce", "--enable-metrics",
        "--cuda-graph-max-bs-decode", "8", "--mem-fraction-static", "0.2", "--max-total-tokens", "8192",
    ]  # fmt: skip
    if eagle:
        argv += [
            "--speculative-algorithm", "EAGLE", "--speculative-draft-model-path", str(models / "draft"),
            "--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4",
        ]  # fmt: skip
    return argv


def environment(rank: int) -> dict[str, str]:
    """Return an environment that gives a rank its own GPU and makes NCCL treat it as a separate host."""
    return os.environ | {
        "CUDA_VISIBLE_DEVICES": str(rank),
        "NCCL_HOSTID": f"node{rank}",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "PYTHONUNBUFFERED": "1",
    }


def start(argv: list[str], own: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start one rank in a session of its own, with its output in a file."""
    with log.open("wb") as stream:
        return subprocess.Popen(argv, env=own, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True)


def stop(ranks: list[subprocess.Popen[bytes]]) -> None:
    """Kill the ranks and all their child processes."""
    for rank in ranks:
        if rank.poll() is None:
            os.killpg(rank.pid, signal.SIGKILL)
        rank.wait()


def ask(path: str, body: dict[str, Any] | None = None, timeout: float = 60) -> str:
    """Return the answer of the head; raises OSError when there is none."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as response:
        return str(response.read().decode())


def wait_until_ready(ranks: list[subprocess.Popen[bytes]]) -> float:
    """Return the seconds until the head is healthy; raises RuntimeError when a rank ends or time runs out."""
    started = time.monotonic()
    while time.monotonic() - started < READY_S:
        for number, rank in enumerate(ranks):
            if rank.poll() is not None:
                raise RuntimeError(f"rank {number} ended with status {rank.returncode}: read its log")
        try:
            ask("/health", timeout=30)
            return time.monotonic() - started
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    raise RuntimeError(f"not healthy within {READY_S} s")


def generate() -> dict[str, Any]:
    """Ask for 64 tokens of three prompts and return how many came, and how fast."""
    started = time.monotonic()
    answers = [
        json.loads(
            ask(
                "/generate",
                {
                    "input_ids": [5 + n, 6, 7, 8],
                    "sampling_params": {"max_new_tokens": 64, "ignore_eos": True, "temperature": 0},
                },
                timeout=240,
            )
        )
        for n in range(3)
    ]
    tokens = [len(a.get("output_ids", [])) for a in answers]
    return {"tokens": tokens, "tok_s": sum(tokens) / (time.monotonic() - started)}


def compare(eagle: bool) -> dict[str, Any]:
    """Return the settings that the server reports, beside those that were requested."""
    info = json.loads(ask("/server_info"))
    told = {
        "tp_size": 2,
        "nnodes": 2,
        "attention_backend": "triton",
        "speculative_algorithm": "EAGLE" if eagle else None,
    }
    return {"version": info.get("version"), "different": {k: info.get(k) for k, v in told.items() if info.get(k) != v}}


def verdicts(logs: Path) -> list[dict[str, Any]]:
    """Return the verdicts of scripts/nccl_verdict.py on both logs."""
    files = [str(logs / f"rank{n}.log") for n in (0, 1)]
    argv = [sys.executable, str(ROOT / "scripts" / "nccl_verdict.py"), "--json", *files]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    keys = ("verdict", "transport_class", "evidence", "channels", "nccl_version")
    return [{key: entry[key] for key in keys} for entry in json.loads(done.stdout)]


def run(eagle: bool, models: Path, logs: Path) -> dict[str, Any]:
    """Start both ranks, exercise and judge them, stop them, and return everything seen."""
    logs.mkdir(parents=True, exist_ok=True)
    write_model(models / "target", TARGET)
    write_model(models / "draft", DRAFT)
    ranks = [start(command(n, models, eagle), environment(n), logs / f"rank{n}.log") for n in (0, 1)]
    try:
        seen: dict[str, Any] = {"eagle": eagle, "ready_s": round(wait_until_ready(ranks), 1), "generation": generate()}
        metrics = ask("/metrics")
        seen["server"] = compare(eagle)
        seen["metrics"] = [line for line in metrics.splitlines() if line.startswith("sglang:generation_tokens_total")]
        seen["accept"] = [line for line in metrics.splitlines() if line.startswith("sglang:spec_accept_length{")]
        (logs / "metrics").write_text(metrics)
    finally:
        stop(ranks)
    seen["verdicts"] = verdicts(logs)
    seen["passed"] = (
        seen["generation"]["tokens"] == [64, 64, 64]
        and not seen["server"]["different"]
        and bool(seen["metrics"])
        and [(v["verdict"], v["evidence"]) for v in seen["verdicts"]] == [("socket", "channels")] * 2
    )
    return seen


def main() -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eagle", action="store_true", help="speculate with a one-layer random draft")
    parser.add_argument("--logs", type=Path, default=Path("two-ranks-logs"), help="where the logs are kept")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as models:
            seen = run(options.eagle, Path(models), options.logs)
    except (RuntimeError, OSError) as error:
        print(json.dumps({"passed": False, "error": str(error), "logs": str(options.logs)}, indent=2))
        return 1
    print(json.dumps(seen, indent=2))
    return 0 if seen["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
