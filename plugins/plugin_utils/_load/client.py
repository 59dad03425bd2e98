# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send load to an OpenAI-compatible streaming server and time its answers.

The timer of a request starts when the request is written, so that the time to connect does not count as time to the
first token. `sockets` gives the time of every read.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

try:
    import aiohttp
except ImportError:
    aiohttp = None  # type: ignore[assignment,unused-ignore]

from .._output.guard import StreamGuard
from .sockets import Sockets
from .stats import RequestRecord

HAVE_AIOHTTP = aiohttp is not None
EVENT_END = b"\n\n"
UNREADABLE: tuple[type[Exception], ...] = (OSError, TimeoutError) + ((aiohttp.ClientError,) if aiohttp else ())
"""The exceptions that `fetch` raises if the server refuses the request or can't be reached."""


@dataclass(frozen=True)
class Request:
    """One request; ``extra`` is added to the body unchanged (``ignore_eos``, ``min_tokens``, sampling)."""

    prompt: str
    max_tokens: int
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """The server: base URL without ``/v1``, model, API key (never shown), seconds until a silent stream fails."""

    url: str
    model: str
    api_key: str | None = None
    timeout_s: float = 600.0


@dataclass
class Budget:
    """When a level ends before its requests do: after ``duration_s`` seconds, or ``tokens`` tokens; 0 means never.

    A stream that is cut counts with the tokens received so far, and has the finish reason ``budget``.
    """

    duration_s: float = 0.0
    tokens: int = 0
    spent: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def limited(self) -> bool:
        return self.duration_s > 0 or self.tokens > 0

    def spend(self, tokens: int) -> None:
        """Count received tokens, and end the level when the token budget is spent."""
        self.spent += tokens
        if self.tokens and self.spent >= self.tokens:
            self.over.set()


class Busy(RuntimeError):
    """The server is running requests of others, so the figures would mix both loads."""


def _body(target: Target, request: Request, budget: Budget) -> dict[str, Any]:
    options: dict[str, Any] = {"include_usage": True}
    if budget.limited:
        # A stream that is cut never receives its last event, so every event must contain the server's token count.
        options["continuous_usage_stats"] = True
    return {
        "model": target.model,
        "messages": [{"role": "user", "content": request.prompt}],
        "max_tokens": request.max_tokens,
        "stream": True,
        "stream_options": options,
        **request.extra,
    }


