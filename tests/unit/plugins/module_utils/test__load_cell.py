# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from ansible_collections.gb10.cluster.plugins.module_utils._load_cell import (
    Workload,
    judge,
    measure,
    prompt,
    requests_of,
)
from ansible_collections.gb10.cluster.plugins.module_utils._load_client import Busy, Target
from ansible_collections.gb10.cluster.plugins.module_utils._load_stats import RequestRecord
from output_corpus import prose


class Stub:
    """A server of known behaviour: what it answers, and what its metrics say."""

    def __init__(self, text: str = "", busy: int = 0, eager: int = 0, others: int = 0) -> None:
        self.text, self.busy, self.eager, self.others = text, busy, eager, others
        self.requests, self.tokens = 0, 0

    async def metrics(self, _unused: web.Request) -> web.Response:
        return web.Response(
            text=f"sglang:num_running_reqs {self.busy}\nsglang:num_requests_total {self.requests * (1 + self.others)}\n"
            f"sglang:generation_tokens_total {self.tokens}\nsglang:spec_verify_calls_total {self.tokens / 2.5}\n"
            f'sglang:cuda_graph_passes_total{{mode="decode_none"}} {self.eager * self.requests}\n'
        )

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        mine = self.requests
        body = await request.json()
        text = self.text or prose(6, mine)
        response = web.StreamResponse()
        await response.prepare(request)
        words = text.split(" ")[: body["max_tokens"]]
        for word in words:
            choice = {"delta": {"content": word + " "}, "finish_reason": None}
            await response.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
            await asyncio.sleep(0.001 + mine / 20000)
        self.tokens += len(words)
        end = {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"completion_tokens": len(words)}}
        await response.write(b"data: " + json.dumps(end).encode() + b"\n\ndata: [DONE]\n\n")
        return response


def run(stub: Stub, workload: Workload) -> dict[str, Any]:
    async def main() -> dict[str, Any]:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", stub.chat)
        app.router.add_get("/metrics", stub.metrics)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            return await measure(Target(f"http://127.0.0.1:{runner.addresses[0][1]}", "m"), workload)
        finally:
            await runner.cleanup()

    return asyncio.run(main())


def test_a_healthy_cell_has_both_rates_their_spread_and_the_servers_view() -> None:
    cell = run(Stub(), Workload(concurrency=3, max_tokens=60, repetitions=3))
    assert cell["status"] == "ok"
    assert cell["peak_tok_s"]["n"] == cell["wall_tok_s"]["n"] == 3
    assert cell["peak_tok_s"]["mean"] > 0
    assert cell["accept_length"]["mean"] == pytest.approx(2.5)
    assert [len(r["requests"]) for r in cell["runs"]] == [3, 3, 3]
    assert all("content" not in request for request in cell["runs"][0]["requests"])


@pytest.mark.parametrize(
    ("stub", "status", "kind"),
    [
        (Stub(text="! " * 200), "garbage", "single_token"),
        (Stub(eager=2), "eager", "eager_regime"),
        (Stub(others=1), "shared", "shared_server"),
    ],
)
def test_a_cell_that_means_nothing_says_why(stub: Stub, status: str, kind: str) -> None:
    cell = run(stub, Workload(concurrency=2, max_tokens=150))
    assert cell["status"] == status
    assert kind in {g["kind"] for g in cell["runs"][0]["garbage"]}
    assert cell["peak_tok_s"]["n"] == 0


@pytest.mark.parametrize(
    ("limit", "content", "kinds"),
    [
        (61, True, set()),
        (100, True, {"identical_statistics", "all_length"}),
        (61, False, {"no_content", "identical_statistics", "all_length"}),
    ],
)
def test_requests_in_step_are_a_sign_unless_a_limit_made_them_so(limit: int, content: bool, kinds: set[str]) -> None:
    records = [
        RequestRecord(i, 0.0, [j / 10 for j in range(61)], 61, 20, prose(6, i) * content, finish_reason="length")
        for i in range(1, 5)
    ]
    assert {g.kind for g in judge(records, {}, limit)} == kinds


def test_a_server_that_serves_somebody_else_is_not_measured() -> None:
    with pytest.raises(Busy, match="already runs 4 requests"):
        run(Stub(busy=4), Workload(concurrency=1, max_tokens=8))


def test_prompts_are_repeatable_and_never_alike() -> None:
    workload = Workload(concurrency=8, context_tokens=200, requests=16)
    prompts = [r.prompt for r in requests_of(workload, 1)]
    assert prompts == [prompt(workload, 1, i) for i in range(16)]
    assert len(set(prompts) | {r.prompt for r in requests_of(workload, 2)}) == 32
    assert all(180 <= len(p.split()) <= 260 for p in prompts)


def test_a_forced_decode_asks_for_exactly_its_length() -> None:
    request = requests_of(Workload(concurrency=1, max_tokens=64, forced=True), 1)[0]
    assert request.extra["ignore_eos"] is True
    assert request.extra["min_tokens"] == request.max_tokens == 64
    assert "ignore_eos" not in requests_of(Workload(concurrency=1), 1)[0].extra
