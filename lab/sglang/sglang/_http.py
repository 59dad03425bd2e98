# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve the HTTP endpoints of head and workers that clients, probes and the collection use."""

import asyncio
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvicorn

from . import _model
from ._engine import Engine, Request

HEALTH_TIMEOUT = float(os.environ.get("SGLANG_HEALTH_CHECK_TIMEOUT", "20"))
# A request waits for its tokens in a thread.
WAITING = ThreadPoolExecutor(512)
STAMP = "%Y-%m-%d %H:%M:%S"

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3])


def _logging() -> dict[str, Any]:
    """Return uvicorn's settings with the time in front of a request, as SGLang changes them."""
    settings: dict[str, Any] = uvicorn.config.LOGGING_CONFIG
    for name, what in (("default", "%(message)s"), ("access", '%(client_addr)s - "%(request_line)s" %(status_code)s')):
        settings["formatters"][name] |= {"fmt": f"[%(asctime)s] %(levelprefix)s {what}", "datefmt": STAMP}
    return settings


class Server:
    """The ASGI application of a rank, which uvicorn serves; ``engine`` is None on a worker."""

    def __init__(self, args: dict[str, Any], version: str, engine: Engine | None) -> None:
        self.args, self.version, self.engine = args, version, engine
        self.ready = engine is None

    @property
    def model(self) -> str:
        return str(self.args.get("served_model_name") or self.args["model_path"])

    def start(self) -> None:
        """Listen, and answer in a thread; raise OSError if the port is taken."""
        listening = socket.create_server((str(self.args["host"]), int(self.args["port"])), backlog=128)
        server = uvicorn.Server(uvicorn.Config(self, lifespan="off", log_config=_logging()))
        threading.Thread(target=server.run, args=([listening],), daemon=True).start()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Handle a request; answer unknown paths with 404, as FastAPI does."""
        await Exchange(self, scope, receive, send).run()


class Exchange:
    """A request and its answer."""

    def __init__(self, server: Server, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        self.server, self.engine = server, server.engine
        self.path, self.method = str(scope["path"]), str(scope["method"])
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self.receive, self.send = receive, send
        self.thought = self.tool = ""

    async def run(self) -> None:
        key = self.server.args.get("api_key")
        public = self.path in {"/health", "/health_generate", "/ready", "/metrics"}
        if key and not public and self.headers.get("authorization") != f"Bearer {key}":
            await self._answer(401, {"error": "Unauthorized"})
        elif self.method == "POST":
            await self._post()
        else:
            await self._get()

    async def _answer(self, status: int, body: Any = None, kind: str = "application/json") -> None:
        data = body.encode() if isinstance(body, str) else b"" if body is None else json.dumps(body).encode()
        await self._begin(status, kind, [(b"content-length", str(len(data)).encode())])
        await self.send({"type": "http.response.body", "body": data})

    async def _begin(self, status: int, kind: str, more: list[tuple[bytes, bytes]]) -> None:
        headers = [(b"content-type", kind.encode()), *more]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def _get(self) -> None:
        server, path = self.server, self.path
        if path == "/metrics":
            await self._answer(200, metrics(server), "text/plain; version=0.0.4")
        elif path in {"/health", "/health_generate", "/ping"}:
            await self._answer(await self._health())
        elif self.engine is None:
            await self._answer(404, {"detail": "Not Found"})
        elif path == "/ready" and _number(server.version) >= (0, 5, 20):
            await self._answer(200 if server.ready else 503)
        elif path == "/v1/models":
            card = {"id": server.model, "object": "model", "created": int(time.time()), "owned_by": "sglang"}
            await self._answer(200, {"object": "list", "data": [card]})
        elif path in {"/server_info", "/get_server_info"}:
            await self._answer(200, server_info(server, self.engine))
        elif path in {"/model_info", "/get_model_info"}:
            await self._answer(200, {"model_path": server.args["model_path"], "is_generation": True})
        else:
            await self._answer(404, {"detail": "Not Found"})

    async def _health(self) -> int:
        if self.engine is None:
            return 200
        if not self.server.ready:
            return 503
        healthy = asyncio.get_running_loop().run_in_executor(WAITING, self.engine.healthy, HEALTH_TIMEOUT)
        return 200 if await healthy else 503

    async def _body(self) -> bytes:
        text, more = b"", True
        while more:
            part = await self.receive()
            text += part.get("body", b"")
            more = bool(part.get("more_body"))
        return text

    async def _post(self) -> None:
        text = await self._body()
        if self.path == "/flush_cache" and self.engine is not None:
            await self._answer(200, "Cache flushed.", "text/plain")
            return
        chat = self.path == "/v1/chat/completions"
        if self.engine is None or self.path not in {"/v1/chat/completions", "/v1/completions"}:
            await self._answer(404, {"detail": "Not Found"})
            return
        try:
            body = json.loads(text)
            prompt = " ".join(str(m["content"]) for m in body["messages"]) if chat else str(body["prompt"])
            limit = int(body.get("max_tokens") or body.get("max_completion_tokens") or (2048 if chat else 16))
        except (ValueError, KeyError, TypeError) as error:
            message = {"object": "error", "message": f"invalid request: {error!r}", "code": 400}
            await self._answer(400, message)
            return
        request = Request(prompt, limit, int(body.get("min_tokens") or 0), bool(body.get("ignore_eos")))
        known, args = _model.answer(prompt), self.server.args
        if known and args.get("reasoning_parser") and "Think first" in prompt:
            self.thought = "The question is easy."
        if known and args.get("tool_call_parser") and body.get("tools"):
            self.tool = str(body["tools"][0]["function"]["name"])
        self.engine.submit(request)
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        if body.get("stream"):
            await self._stream(request, chat, usage)
        else:
            await self._whole(request, chat)

    async def _pieces(self, request: Request) -> AsyncIterator[tuple[list[str], str | None]]:
        while True:
            item = await asyncio.get_running_loop().run_in_executor(WAITING, request.out.get)
            if isinstance(item, str):
                yield [], item
                return
            yield item, None

    def _usage(self, request: Request) -> dict[str, int]:
        prompt = len(request.prompt.split())
        total = prompt + request.produced
        return {"prompt_tokens": prompt, "completion_tokens": request.produced, "total_tokens": total}

    def _head(self, chat: bool, streamed: bool) -> dict[str, Any]:
        kind = "chat.completion" if chat else "text_completion"
        return {
            "id": uuid.uuid4().hex,
            "object": f"{kind}.chunk" if chat and streamed else kind,
            "created": int(time.time()),
            "model": self.server.model,
        }

    async def _whole(self, request: Request, chat: bool) -> None:
        text, reason = "", ""
        async for tokens, end in self._pieces(request):
            text += "".join(tokens)
            reason = end or reason
        content = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        choice = {"index": 0, **content, "finish_reason": reason}
        await self._answer(200, {**self._head(chat, False), "choices": [choice], "usage": self._usage(request)})

    async def _stream(self, request: Request, chat: bool, usage: bool) -> None:
        gone = asyncio.ensure_future(self._gone(request))
        try:
            await self._begin(200, "text/event-stream; charset=utf-8", [])
            async for event in self._events(request, chat, usage):
                if gone.done():
                    return
                await self.send({"type": "http.response.body", "body": event, "more_body": True})
            await self.send({"type": "http.response.body"})
        finally:
            gone.cancel()

    async def _gone(self, request: Request) -> None:
        """Cancel the request when its client goes away."""
        while (await self.receive())["type"] != "http.disconnect":
            pass
        request.cancelled = True

    async def _events(self, request: Request, chat: bool, usage: bool) -> AsyncIterator[bytes]:
        head = self._head(chat, True)
        if chat:
            first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            yield _event({**head, "choices": [first]})
        called = False
        if self.thought:
            thought = {"index": 0, "delta": {"reasoning_content": self.thought}, "finish_reason": None}
            yield _event({**head, "choices": [thought]})
        async for tokens, end in self._pieces(request):
            if not tokens and end is None:
                continue
            text = "".join(tokens)
            content: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
            if self.tool:
                function = {"name": None if called else self.tool, "arguments": text}
                content, called = {"delta": {"tool_calls": [{"index": 0, "function": function}] if text else []}}, True
            yield _event({**head, "choices": [{"index": 0, **content, "finish_reason": end}]})
        if usage:
            yield _event({**head, "choices": [], "usage": self._usage(request)})
        yield b"data: [DONE]\n\n"


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def server_info(server: Server, engine: Engine) -> dict[str, Any]:
    """Return the resolved arguments, the version and one internal state, without SGLang's secrets."""
    state = {
        "last_gen_throughput": engine.totals.throughput,
        "avg_spec_accept_length": engine.pace.tokens,
        "effective_max_running_requests_per_dp": engine.limit,
        "memory_usage": {"weight": 0.0, "kvcache": 0.0, "token_capacity": 0, "graph": 0.0},
    }
    return {**server.args, "version": server.version, "status": "ready", "internal_states": [state], "standin": True}


