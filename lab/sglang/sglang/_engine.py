# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the decode loop of the head: one collective per step, which yields tokens for every running request."""

import itertools
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import _model
from ._histogram import BETWEEN_TOKENS, FIRST_TOKEN, Histogram


@dataclass
class Request:
    """One request; ``out`` receives lists of tokens and, last, the finish reason as a string."""

    prompt: str
    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    out: queue.Queue[list[str] | str] = field(default_factory=queue.Queue)
    produced: int = 0
    credit: float = 0.0
    cancelled: bool = False
    # When the request came, later when it got its newest token.
    moment: float = field(default_factory=time.monotonic)


@dataclass
class Totals:
    """Values that /metrics and /server_info report."""

    requests: int = 0
    prompt_tokens: int = 0
    generated: int = 0
    verify_calls: int = 0
    health_checks: int = 0
    graph_passes: int = 0
    eager_passes: int = 0
    throughput: float = 0.0
    first_token: Histogram = field(default_factory=lambda: Histogram(FIRST_TOKEN))
    between_tokens: Histogram = field(default_factory=lambda: Histogram(BETWEEN_TOKENS))


class Engine:
    """Run requests in batches; ``collective`` makes one step on all ranks and blocks while a rank is stuck."""

    def __init__(
        self, args: dict[str, Any], network: str, collective: Callable[[int], None], log: Callable[[str], None]
    ) -> None:
        self.args, self.log = args, log
        self.pace = _model.pace(args, network)
        self.totals = Totals()
        self.waiting: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self.running: list[Request] = []
        self.limit = int(args.get("max_running_requests") or 32)
        self.last_progress = 0.0
        self._collective = collective
        self._collapsed = _model.collapses(args)
        self._work = threading.Event()
        self._health = threading.Event()
        self._compiled = False

    def submit(self, request: Request) -> None:
        self.totals.requests += 1
        self.totals.prompt_tokens += len(request.prompt.split())
        self.waiting.put(request)
        self._work.set()

    def healthy(self, timeout: float) -> bool:
        """Request one token as SGLang's /health does. It checks once per second, so a healthy server takes 1.00 s."""
        asked = time.monotonic()
        self._health.set()
        self._work.set()
        while time.monotonic() - asked < timeout:
            time.sleep(1)
            if self.last_progress > asked:
                return True
        return False

    def run(self) -> None:
        """Decode forever."""
        for number in itertools.count(1):
            self._admit()
            if not self.running and not self._health.is_set():
                self.totals.throughput = 0.0
                self._work.wait()
                self._work.clear()
                continue
            self._step(number)

    def _admit(self) -> None:
        while len(self.running) < self.limit and not self.waiting.empty():
            request = self.waiting.get()
            self.running.append(request)
            self.log(
                f"Prefill batch, #new-seq: 1, #new-token: {len(request.prompt.split())}, #cached-token: 0,"
                f" token usage: 0.00, #running-req: {len(self.running) - 1}, #queue-req: {self.waiting.qsize()},"
            )

    def _step(self, number: int) -> None:
        self._health.clear()
        started = time.monotonic()
        batch = len(self.running)
        if _model.illegal_instruction(self.args, batch):
            raise RuntimeError("CUDA error: an illegal instruction was encountered")
        if batch and not self._compiled:
            self._compile()
        # A health check is a generation of one token.
        self._collective(max(batch, 1))
        wanted = self.pace.step(max(batch, 1))
        if batch:
            time.sleep(max(0.0, wanted - (time.monotonic() - started)))
        self.last_progress = time.monotonic()
        made = sum(self._advance(request) for request in list(self.running))
        self.totals.health_checks += not batch
        if batch:
            self._account(number, batch, made, time.monotonic() - started)

    def _compile(self) -> None:
        """Take as long for the first batch as a real first step with a cold cache; a second start finds the kernels."""
        self._compiled = True
        seconds = float(os.environ.get("SGLANG_STANDIN_FIRST_STEP_SECONDS", "0"))
        kernels = Path(os.environ.get("TRITON_CACHE_DIR", "/tmp/triton"), "standin-kernels")
        if not seconds or kernels.exists():
            return
        self.log(f"Compiling kernels for {seconds:.0f} s")
        limit = float(self.args.get("watchdog_timeout") or 300)
        time.sleep(min(seconds, limit))
        if seconds > limit:
            raise RuntimeError(f"Watchdog timeout (watchdog_timeout={limit:.0f})")
        kernels.parent.mkdir(parents=True, exist_ok=True)
        kernels.write_text("compiled\n", encoding="utf-8")

    def _advance(self, request: Request) -> int:
        request.credit += self.pace.tokens
        amount = min(int(request.credit), request.max_tokens - request.produced)
        request.credit -= int(request.credit)
        text: Any = request.__dict__.setdefault("_text", _model.words(request.prompt))
        tokens = list(itertools.islice(text, amount))
        broken = self._collapsed or _model.breaks(request.prompt, len(self.running))
        if broken:
            tokens = ["!"] * amount
        self._time(request, len(tokens))
        request.produced += len(tokens)
        request.out.put(tokens)
        ends = request.produced >= max(_model.natural_length(request.prompt), request.min_tokens)
        if request.produced >= request.max_tokens or request.cancelled:
            self._finish(request, "length")
        elif ends and not request.ignore_eos and not broken:
            self._finish(request, "stop")
        return len(tokens)

    def _time(self, request: Request, made: int) -> None:
        """Observe the first token of a request, or the time per token of a later step, as SGLang does."""
        now = time.monotonic()
        if made and request.produced:
            self.totals.between_tokens.observe((now - request.moment) / made, made)
        elif made:
            self.totals.first_token.observe(now - request.moment)
        request.moment = now if made else request.moment

    def _finish(self, request: Request, reason: str) -> None:
        self.running.remove(request)
        request.out.put(reason)

    def _account(self, number: int, batch: int, made: int, seconds: float) -> None:
        totals = self.totals
        totals.generated += made
        totals.verify_calls += batch if self.pace.tokens > 1 else 0
        eager = _model.graphs_off(self.args) or batch > self._graph_limit()
        totals.eager_passes += eager
        totals.graph_passes += not eager
        totals.throughput = made / seconds
        if number % 40 == 0:
            spec = ""
            if self.pace.tokens > 1:
                rate = (self.pace.tokens - 1) / max(1, int(self.args.get("speculative_num_steps") or 3))
                spec = f" accept len: {self.pace.tokens:.2f}, accept rate: {rate:.2f},"
            self.log(
                f"Decode batch, #running-req: {batch}, #token: {sum(r.produced for r in self.running)}, token usage:"
                f" 0.01,{spec} cuda graph: {not eager}, gen throughput (token/s): {totals.throughput:.2f},"
                f" #queue-req: {self.waiting.qsize()}"
            )

    def _graph_limit(self) -> int:
        limit = self.args.get("cuda_graph_max_bs_decode") or self.args.get("cuda_graph_max_bs")
        return int(limit) if limit else 160
