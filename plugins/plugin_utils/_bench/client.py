# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send load to an OpenAI-compatible streaming server, time its answers, and measure cells.

The timer of a request starts when the request is written, so that the time to connect does not count as time to the
first token. `StampedSocket` gives the time of every read.

The time of a token is that of the last packet of the read that contained it, or the time of the read if there is no
timestamp. This excludes the time that this process needs to wake up and to handle other streams, which is not caused
by the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import re
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

try:
    import aiohttp
except ImportError:
    aiohttp = None  # type: ignore[assignment,unused-ignore]

from .._controller.data import SWEEPS, read_yaml
from .._sglang.metrics import Scrape, difference, parse_metrics
from .garbage import Garbage
from .guard import StreamGuard
from .judge import WORST_FIRST, signs_of_garbage, status_of
from .stats import RequestRecord, Workload, figure_at, spread, summarise

HAVE_AIOHTTP = aiohttp is not None
EVENT_END = b"\n\n"
UNREADABLE: tuple[type[Exception], ...] = (OSError, TimeoutError) + ((aiohttp.ClientError,) if aiohttp else ())
"""The exceptions that `fetch` raises if the server refuses the request or can't be reached."""
NO_ANSWER: tuple[type[Exception], ...] = (*UNREADABLE, ValueError)
"""The same, and that of an answer that is not the expected JSON."""
SO_TIMESTAMPNS = 35
"""The number of this option on Linux (asm-generic/socket.h); Python has no name for it."""
STAMP = struct.Struct("@ll")
STAMP_SPACE = socket.CMSG_SPACE(STAMP.size)


class StampedSocket(socket.socket):
    """A socket that keeps the time of every read until its stream takes it."""

    def __init__(self, *kind: Any) -> None:
        super().__init__(*kind)
        self.reads: list[float] = []
        if sys.platform == "linux":
            self.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Read as asyncio does for plain connections."""
        data, about, _flags, _address = self.recvmsg(size, STAMP_SPACE, flags)
        self._note(len(data), about)
        return data

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Read as asyncio does under TLS."""
        room = memoryview(buffer)[: nbytes or None]
        count, about, _flags, _address = self.recvmsg_into([room], STAMP_SPACE, flags)
        self._note(count, about)
        return count

    def _note(self, count: int, about: Iterable[tuple[int, int, bytes]]) -> None:
        now = time.perf_counter()
        for level, kind, value in about:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
                seconds, nanoseconds = STAMP.unpack(value)
                # The kernel's timestamp is a time of day; it is in the future if the clock was set back meanwhile.
                now -= max(0, time.time_ns() - (seconds * 10**9 + nanoseconds)) / 1e9
        if count:
            self.reads.append(now)

    def take(self, since: float) -> list[float]:
        """Return the times of the reads since ``since``; the current time if there are none."""
        taken = [moment for moment in self.reads if moment >= since]
        self.reads.clear()
        return taken or [time.perf_counter()]


class Sockets(dict[int, StampedSocket]):
    """The sockets of a connector by file descriptor, so that a response can find its socket."""

    def make(self, address: tuple[Any, ...]) -> StampedSocket:
        """Return a new socket for one of getaddrinfo's results; aiohttp calls this as its socket factory."""
        made = StampedSocket(*address[:3])
        made.setblocking(False)
        self[made.fileno()] = made
        return made

    def of(self, response: aiohttp.ClientResponse) -> StampedSocket | None:
        """Return the socket of a response, or None if no more data will arrive."""
        transport = response.connection.transport if response.connection else None
        return self.get(transport.get_extra_info("socket").fileno()) if transport else None


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


class Busy(RuntimeError):
    """The server is running requests of others, so the figures would mix both loads."""


