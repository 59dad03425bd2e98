#!/usr/bin/env python3
# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask real SGLang servers, some with an injected fault, the questions of role nccl_verify and of the gate's sidecar.

    tests/gpu/canary.py [--logs DIR] [--cases CASE...] MODEL_DIR...

Needs one NVIDIA GPU and an environment in which `python3 -m sglang.launch_server --help` works. A model directory holds
a small chat model: configuration, weights, tokenizer and chat template. All cases are asked of the first model, only
`healthy` of the others. A fault misbehaves only while a setting is on:

- `at-once`: decoding with CUDA graphs gives token 0 only.
- `from-a-length-graphs`: the same, but only from 3,000 tokens on.
- `from-a-length-fp8`: the values that an fp8 cache keeps are permuted from position 3,000 on.
- `concurrency`: two or more requests in one decoding pass get each other's logits.

The first change that the screen of a fault names is made, and the server is started again, fault included.
Prints one JSON object; the exit status is 0 only if healthy servers and changed ones had right answers to the full
questions, and each faulty one had a wrong answer of the kind that its fault makes.

Seen on one H200, 2026-11-29, Qwen2.5-Coder-0.5B-Instruct (Q4_K_M as bfloat16), context of 8,192 tokens. Healthy:
`quick` 8 of 8 right, 3,084 tokens read, 123 written, 0.4 s; `full` 10 of 10, 14,620 and 132, 0.4 s. `full` found each
fault within 0.8 s, its setting was named first, and after that change all were right: `at-once` by the first question
(the gate too, by its second), `concurrency` by four sums of four, `from-a-length-graphs` at 4,100 tokens; `quick` asks
2,000 here and saw nothing. With an fp8 cache this model counts to 10 only, without a fault: found, gone with `auto`.
SmolLM2-135M-Instruct (Q4_1), healthy: no alarm by `quick`, its sums are wrong alone too; `full` fails at 4,100 tokens.
"""

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sglang_two_ranks as two

sys.path.insert(0, str(two.ROOT / "collections"))

from ansible_collections.gb10.cluster.plugins.module_utils._pod import chat
from ansible_collections.gb10.cluster.plugins.module_utils._pod import watch as gate
from ansible_collections.gb10.cluster.plugins.plugin_utils._controller.screen import render
from ansible_collections.gb10.cluster.plugins.plugin_utils._node.combinations import find_known
from ansible_collections.gb10.cluster.plugins.plugin_utils._proof.answers import (
    Asking,
    Question,
    Wrong,
    answers_screen,
    arguments,
    facts_of,
)

RELEASE = "0.5.16"
LIMIT_S = 60
FAULTY = Path(__file__).with_name("faulty_sglang.py")
FP8 = {"kv_cache_dtype": "fp8_e4m3"}
# Case: settings beside the common ones, its fault, what the wrong questions are about, and the setting to be named
CASES: dict[str, tuple[dict[str, Any], str, set[str], str]] = {
    "healthy": ({}, "", set(), ""),
    "healthy-fp8": (FP8, "", set(), ""),
    "at-once": ({}, "graphs", {"one"}, "disable_cuda_graph"),
    "from-a-length-graphs": ({}, "long", {"context"}, "disable_cuda_graph"),
    "from-a-length-fp8": (FP8, "values", {"context"}, "kv_cache_dtype"),
    "concurrency": ({}, "batch", {"streams"}, "max_running_requests"),
}
COMMON = {
    "context_length": 8192,
    "attention_backend": "triton",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "skip_server_warmup": True,
    "cuda_graph_max_bs_decode": 8,
    "cuda_graph_backend_prefill": "disabled",
    "mem_fraction_static": 0.2,
    "max_total_tokens": 40000,
    "max_running_requests": 8,
}
CHANGE = re.compile(r"(\w+): ([\w.]+)")


class Api:
    """Keeps what the gate would publish."""

    def __init__(self) -> None:
        self.conditions: list[tuple[bool, str]] = []
        self.events: list[str] = []

    def set_condition(self, condition: Any, since: str, kind: str) -> None:
        """Keep a condition."""
        del since, kind
        self.conditions.append((condition.proven, condition.reason))

    def add_event(self, condition: Any, reason: str) -> None:
        """Keep an event's message."""
        del reason
        self.events.append(condition.message)


