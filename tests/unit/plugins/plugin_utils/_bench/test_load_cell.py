# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
import asyncio
import json
import time
from typing import Any

import pytest
from aiohttp import web
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench import client
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.client import (
    Busy,
    Server,
    Target,
    measure,
    prompt,
    requests_of,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.judge import signs_of_garbage
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.stats import RequestRecord, Workload
from output_corpus import prose


class Stub:
    """A server with known answers and metrics."""

    sentences = 6
    lengths = 3
    accepted = 2.5

    def __init__(self, text: str = "", busy: int = 0, eager: int = 0, others: int = 0) -> None:
        self.text, self.busy, self.eager, self.others = text, busy, eager, others
        self.requests, self.tokens = 0, 0

    async def metrics(self, _unused: web.Request) -> web.Response:
        return web.Response(
            text=f"sglang:num_running_reqs {self.busy}\nsglang:num_requests_total {self.requests * (1 + self.others)}\n"
            f"sglang:generation_tokens_total {self.tokens * (1 + self.others)}\n"
            f"sglang:spec_verify_calls_total {self.tokens * (1 + self.others) / self.accepted}\n"
            f'sglang:cuda_graph_passes_total{{mode="decode_none"}} {self.eager * self.requests}\n'
        )

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        mine = self.requests
        body = await request.json()
        text = self.text or prose(self.sentences, mine)
        response = web.StreamResponse()
        await response.prepare(request)
        # Answers differ in length: on a busy machine streams of one length can end at the same rate, which is garbage.
        words = text.split(" ")[: body["max_tokens"] - mine % self.lengths]
        steadily = body["stream_options"].get("continuous_usage_stats")
        for number, word in enumerate(words, start=1):
            value = {"choices": [{"delta": {"content": word + " "}, "finish_reason": None}]}
            value |= {"usage": {"completion_tokens": number}} if steadily else {}
            await response.write(b"data: " + json.dumps(value).encode() + b"\n\n")
            await asyncio.sleep(0.001 + mine / 20000)
        self.tokens += len(words)
        end = {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"completion_tokens": len(words)}}
        await response.write(b"data: " + json.dumps(end).encode() + b"\n\ndata: [DONE]\n\n")
        return response


class LongStub(Stub):
    """Writes answers that are long enough to compare its drafts with their maximum."""

    sentences = 40
    accepted = 3.0


def run(stub: Stub, workload: Workload, known: Server | None = None) -> dict[str, Any]:
    async def main() -> dict[str, Any]:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", stub.chat)
        app.router.add_get("/metrics", stub.metrics)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            target = Target(f"http://127.0.0.1:{runner.addresses[0][1]}", "m")
            return await measure(target, workload, known or Server(), print)
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
def test_an_invalid_cell_has_a_reason(stub: Stub, status: str, kind: str) -> None:
    cell = run(stub, Workload(concurrency=2, max_tokens=150))
    assert cell["status"] == status
    assert kind in {g["kind"] for g in cell["runs"][0]["garbage"]}
    assert cell["peak_tok_s"]["n"] == 0


@pytest.mark.parametrize(("longest", "status"), [(3, "garbage"), (4, "ok"), (None, "ok")])
def test_a_cell_whose_server_accepts_every_draft_is_garbage(longest: int | None, status: str) -> None:
    cell = run(LongStub(), Workload(concurrency=2, max_tokens=350), Server(longest_step=longest))
    assert cell["status"] == status
    assert [g["kind"] for g in cell["runs"][0]["garbage"]] == ["accept_pinned"] * (status == "garbage")


def test_a_forced_answer_repeats_itself_so_its_accept_length_is_no_sign() -> None:
    cell = run(LongStub(), Workload(concurrency=2, max_tokens=350, forced=True), Server(longest_step=3))
    assert (cell["status"], cell["runs"][0]["garbage"]) == ("ok", [])


PINNED = {"tokens": 24_000, "requests": 8, "accept_length": 3.0, "accept_length_source": "counters", "longest_step": 3}


@pytest.mark.parametrize(
    ("server", "kinds"),
    [
        (PINNED, {"accept_pinned"}),
        (PINNED | {"accept_length": 2.995, "accept_length_source": "gauge"}, {"accept_pinned"}),
        # the best published share of a judged answer: 4.93 of 6 tokens; code that repeats itself reaches 0.98
        (PINNED | {"accept_length": 4.93, "longest_step": 6}, set()),
        (PINNED | {"accept_length": 1.98, "longest_step": 2}, set()),
        (PINNED | {"tokens": 200}, set()),
        (PINNED | {"accept_length": None}, set()),
        (PINNED | {"longest_step": None}, set()),
        (PINNED | {"longest_step": 1}, set()),
    ],
)
def test_an_accept_length_at_its_maximum_is_a_sign(server: dict[str, Any], kinds: set[str]) -> None:
    assert {g.kind for g in signs_of_garbage([], server)} == kinds


def thought(index: int, content: str, reasoning: str, finish: str) -> RequestRecord:
    times = [j / 10 for j in range(61)]
    return RequestRecord(index, 0.0, times, 61, 20, content, reasoning, finish_reason=finish)