def metrics(server: Server) -> str:
    """Return the Prometheus text of this rank; a worker has only the metrics of its process."""
    engine = server.engine
    if engine is None:
        return "# STAND-IN worker\n"
    totals = engine.totals
    values = {
        "sglang:num_running_reqs": len(engine.running),
        "sglang:num_queue_reqs": engine.waiting.qsize(),
        "sglang:gen_throughput": round(totals.throughput, 3),
        "sglang:token_usage": 0.0,
        "sglang:cache_hit_rate": 0.0,
        "sglang:spec_accept_length": round(engine.pace.tokens, 3) if engine.pace.tokens > 1 else 0.0,
        "sglang:spec_accept_rate": 0.0,
        "sglang:is_cuda_graph": float(totals.eager_passes == 0),
        "sglang:num_requests_total": totals.requests,
        "sglang:prompt_tokens_total": totals.prompt_tokens,
        "sglang:generation_tokens_total": totals.generated,
        "sglang:spec_verify_calls_total": totals.verify_calls,
    }
    labels = f'engine_type="unified",model_name="{server.model}",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
    lines = [f"{name}{{{labels}}} {float(value)}" for name, value in values.items()]
    lines += [
        f'sglang:cuda_graph_passes_total{{{labels},mode="decode_cuda_graph"}} {float(totals.graph_passes)}',
        f'sglang:cuda_graph_passes_total{{{labels},mode="prefill_none"}} {float(totals.health_checks)}',
        f'sglang:realtime_tokens_total{{{labels},mode="prefill_compute"}} {float(totals.health_checks)}',
        f'sglang:realtime_tokens_total{{{labels},mode="decode"}} {float(totals.generated)}',
        f'sglang:cuda_graph_passes_total{{{labels},mode="decode_none"}} {float(totals.eager_passes)}',
    ]
    # SGLang observes these in its tokenizer manager, which has no rank.
    labels = f'engine_type="unified",model_name="{server.model}"'
    lines += totals.first_token.render("sglang:time_to_first_token_seconds", labels)
    lines += totals.between_tokens.render("sglang:inter_token_latency_seconds", labels)
    return "\n".join(lines) + "\n"