def _body(target: Target, request: Request, limited: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"include_usage": True}
    if limited:
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

    def __init__(self, record: RequestRecord, guarded: bool) -> None:
        self.record = record
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
            self.record.output_tokens = usage.get("completion_tokens") or self.record.output_tokens
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
    over: asyncio.Event | None,
) -> RequestRecord:
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    body = json.dumps(_body(target, request, over is not None)).encode()
    headers["Content-Type"] = "application/json"
    record = RequestRecord(index=index, sent=time.perf_counter())
    reader = _Reader(record, guarded)
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
        if over is None or not over.is_set():
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
    duration_s: float = 0.0,
) -> list[RequestRecord]:
    """Send the requests, at most ``concurrency`` at a time, and return their records in the order of the requests.

    After ``duration_s`` seconds, if it is not 0, all streams are cut; ``requests`` may be endless then. A stream that
    was cut counts with the tokens received so far, and has the finish reason ``budget``. One without a token is left
    out.
    """
    queue = iter(enumerate(requests))
    over = asyncio.Event() if duration_s else None
    records: list[RequestRecord] = []
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=target.timeout_s)
    sockets = Sockets()
    connector = aiohttp.TCPConnector(limit=concurrency, socket_factory=sockets.make)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, trace_configs=[_written()]) as session:

        async def worker() -> None:
            for index, request in queue:
                record = await _run_one(session, sockets, target, request, index, guarded, over)
                if record.finish_reason != "budget" or record.chunk_times:
                    records.append(record)
                if over and (over.is_set() or record.error_class == "infrastructure"):
                    return

        workers = [asyncio.ensure_future(worker()) for stream in range(concurrency)]
        try:
            await asyncio.wait(workers, timeout=duration_s or None, return_when=asyncio.FIRST_EXCEPTION)
            if over:
                over.set()
        finally:
            for one in workers:
                one.cancel()
            outcomes = await asyncio.gather(*workers, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
    return sorted(records, key=lambda r: r.index)


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


SECRET = ("key", "token", "password", "secret")
SECRET_FLAG = re.compile(r"(--[\w-]*(?:key|token|password|secret)[ =])\S+")
"""A secret among the words of a command line, for example in SGLang's launch_command (0.5.20 and newer)."""
PATHS = ("/server_info", "/get_server_info")
"""The second name is that of releases up to 0.5.11."""


def cleaned(info: Any) -> Any:
    """Return the values that are set in a server's answer, without possible secrets at any depth."""
    if isinstance(info, list):
        return [cleaned(value) for value in info]
    if not isinstance(info, Mapping):
        return SECRET_FLAG.sub(r"\1…", info) if isinstance(info, str) else info
    kept = {}
    for key, value in info.items():
        counts = isinstance(value, (int, float))
        if value is None or key == "internal_states" or (any(s in key.lower() for s in SECRET) and not counts):
            continue
        kept[key] = cleaned(value)
    return kept


async def server_info(target: Target) -> dict[str, Any]:
    """Return the server's settings, or an empty result if it is not SGLang or can't be reached."""
    for path in PATHS:
        try:
            answer = json.loads(await fetch(target, path))
        except NO_ANSWER:
            continue
        if isinstance(answer, dict):
            return dict(cleaned(answer))
    return {}


def graphs_expected(info: Mapping[str, Any]) -> bool:
    """Return whether this server should decode in CUDA graphs: false if they were disabled or there is no GPU."""
    off = bool(info.get("disable_cuda_graph") or info.get("disable_decode_cuda_graph"))
    disabled = info.get("cuda_graph_backend_decode") == "disabled"
    return not (off or disabled or info.get("device") == "cpu")


def longest_step(info: Mapping[str, Any]) -> int | None:
    """Return the maximum of tokens that one verify step can accept: one more than the depth of the tree of drafts."""
    most, depth = info.get("speculative_num_draft_tokens"), info.get("speculative_num_steps")
    tree = (info.get("speculative_eagle_topk") or 1) > 1
    return min(most, depth + 1) if most and depth and tree else most


async def served_model(target: Target) -> str:
    """Return the name under which the server serves its model. Raises OSError or ValueError if it reports none."""
    cards = json.loads(await fetch(target, "/v1/models")).get("data") or []
    if not cards:
        raise ValueError(f"{target.url}/v1/models lists no model")
    return str(cards[0]["id"])


# Measure one cell: repeated requests at one concurrency and context, with output checks and server metrics.


@cache
def _prompts() -> dict[str, list[str]]:
    prompts: dict[str, list[str]] = read_yaml(SWEEPS / "data/prompts.yml")
    return prompts


def prompt(workload: Workload, repetition: int, index: int) -> str:
    """Return the prompt of one request: equal for equal seeds, different for every request and repetition.

    The number at the start prevents the server's prefix cache from skipping the prefill.
    """
    rng = random.Random(f"{workload.seed}/{repetition}/{index}")
    prompts = _prompts()
    filler = " ".join(rng.choice(prompts["filler"]) for word in range(workload.context_tokens))
    question = prompts["questions"][(workload.seed + index) % len(prompts["questions"])]
    return f"[{rng.randrange(10**9):09d}] {filler + chr(10) * 2 if filler else ''}{question}"


def requests_of(workload: Workload, repetition: int) -> Iterable[Request]:
    """Return the requests of one repetition; repetition 0 is the warm-up, with short answers.

    With a duration the sequence is endless, so that every stream is busy until the time is over.
    """
    extra: dict[str, Any] = {"temperature": 0.0, "seed": workload.seed}
    if workload.forced:
        extra |= {"ignore_eos": True, "min_tokens": workload.max_tokens}
    if repetition == 0:
        return [Request(prompt(workload, 0, i), min(32, workload.max_tokens)) for i in range(workload.warmup)]
    numbers = itertools.count() if workload.duration_s else range(workload.requests or workload.concurrency)
    return (Request(prompt(workload, repetition, i), workload.max_tokens, extra) for i in numbers)


async def _scrape(target: Target) -> Scrape:
    return parse_metrics(await fetch(target, "/metrics"))


async def _idle(target: Target, patience_s: float) -> Scrape:
    """Return a reading of the idle server; raise Busy if the server does not become idle in time."""
    deadline = time.monotonic() + patience_s
    while (scrape := await _scrape(target)).busy:
        if time.monotonic() >= deadline:
            raise Busy(f"{target.url} already runs {scrape.busy:.0f} requests: measure when it is idle")
        await asyncio.sleep(min(2.0, patience_s))
    return scrape


async def _watch(target: Target, seen: list[Scrape]) -> None:
    """Read the server's gauges during the work, because most of them are zero again after the last request."""
    await asyncio.sleep(0.5)
    while True:
        with contextlib.suppress(*UNREADABLE):
            seen.append(await _scrape(target))
        await asyncio.sleep(2)


def _foreign(server: Mapping[str, Any], records: Sequence[RequestRecord], workload: Workload) -> str:
    """Return evidence that others used the server, or an empty string.

    The check counts tokens instead of requests, because a pod's readiness probe generates one token every few seconds.
    It allows for streams that were cut, which continue for some tokens before the server notices.
    """
    ours = sum(r.output_tokens for r in records)
    spare = 32 + 0.05 * ours + (64 * workload.concurrency if workload.duration_s else 0)
    if (server.get("tokens") or 0) > ours + spare and not any(r.error_class or r.garbage for r in records):
        return f"the server generated {server['tokens']:.0f} tokens, but this client received only {ours}"
    if (server.get("running") or 0) > workload.concurrency + 1:
        return f"the server ran {server['running']:.0f} requests at a time, this client at most {workload.concurrency}"
    return ""


@dataclass(frozen=True)
class Server:
    """What is known about the server: whether it has metrics, whether it decodes in graphs, the time to wait for idle.

    ``longest_step`` is the maximum of tokens that it can accept in one verify step; None without speculation.

    ``judged`` is false only for a model with random weights, whose output is always noise.
    """

    metrics: bool = True
    graphs_expected: bool = True
    patience_s: float = 0.0
    judged: bool = True
    longest_step: int | None = None


async def _repeat(target: Target, workload: Workload, repetition: int, known: Server) -> dict[str, Any]:
    seen: list[Scrape] = []
    before = await _idle(target, known.patience_s) if known.metrics else Scrape()
    watch = asyncio.ensure_future(_watch(target, seen)) if known.metrics and repetition else None
    try:
        requests, limit_s = requests_of(workload, repetition), workload.duration_s if repetition else 0.0
        records = await run_level(target, requests, workload.concurrency, known.judged, limit_s)
    finally:
        if watch:
            watch.cancel()
    server: dict[str, Any] = {}
    if known.metrics:
        with contextlib.suppress(*UNREADABLE):
            server = difference(before, await _scrape(target), workload.draft_tokens, seen)
            # Behind its end a forced answer repeats itself, and drafts of a repetition are right: Gemma-4 on a B300 had
            # accept rates of 0.995 and 1.00 (Blackwell Shenanigans 003). The guard still judges the text.
            longest = None if workload.forced else known.longest_step
            server |= {"graphs_expected": known.graphs_expected, "longest_step": longest}
    garbage = signs_of_garbage(records, server) if known.judged else []
    status = status_of(records, garbage)
    if foreign := _foreign(server, records, workload):
        status = "shared"
        garbage.append(Garbage("shared_server", 0, foreign))
    return {
        "repetition": repetition,
        "status": status,
        "garbage": [asdict(g) for g in garbage],
        "figures": summarise(records),
        "server": server,
        "requests": [r.as_dict() for r in records],
    }


def _over(runs: Sequence[Mapping[str, Any]], *path: str) -> dict[str, float | int | None]:
    """Return the spread of one figure over the repetitions that have it."""
    return spread([value for run in runs if (value := figure_at(run, *path)) is not None])


async def measure(target: Target, workload: Workload, known: Server, progress: Callable[[str], None]) -> dict[str, Any]:
    """Return the record of the cell: workload, one entry per repetition, and the spread of the figures over them.

    The first repetition with garbage ends the cell, because more garbage adds no information. Raises Busy if the server
    runs requests of others, and aiohttp.ClientError if its metrics can't be read.
    """
    runs: list[dict[str, Any]] = []
    for repetition in range(workload.repetitions + 1):
        run = await _repeat(target, workload, repetition, known)
        if repetition == 0:
            continue
        runs.append(run)
        rate = run["figures"]["peak_tok_s"]
        shown = f", {rate:.1f} tok/s" if rate else ""
        progress(f"repetition {repetition}/{workload.repetitions}: {run['status']}{shown}")
        if run["status"] == "garbage":
            break
    good = [r for r in runs if r["status"] == "ok"]
    return {
        "workload": asdict(workload) | {"name": workload.name},
        "judged": known.judged,
        "status": min((run["status"] for run in runs), key=WORST_FIRST.index, default="failed"),
        "peak_tok_s": _over(good, "figures", "peak_tok_s"),
        "wall_tok_s": _over(good, "figures", "wall_tok_s"),
        "ttft_s": _over(good, "figures", "ttft_s", "p50"),
        "itl_s": _over(good, "figures", "itl_s", "p50"),
        "tokens_counted_by": sorted({by for r in good for by in r["figures"]["tokens_counted_by"]}),
        "accept_length": _over(good, "server", "accept_length"),
        "accept_length_source": next((r["server"].get("accept_length_source") for r in good), None),
        "runs": runs,
    }