def free_port() -> int:
    """Return a port that nothing uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def words(settings: Mapping[str, Any]) -> list[str]:
    """Return the settings as a command line."""
    argv: list[str] = []
    for key, value in settings.items():
        argv += [f"--{key.replace('_', '-')}", *([] if value is True else [str(value)])]
    return argv


@dataclass
class Server:
    """One server of a case, and what was asked of it."""

    case: str
    model: Path
    settings: dict[str, Any]
    logs: Path
    name: str = ""
    seen: dict[str, Any] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None
    begun: float = 0.0

    def start(self) -> None:
        """Start it."""
        self.argv = words({"model_path": self.model, "host": "127.0.0.1", "port": self.port} | COMMON | self.settings)
        own = os.environ | {"GB10_INJECTED_FAULT": CASES[self.case][1], "PYTHONUNBUFFERED": "1"}
        program = [str(FAULTY)] if CASES[self.case][1] else ["-m", "sglang.launch_server"]
        argv = [sys.executable, *program, *self.argv]
        self.begun = time.monotonic()
        self.process = two.start(argv, own, self.logs / f"{self.name}.log")

    def wait(self) -> None:
        """Wait until it is healthy; raise RuntimeError when it ends or takes too long."""
        while time.monotonic() - self.begun < two.READY_S:
            if self.process and self.process.poll() is not None:
                break
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=30).close()
            except OSError:
                time.sleep(1)
                continue
            self.seen["ready_s"] = round(time.monotonic() - self.begun, 1)
            return
        raise RuntimeError(f"{self.name} is not healthy: read its log")

    def ask(self, full: bool) -> list[Wrong]:
        """Ask the questions of role nccl_verify, and keep what came and what it cost."""
        cost = {"requests": 0, "prompt_tokens": 0, "answer_tokens": 0}

        def round_of(questions: Sequence[Question]) -> Sequence[Mapping[str, Any]]:
            came = chat.ask_round(self.port, LIMIT_S, [each.sent() for each in questions])
            cost["requests"] += len(came)
            cost["prompt_tokens"] += sum(int(each["prompt_tokens"]) for each in came)
            cost["answer_tokens"] += sum(int(each["tokens"]) for each in came)
            return came

        begun, args = time.monotonic(), arguments(self.argv)
        asking = Asking(args, full, round_of)
        wrong = asking.run()
        self.seen["full" if full else "quick"] = cost | {
            "seconds": round(time.monotonic() - begun, 2),
            "right": len(asking.right),
            "longest": asking.longest,
            "wrong": [
                {"about": e.question.about, "asked": e.question.text, "came": e.answer["text"][:120], "why": e.why}
                for e in wrong
            ],
        }
        if wrong:
            plan = {"ranks": [{"argv": self.argv}], "instance": self.name, "sglang_version": RELEASE}
            self.seen["screen"] = render(answers_screen(plan, asking, wrong, LIMIT_S)).splitlines()
            self.seen["changes"] = [each.remedy for each in find_known("answers", facts_of(plan, wrong), self.name)]
        return wrong

    def watch(self) -> None:
        """Let the gate's sidecar ask three times."""
        api = Api()
        asked = gate.Answers(two.ROOT, self.port, api, {}, enforce=True)  # type: ignore[arg-type]
        begun = time.monotonic()
        for _ in range(3):
            asked.step(float("inf"))
        lines = [line for line in asked.text.splitlines() if "questions_total{" in line and not line.endswith(" 0")]
        self.seen["gate"] = {"seconds": round(time.monotonic() - begun, 2), "conditions": api.conditions}
        self.seen["gate"] |= {"events": api.events, "closes": asked.closes, "results": lines}


def exercise(servers: Sequence[Server]) -> None:
    """Start the servers at once, ask each of them, and stop them."""
    try:
        for server in servers:
            server.start()
        for server in servers:
            try:
                server.wait()
                for full in (False, True):
                    server.ask(full)
                server.watch()
            except (RuntimeError, OSError) as error:
                server.seen["error"] = str(error)
    finally:
        two.stop([server.process for server in servers if server.process])


def passed(server: Server) -> bool:
    """Tell whether the full questions had the expected result."""
    expected = CASES[server.case][2] if "after" not in server.name else set()
    return "full" in server.seen and {each["about"] for each in server.seen["full"]["wrong"]} == expected


def main() -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--logs", type=Path, default=Path("canary-logs"), help="where the logs are kept")
    options = parser.parse_args()
    options.logs.mkdir(parents=True, exist_ok=True)
    first, *others = options.models
    pairs = [(case, first) for case in options.cases] + [("healthy", model) for model in others]
    servers = [Server(c, m, dict(CASES[c][0]), options.logs, f"{c}-{m.name}") for c, m in pairs]
    exercise(servers)
    changed = []
    for server in servers:
        change = CHANGE.match((server.seen.get("changes") or [""])[0])
        if CASES[server.case][1] and change:
            key, value = change.groups()
            server.seen["named"] = key == CASES[server.case][3]
            settings = server.settings | {key: True if value == "true" else value}
            changed.append(Server(server.case, server.model, settings, options.logs, f"{server.name}-after-{key}"))
    exercise(changed)
    servers += changed
    faults = sum(bool(CASES[server.case][1]) for server in servers if server not in changed)
    result = {
        "passed": all(map(passed, servers)) and len(changed) == faults,
        "seen": {server.name: {"passed": passed(server)} | server.seen for server in servers},
    }
    text = json.dumps(result, indent=2, ensure_ascii=False)
    (options.logs / "result.json").write_text(text, encoding="utf-8")
    print(text)
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