@pytest.mark.parametrize(
    ("content", "finish", "kinds"),
    [
        (True, "length", set()),
        (True, "budget", set()),
        (True, "stop", {"identical_statistics"}),
        (False, "length", {"no_content", "identical_statistics", "all_length"}),
    ],
)
def test_requests_that_end_together_are_suspicious_unless_a_limit_ended_them(
    content: bool, finish: str, kinds: set[str]
) -> None:
    records = [thought(i, prose(6, i) * content, "", finish) for i in range(1, 5)]
    assert {g.kind for g in signs_of_garbage(records, {})} == kinds


def test_a_loop_that_the_guard_of_the_stream_let_pass_is_a_sign() -> None:
    (found,) = signs_of_garbage([thought(1, "We need to consider the network. " * 30, "", "stop")], {})
    assert found.kind == "suffix_loop"


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize(
    ("finish", "kinds"), [("length", set()), ("budget", set()), ("stop", {"no_content"}), ("abort", {"no_content"})]
)
def test_a_model_may_still_be_thinking_where_it_is_cut(concurrency: int, finish: str, kinds: set[str]) -> None:
    records = [thought(i, "", prose(6 + i, i), finish) for i in range(1, concurrency + 1)]
    for i, record in enumerate(records):
        record.output_tokens += i
    assert {g.kind for g in signs_of_garbage(records, {})} == kinds


class Probed(Stub):
    """Answers a readiness probe of one token while it is measured."""

    async def chat(self, request: web.Request) -> web.StreamResponse:
        response = await super().chat(request)
        self.requests, self.tokens = self.requests + 1, self.tokens + 1
        return response


def test_readiness_probes_do_not_count_as_other_requests() -> None:
    assert run(Probed(), Workload(concurrency=1, max_tokens=60, repetitions=2))["status"] == "ok"


def test_a_server_that_serves_other_requests_is_not_measured() -> None:
    with pytest.raises(Busy, match="already runs 4 requests"):
        run(Stub(busy=4), Workload(concurrency=1, max_tokens=8))


def test_prompts_are_repeatable_and_never_alike() -> None:
    workload = Workload(concurrency=8, context_tokens=200, requests=16)
    prompts = [r.prompt for r in requests_of(workload, 1)]
    assert prompts == [prompt(workload, 1, i) for i in range(16)]
    assert len(set(prompts) | {r.prompt for r in requests_of(workload, 2)}) == 32
    assert all(180 <= len(p.split()) <= 260 for p in prompts)


def test_a_forced_decode_asks_for_exactly_its_length() -> None:
    request = next(iter(requests_of(Workload(concurrency=1, max_tokens=64, forced=True), 1)))
    assert request.extra["ignore_eos"] is True
    assert request.extra["min_tokens"] == request.max_tokens == 64
    assert "ignore_eos" not in next(iter(requests_of(Workload(concurrency=1), 1))).extra


class Talkative(Stub):
    sentences = 400


def test_a_duration_keeps_every_stream_busy_and_cuts_what_still_runs() -> None:
    begun = time.monotonic()
    cell = run(Talkative(), Workload(concurrency=2, max_tokens=100_000, duration_s=0.6))
    assert time.monotonic() - begun >= 0.6
    (repetition,) = cell["runs"]
    assert cell["status"] == "ok"
    assert {r["finish_reason"] for r in repetition["requests"]} == {"budget"}
    # It ends with the last token. A busy machine may have sent none for a while.
    short = run(Stub(), Workload(concurrency=2, max_tokens=12, duration_s=0.5))
    assert len(short["runs"][0]["requests"]) > 2


def test_decoding_without_graphs_is_fine_where_nobody_asked_for_them() -> None:
    cell = run(Stub(eager=2), Workload(concurrency=2, max_tokens=60), Server(graphs_expected=False))
    assert cell["status"] == "ok"


@pytest.mark.parametrize(
    ("server", "limit", "record", "said"),
    [
        ({"tokens": 1082}, {}, {}, ""),
        ({"tokens": 1083}, {}, {}, "the server generated 1083 tokens, but this client received only 1000"),
        ({"tokens": 1083}, {}, {"error_class": "server"}, ""),
        ({"tokens": 1083}, {}, {"garbage": {"kind": "loop"}}, ""),
        ({"tokens": 1338}, {"duration_s": 60.0}, {}, ""),
        ({"tokens": 1339}, {"duration_s": 60.0}, {}, "the server generated 1339 tokens"),
        ({"running": 5}, {}, {}, ""),
        ({"running": 6}, {}, {}, "the server ran 6 requests at a time, this client at most 4"),
        ({}, {}, {}, ""),
    ],
)
def test_who_else_used_the_server_is_told_from_its_tokens_and_requests(
    server: dict[str, Any], limit: dict[str, Any], record: dict[str, Any], said: str
) -> None:
    records = [RequestRecord(0, 0.0, output_tokens=700), RequestRecord(1, 0.0, output_tokens=300, **record)]
    found = client._foreign(server, records, Workload(4, **limit))
    assert found.startswith(said) and bool(found) is bool(said)
