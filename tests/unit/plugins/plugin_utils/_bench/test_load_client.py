# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from aiohttp import web
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.client import (
    Request,
    StampedSocket,
    Target,
    cleaned,
    fetch,
    longest_step,
    run_level,
)
from ansible_collections.gb10.cluster.plugins.plugin_utils._bench.stats import RequestRecord, summarise

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def event(**value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def delta(text: str, finish: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": finish}])


def on_server(handler: Handler, concurrency: int = 2, count: int = 4) -> list[object]:
    async def main() -> list[object]:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", handler)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        target = Target(f"http://127.0.0.1:{port}", "m", api_key="secret-key")
        requests = [Request(f"question {i}", 32, {"ignore_eos": True}) for i in range(count)]
        try:
            return list(await run_level(target, requests, concurrency))
        finally:
            await runner.cleanup()

    return asyncio.run(main())


async def start(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


def test_times_tokens_and_body_are_as_the_server_has_them() -> None:
    bodies = []

    async def handler(request: web.Request) -> web.StreamResponse:
        bodies.append((await request.json(), request.headers["Authorization"]))
        response = await start(request)
        await asyncio.sleep(0.1)
        for i in range(5):
            await response.write(delta(f"w{i} "))
            await asyncio.sleep(0.02)
        await response.write(delta("", "stop") + event(choices=[], usage={"completion_tokens": 10, "prompt_tokens": 3}))
        await response.write(b"data: [DONE]\n\n")
        return response

    records = on_server(handler)
    assert [r.index for r in records] == [0, 1, 2, 3]
    for r in records:
        assert r.ok and r.content == "w0 w1 w2 w3 w4 " and r.output_tokens == 10 and r.prompt_tokens == 3
        assert r.finish_reason == "stop"
        # A busy machine may note some time after the server's sleep began that the request is sent.
        assert 0.05 <= r.ttft < 1.0
        assert len(r.chunk_times) == 5
    body, key = bodies[0]
    assert body["stream"] is True and body["ignore_eos"] is True and body["max_tokens"] == 32
    assert key == "Bearer secret-key"


def test_tokens_that_the_server_does_not_count_are_labelled() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = await start(request)
        thought = event(choices=[{"index": 0, "delta": {"reasoning": "hm "}, "finish_reason": None}])
        await response.write(thought + delta("yes", "stop") + b"data: [DONE]\n\n")
        return response

    (record,) = cast(list[RequestRecord], on_server(handler, 1, 1))
    assert (record.reasoning, record.content, record.ok) == ("hm ", "yes", True)
    assert (record.output_tokens, record.counted_by) == (2, "chunks")
    assert summarise([record])["tokens_counted_by"] == ["chunks"]


def test_events_cut_anywhere_are_put_together() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = await start(request)
        whole = delta("sch\u00f6n ") + delta("gut", "stop") + b"data: [DONE]\n\n"
        for i in range(0, len(whole), 7):
            await response.write(whole[i : i + 7])
            await asyncio.sleep(0)
        return response

    assert {r.content for r in on_server(handler)} == {"sch\u00f6n gut"}


def test_a_token_counts_from_its_arrival_however_late_the_client_reads() -> None:
    freed: list[float] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        response = await start(request)
        await asyncio.sleep(0.1)
        await response.write(delta("word ", "stop"))
        # server and client share the loop, so that the client can't read before this is over
        time.sleep(0.1)
        freed.append(time.perf_counter())
        # the kernel's timestamp is that of the last packet of a read, so the end of the answer needs its own packet
        await asyncio.sleep(0.05)
        return response

    records = on_server(handler, concurrency=1)
    for record, moment in zip(records, freed, strict=True):
        assert record.ttft >= 0.05  # as above
        assert moment - 0.2 < record.chunk_times[0] < moment - 0.05


def test_reading_as_under_tls_keeps_the_time_of_arrival() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, StampedSocket() as reading:
        reading.connect(listening.getsockname())
        with listening.accept()[0] as writing:
            time.sleep(0.05)
            writing.sendall(b"words")
            time.sleep(0.1)
            buffer = bytearray(8)
            assert reading.recv_into(buffer) == 5 and buffer[:5] == b"words"
            late = time.perf_counter()
        assert reading.recv_into(buffer) == 0
    assert late - 0.2 < reading.reads[0] < late - 0.05 and len(reading.reads) == 1


def test_a_collapsed_stream_is_left_early() -> None:
    left: list[bool] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        response = await start(request)
        try:
            for _unused in range(100_000):
                await response.write(delta("!"))
                # The client runs in the same process.
                await asyncio.sleep(0)
        except ConnectionError:
            left.append(True)
        return response

    records = on_server(handler, count=2)
    assert all(r.garbage and r.garbage["kind"] == "single_token" and not r.ok for r in records)
    assert left


@pytest.mark.parametrize(("status", "kind"), [(500, "server"), (400, "server")])
def test_an_error_answer_is_a_failure_of_the_server(status: int, kind: str) -> None:
    async def handler(_unused: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text="rejected argument")

    assert {(r.error_class, "rejected argument" in r.error) for r in on_server(handler)} == {(kind, True)}


def test_a_broken_connection_is_an_infrastructure_failure() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = await start(request)
        await response.write(delta("one "))
        request.transport.abort()
        return response

    assert {r.error_class for r in on_server(handler)} == {"infrastructure"}


def test_a_refused_connection_is_an_infrastructure_failure() -> None:
    target = Target("http://127.0.0.1:9", "m")
    records = asyncio.run(run_level(target, [Request("q", 1)], 1))
    assert records[0].error_class == "infrastructure"


def test_an_error_within_the_stream_is_a_failure_of_the_server() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = await start(request)
        await response.write(event(error={"message": "out of memory"}))
        return response

    assert all(r.error_class == "server" and "out of memory" in r.error for r in on_server(handler))


def test_fetch_raises_for_a_refusal() -> None:
    with pytest.raises(OSError, match="Cannot connect"):
        asyncio.run(fetch(Target("http://127.0.0.1:9", "m"), "/metrics"))


def test_no_secret_of_the_server_is_kept_at_any_depth() -> None:
    info = {
        "api_key": "hunter1",
        "launch_command": "sglang serve --api-key hunter2 --admin-api-key=hunter3 --speculative-num-draft-tokens 4",
        "env": {"HF_TOKEN": "hunter4", "NCCL_DEBUG": "INFO"},
        "hosts": [{"password": "hunter5", "name": "spark1"}],
        "max_total_tokens": 4096,
        "load_format": None,
    }
    assert cleaned(info) == {
        "launch_command": "sglang serve --api-key … --admin-api-key=… --speculative-num-draft-tokens 4",
        "env": {"NCCL_DEBUG": "INFO"},
        "hosts": [{"name": "spark1"}],
        "max_total_tokens": 4096,
    }


@pytest.mark.parametrize(
    ("info", "longest"),
    [
        ({}, None),
        ({"speculative_num_steps": 3, "speculative_num_draft_tokens": 4, "speculative_eagle_topk": 1}, 4),
        # a tree verifies more drafts than one step can accept
        ({"speculative_num_steps": 3, "speculative_num_draft_tokens": 16, "speculative_eagle_topk": 4}, 4),
        # DFLASH drafts a block in one step
        ({"speculative_num_steps": 1, "speculative_num_draft_tokens": 8, "speculative_eagle_topk": 1}, 8),
    ],
)
def test_a_step_accepts_at_most_the_depth_of_the_drafts_and_one(info: dict[str, Any], longest: int | None) -> None:
    assert longest_step(info) == longest
