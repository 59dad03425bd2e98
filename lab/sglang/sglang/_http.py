# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve the HTTP endpoints of head and workers that clients, probes and the collection use."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ._engine import Engine, Request

HEALTH_TIMEOUT = float(os.environ.get("SGLANG_HEALTH_CHECK_TIMEOUT", "20"))


class Server(ThreadingHTTPServer):
    """An HTTP server with the data of its handlers; ``engine`` is None on a worker."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], args: dict[str, Any], version: str, engine: Engine | None) -> None:
        self.args, self.version, self.engine = args, version, engine
        self.ready = engine is None
        super().__init__(address, Handler)

    @property
    def model(self) -> str:
        return str(self.args.get("served_model_name") or self.args["model_path"])


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3])


class Handler(BaseHTTPRequestHandler):
    """Handle a request; answer unknown paths with 404, as FastAPI does."""

    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        stamp = time.strftime("[%Y-%m-%d %H:%M:%S]")
        status = args[1] if len(args) > 1 else ""
        print(f'{stamp} INFO:     {self.client_address[0]} - "{self.requestline}" {status}', flush=True)

    def _answer(self, status: int, body: Any = None, kind: str = "application/json") -> None:
        data = body.encode() if isinstance(body, str) else b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _allowed(self) -> bool:
        key = self.server.args.get("api_key")
        public = self.path in {"/health", "/health_generate", "/ready", "/metrics"}
        if not key or public or self.headers.get("Authorization") == f"Bearer {key}":
            return True
        self._answer(401, {"error": "Unauthorized"})
        return False

    def do_GET(self) -> None:
        if not self._allowed():
            return
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(200, metrics(self.server), "text/plain; version=0.0.4")
        elif path in {"/health", "/health_generate", "/ping"}:
            self._health()
        elif self.server.engine is None:
            self._answer(404, {"detail": "Not Found"})
        elif path == "/ready" and _number(self.server.version) >= (0, 5, 20):
            self._answer(200 if self.server.ready else 503)
        elif path == "/v1/models":
            card = {"id": self.server.model, "object": "model", "created": int(time.time()), "owned_by": "sglang"}
            self._answer(200, {"object": "list", "data": [card]})
        elif path in {"/server_info", "/get_server_info"}:
            self._answer(200, server_info(self.server, self.server.engine))
        elif path in {"/model_info", "/get_model_info"}:
            self._answer(200, {"model_path": self.server.args["model_path"], "is_generation": True})
        else:
            self._answer(404, {"detail": "Not Found"})

    def _health(self) -> None:
        engine = self.server.engine
        if engine is None:
            self._answer(200)
        elif not self.server.ready:
            self._answer(503)
        else:
            self._answer(200 if engine.healthy(HEALTH_TIMEOUT) else 503)

    def do_POST(self) -> None:
        if not self._allowed():
            return
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        engine = self.server.engine
        if self.path == "/flush_cache" and engine is not None:
            self._answer(200, "Cache flushed.", "text/plain")
            return
        chat = self.path == "/v1/chat/completions"
        if engine is None or self.path not in {"/v1/chat/completions", "/v1/completions"}:
            self._answer(404, {"detail": "Not Found"})
            return
        try:
            body = json.loads(text)
            prompt = " ".join(str(m["content"]) for m in body["messages"]) if chat else str(body["prompt"])
            limit = int(body.get("max_tokens") or body.get("max_completion_tokens") or (2048 if chat else 16))
        except (ValueError, KeyError, TypeError) as error:
            self._answer(400, {"object": "error", "message": f"invalid request: {error!r}", "code": 400})
            return
        request = Request(prompt, limit, int(body.get("min_tokens") or 0), bool(body.get("ignore_eos")))
        engine.submit(request)
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        if body.get("stream"):
            self._stream(request, chat, usage)
        else:
            self._whole(request, chat)

    def _pieces(self, request: Request) -> Iterator[tuple[list[str], str | None]]:
        while True:
            item = request.out.get()
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

    def _whole(self, request: Request, chat: bool) -> None:
        text, reason = "", ""
        for tokens, end in self._pieces(request):
            text += "".join(tokens)
            reason = end or reason
        content = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        choice = {"index": 0, **content, "finish_reason": reason}
        self._answer(200, {**self._head(chat, False), "choices": [choice], "usage": self._usage(request)})

    def _stream(self, request: Request, chat: bool, usage: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        head = self._head(chat, True)
        try:
            if chat:
                first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
                self._event({**head, "choices": [first]})
            for tokens, end in self._pieces(request):
                if not tokens and end is None:
                    continue
                text = "".join(tokens)
                content: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
                self._event({**head, "choices": [{"index": 0, **content, "finish_reason": end}]})
            if usage:
                self._event({**head, "choices": [], "usage": self._usage(request)})
            self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")
        except OSError:
            request.cancelled = True
            self.close_connection = True

    def _event(self, body: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(body).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


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