class _Reader:
    """Parses the bytes of one stream; keeps a time for every event that contains text."""

    def __init__(self, record: RequestRecord, guarded: bool, budget: Budget) -> None:
        self.record, self.budget = record, budget
        self.guard = StreamGuard() if guarded else None
        self._rest = b""
        self._content: list[str] = []
        self._reasoning: list[str] = []

    def take(self, data: bytes, moments: Sequence[float]) -> bool:
        """Parse received data and return whether the stream should continue.

        ``moments`` are the times of the reads that delivered the data. An event has the time of the read that
        completed it. If there are more reads than events (headers alone, an event in parts), the last reads count.
        """
        events = (self._rest + data).replace(b"\r\n", b"\n").split(EVENT_END)
        self._rest = events.pop()
        late = moments[-len(events) :]
        for number, event in enumerate(events):
            now = late[number * len(late) // len(events)]
            for line in event.split(b"\n"):
                if line.startswith(b"data:") and not self._event(line[5:].strip(), now):
                    return False
        return True

    def _event(self, raw: bytes, now: float) -> bool:
        if raw == b"[DONE]":
            return True
        try:
            value = json.loads(raw)
        except ValueError:
            self.record.error_class, self.record.error = "server", f"not JSON in the stream: {raw[:80]!r}"
            return False
        if "error" in value:
            self.record.error_class, self.record.error = "server", str(value["error"])[:300]
            return False
        usage = value.get("usage")
        if usage:
            counted = usage.get("completion_tokens") or self.record.output_tokens
            self.budget.spend(counted - self.record.output_tokens)
            self.record.output_tokens = counted
            self.record.prompt_tokens = usage.get("prompt_tokens") or self.record.prompt_tokens
        for choice in value.get("choices") or ():
            delta = choice.get("delta") or {}
            content = delta.get("content") or ""
            # SGLang uses the first name; vLLM and OpenRouter now use the second.
            reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
            self.record.finish_reason = choice.get("finish_reason") or self.record.finish_reason
            if not content and not reasoning:
                continue
            self.record.chunk_times.append(now)
            self._content.append(content)
            self._reasoning.append(reasoning)
            found = self.guard.feed(content or reasoning) if self.guard else None
            if found:
                self.record.garbage = asdict(found)
                return False
        return True

    def close(self) -> None:
        """Write the collected text into the record; without usage data each chunk counts as one token."""
        self.record.content, self.record.reasoning = "".join(self._content), "".join(self._reasoning)
        if not self.record.output_tokens:
            self.record.output_tokens, self.record.counted_by = len(self.record.chunk_times), "chunks"


def _written() -> aiohttp.TraceConfig:
    """Trace hook: start the timer after the last request byte is written."""
    config = aiohttp.TraceConfig()

    async def sent(_session: aiohttp.ClientSession, context: Any, _chunk: Any) -> None:
        context.trace_request_ctx.sent = time.perf_counter()

    config.on_request_chunk_sent.append(sent)
    return config


async def _run_one(
    session: aiohttp.ClientSession,
    sockets: Sockets,
    target: Target,
    request: Request,
    index: int,
    guarded: bool,
    budget: Budget,
) -> RequestRecord:
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    body = json.dumps(_body(target, request, budget)).encode()
    headers["Content-Type"] = "application/json"
    record = RequestRecord(index=index, sent=time.perf_counter())
    reader = _Reader(record, guarded, budget)
    try:
        url = f"{target.url}/v1/chat/completions"
        async with session.post(url, data=body, headers=headers, trace_request_ctx=record) as response:
            if response.status != 200:
                record.error_class = "server"
                record.error = f"HTTP {response.status}: {(await response.text())[:300]}"
                return record
            stamped = sockets.of(response)
            async for data in response.content.iter_any():
                if not reader.take(data, stamped.take(record.sent) if stamped else [time.perf_counter()]):
                    break
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        record.error_class, record.error = "infrastructure", f"{type(error).__name__}: {error}"[:300]
    except asyncio.CancelledError:
        if not budget.over.is_set():
            raise
        record.finish_reason = "budget"
    finally:
        reader.close()
    if not record.error_class and record.garbage is None and record.finish_reason is None:
        record.error_class, record.error = "infrastructure", "the stream ended without a finish reason"
    return record


async def run_level(
    target: Target,
    requests: Iterable[Request],
    concurrency: int,
    guarded: bool = True,
    budget: Budget | None = None,
) -> list[RequestRecord]:
    """Send the requests, at most ``concurrency`` at a time, and return their records in the order of the requests.

    With a budget ``requests`` may be endless; a stream that was cut before its first token is left out.
    """
    queue = iter(enumerate(requests))
    budget = budget or Budget()
    records: list[RequestRecord] = []
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=target.timeout_s)
    sockets = Sockets()
    connector = aiohttp.TCPConnector(limit=concurrency, socket_factory=sockets.make)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, trace_configs=[_written()]) as session:

        async def worker() -> None:
            for index, request in queue:
                record = await _run_one(session, sockets, target, request, index, guarded, budget)
                if record.finish_reason != "budget" or record.chunk_times:
                    records.append(record)
                if budget.over.is_set():
                    return
                if record.error_class == "infrastructure" and budget.limited:
                    return

        workers = [asyncio.ensure_future(worker()) for stream in range(concurrency)]
        limit = asyncio.ensure_future(_ends(budget))
        try:
            await asyncio.wait([limit, asyncio.ensure_future(_all(workers))], return_when=asyncio.FIRST_COMPLETED)
        finally:
            limit.cancel()
            for one in workers:
                one.cancel()
            outcomes = await asyncio.gather(*workers, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
    return sorted(records, key=lambda r: r.index)


async def _all(workers: Sequence[asyncio.Future[None]]) -> None:
    """Return when every worker has finished or one has failed."""
    await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)


async def _ends(budget: Budget) -> None:
    """Return when the budget is spent; without a budget the level ends with its requests."""
    try:
        await asyncio.wait_for(budget.over.wait(), budget.duration_s or None)
    except TimeoutError:
        budget.over.set()


async def fetch(target: Target, path: str) -> str:
    """Return the body of one GET; raises aiohttp.ClientError if the server refuses the request or can't be reached."""
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    timeout = aiohttp.ClientTimeout(total=30)
    async with (
        aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
        session.get(f"{target.url}{path}") as response,
    ):
        response.raise_for_status()
        return await response.text()
