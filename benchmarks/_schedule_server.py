# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a streaming server that sends all tokens of an answer at scheduled times.

The server records when it sent each token, on the same clock as the clients, so that its own delays do not count as
errors of a client.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import Any, ClassVar

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _chunk(value: Any) -> bytes:
    data = b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def _event(content: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish, "logprobs": None}
    return _chunk({"id": "b" * 32, "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})


class Stream(asyncio.Protocol):
    """One connection: waits for a complete request, then sends the tokens on schedule."""

    log: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, tokens: int, first_s: float, step_s: float) -> None:
        self.tokens, self.first_s, self.step_s = tokens, first_s, step_s
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        sizes = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
        if not end or (sizes and len(body) < sizes[0]):
            return
        self._data = b""
        if head.startswith(b"GET /log"):
            answer = json.dumps(Stream.log).encode()
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))
            Stream.log.clear()
            return
        prompt = json.loads(body)["messages"][0]["content"]
        self.entry: dict[str, Any] = {"prompt": prompt, "arrived": time.perf_counter(), "sent": []}
        Stream.log.append(self.entry)
        self.transport.write(HEAD)
        loop = asyncio.get_running_loop()
        start = loop.time() + self.first_s
        for i in range(self.tokens):
            loop.call_at(start + i * self.step_s, self._send, i)

    def _send(self, number: int) -> None:
        if self.transport.is_closing():
            return
        data = _event(f"w{number} ")
        if number == self.tokens - 1:
            usage = {"prompt_tokens": 5, "completion_tokens": self.tokens, "total_tokens": self.tokens + 5}
            end = {"id": "b" * 32, "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}], "usage": usage}
            data += _chunk(end) + _chunk(b"[DONE]") + b"0\r\n\r\n"
        self.entry["sent"].append(time.perf_counter())
        self.transport.write(data)


async def main() -> None:
    """Serve until killed; print the port."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--first-ms", type=float, default=200)
    parser.add_argument("--step-ms", type=float, default=50)
    options = parser.parse_args()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Stream(options.tokens, options.first_ms / 1000, options.step_ms / 1000), "127.0.0.1", 0, backlog=1024
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
