# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compute invented speeds and texts. They follow published tables, so that sweeps have differences to find."""

import json
import os
import random
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

_SUBJECTS = [
    "rack",
    "fabric",
    "queue",
    "switch",
    "kernel",
    "cache",
    "planner",
    "scheduler",
    "packet",
    "buffer",
    "ledger",
    "harbor",
    "pilot",
    "engine",
]
_VERBS = [
    "moves",
    "holds",
    "counts",
    "drops",
    "wakes",
    "checks",
    "splits",
    "joins",
    "feeds",
    "clears",
    "routes",
    "signs",
    "weighs",
    "lifts",
]
_OBJECTS = [
    "frames",
    "tokens",
    "pages",
    "ports",
    "lanes",
    "rails",
    "blocks",
    "shards",
    "graphs",
    "batches",
    "links",
    "tables",
    "windows",
    "keys",
]
_LINKS = ["before", "after", "while", "because", "although", "until", "unless", "whenever", "where", "since"]
_ADVERBS = ["slowly", "once", "twice", "again", "early", "late", "safely", "evenly", "there", "often", "rarely", "soon"]

# Speculative decoding: the chance that a drafted token is taken, once per further step.
_TAKEN = 0.72


# The config.json of every simulated model: 32 layers of attention and MLP.
CONFIG = {"hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 32000}


def download_config(model_path: str) -> None:
    """Write the model's config.json where a download would put it."""
    hub = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface") / "hub"
    snapshot = hub / f"models--{model_path.replace('/', '--')}" / "snapshots" / "simulated"
    snapshot.mkdir(parents=True, exist_ok=True)
    (snapshot / "config.json").write_text(json.dumps(CONFIG))


def step_bytes(args: dict[str, Any], nodes: int, rows: int) -> int:
    """Return what one rank sends in a decode step over the network, as NCCL's rings with protocol Simple send it."""
    steps = int(args.get("speculative_num_steps") or 3) if args.get("speculative_algorithm") else 0
    tokens = rows * int(args.get("speculative_num_draft_tokens") or steps + 1) if steps else rows
    ranks, stages = int(args.get("tp_size") or 1), int(args.get("pp_size") or 1)
    hidden = tokens * CONFIG["hidden_size"] * 2
    if ranks <= ranks * stages // nodes:
        # Pipeline stages on different nodes pass on two tensors.
        return 2 * hidden
    reduces = 2 * CONFIG["num_hidden_layers"] // stages + 1
    logits = tokens * CONFIG["vocab_size"] * 2
    return (2 * reduces * hidden + logits) * (ranks - 1) // ranks


@dataclass(frozen=True)
class Pace:
    """Speed of a configuration: seconds per decode step, and tokens per step and request."""

    base: float
    per_request: float
    tokens: float

    def step(self, batch: int) -> float:
        return self.base + self.per_request * batch


def faults() -> dict[str, str]:
    """Return the faults in SGLANG_STANDIN_FAULT: ``name`` or ``name:value``, separated by commas."""
    listed = [item for item in os.environ.get("SGLANG_STANDIN_FAULT", "").split(",") if item]
    return {name: value for name, _, value in (item.partition(":") for item in listed)}


def graphs_off(args: dict[str, Any]) -> bool:
    return bool(args.get("disable_cuda_graph")) or args.get("cuda_graph_backend_decode") == "disabled"


def collapses(args: dict[str, Any]) -> bool:
    """Return whether the output repeats one token, as published for NVFP4 without CUDA graphs on 0.5.10."""
    return "collapse" in faults() or (args.get("quantization") == "modelopt_fp4" and graphs_off(args))


def breaks(prompt: str, batch: int) -> bool:
    """Return whether a step is garbage.

    That is for prompts of garbage-from:TOKENS or more, batches of garbage-at:STREAMS or more, and while the file of
    garbage-while:FILE exists.
    """
    found = faults()
    long = "garbage-from" in found and len(prompt.split()) >= int(found["garbage-from"])
    many = "garbage-at" in found and batch >= int(found["garbage-at"])
    return long or many or ("garbage-while" in found and Path(found["garbage-while"]).exists())


@lru_cache(maxsize=64)
def answer(prompt: str) -> str:
    """Return the answer to a question of playbook verify; empty for other prompts."""
    question = prompt.rstrip().rpartition("\n")[2]
    if count := re.match(r"Count from (\d+) to (\d+)\.", question):
        return " ".join(str(number) for number in range(int(count[1]), int(count[2]) + 1))
    if terms := re.match(r"What is (\d+) plus (\d+)\?", question):
        return str(int(terms[1]) + int(terms[2]))
    if place := re.match(r"What is (the boat at the \w+ pier) called\?", question):
        note = re.search(rf"^{place[1]} is called (.+)\.$", prompt, re.MULTILINE | re.IGNORECASE)
        return note[1] if note else "I do not know."
    if city := re.match(r"Call the tool for the weather in (\w+)\.", question):
        return json.dumps({"city": city[1]})
    return ""


def illegal_instruction(args: dict[str, Any], batch: int) -> bool:
    """Return whether this batch crashes a rank, as published for flashinfer_cutlass MoE on SM121 from batch 4 on."""
    moe = args.get("moe_runner_backend") == "flashinfer_cutlass"
    return moe and args.get("quantization") == "modelopt_fp4" and batch >= 4


def accept_length(args: dict[str, Any]) -> float:
    """Return the tokens of one verify step; 1.0 without speculation."""
    if not args.get("speculative_algorithm"):
        return 1.0
    steps = int(args.get("speculative_num_steps") or 3)
    return 1.0 + sum(_TAKEN**step for step in range(1, steps + 1))


def pace(args: dict[str, Any], network: str) -> Pace:
    """Return the speed of a configuration; NET/Socket halves it, as published for four GB10 nodes."""
    steps = int(args.get("speculative_num_steps") or 3) if args.get("speculative_algorithm") else 0
    factor = float(os.environ.get("SGLANG_STANDIN_SPEED", "1"))
    factor *= float(faults().get("slow", "1") or 0.1)
    factor *= 0.5 if network == "Socket" else 1.0
    factor *= 0.6 if graphs_off(args) else 1.0
    factor *= {"flashinfer": 1.02, "triton": 1.0}.get(str(args.get("attention_backend")), 0.97)
    factor *= {"cutlass": 1.03, "triton": 1.0}.get(str(args.get("moe_runner_backend")), 1.0)
    factor *= 0.95 if int(args.get("ep_size") or 1) > 1 else 1.0
    if collapses(args):
        factor *= 6
    return Pace((0.094 + 0.0085 * steps) / factor, 0.0009 * (steps + 1) / factor, accept_length(args))


def words(prompt: str) -> Iterator[str]:
    """Return the answer to the prompt, then endless text: the same for the same prompt."""
    if known := answer(prompt).split():
        # A speculative step may go beyond the end, which has no text.
        yield from [*(f"{word} " for word in known), *[""] * 16]
    source = random.Random(zlib.crc32(prompt.encode()))
    while True:
        yield f"The {source.choice(_SUBJECTS)}".strip() + " "
        yield source.choice(_VERBS) + " "
        yield source.choice(_OBJECTS) + " "
        yield source.choice(_LINKS) + " the "
        yield source.choice(_SUBJECTS) + " "
        yield source.choice(_VERBS) + " "
        yield source.choice(_OBJECTS) + " "
        yield source.choice(_ADVERBS) + f" in step {source.randrange(1000)}"
        yield ". "


def natural_length(prompt: str) -> int:
    """Return the number of tokens after which a request ends: those of its answer, or 939 to 1730 as published."""
    return len(answer(prompt).split()) or 939 + zlib.crc32(prompt.encode()[::-1]) % 792
