# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Readiness probe of a head: a short streamed generation must return a token. Runs in the pod; standard library only.

A model for embeddings or reranking, which generates nothing, must embed a text instead. ``--measure`` times one stream
or one embedding, ``--get`` prints the answer to a GET request; the collection's roles use both.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import sys
import time
from collections.abc import Iterator
from typing import Any


def answered(connection: http.client.HTTPConnection, path: str, body: dict[str, Any]) -> http.client.HTTPResponse:
    """Return the answer to a POST; raise OSError or ValueError."""
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != http.client.OK:
        raise ValueError(f"HTTP {response.status}")
    return response


def generates(port: int, timeout: float) -> bool:
    """Return whether the model generates text; without an answer it is assumed to."""
    with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
        return bool(json.loads(fetch(port, "/model_info", min(timeout, 5))).get("is_generation", True))
    return True


def embed(port: int, timeout: float, words: int) -> dict[str, float]:
    """Return the tokens of one embedded text, tokens per second and the seconds of the request, as `measure` does."""
    started = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    body = {"model": "default", "input": " ".join(["count"] * words)}
    answer = json.loads(answered(connection, "/v1/embeddings", body).read())
    took = time.monotonic() - started
    tokens = int((answer.get("usage") or {}).get("prompt_tokens") or 0)
    if not answer.get("data") or not tokens:
        raise ValueError("the answer contained no embedding")
    return {"tokens": tokens, "tokens_per_second": round(tokens / took, 2), "first_token_seconds": round(took, 3)}


def chunks(port: int, timeout: float, tokens: int) -> Iterator[dict[str, Any]]:
    """Yield the chunks of one streamed completion; raise OSError or ValueError if they don't arrive in time."""
    deadline = time.monotonic() + timeout
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    body = {
        "model": "default",
        "prompt": "Count from one to one hundred.",
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    for raw in answered(connection, "/v1/completions", body):
        line = raw.decode(errors="replace").strip()
        if time.monotonic() > deadline:
            raise TimeoutError(f"no answer in {timeout:.0f} s")
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def text_of(chunk: dict[str, Any]) -> str:
    return str(((chunk.get("choices") or [{}])[0]).get("text") or "")


def first_token(port: int, timeout: float) -> None:
    """Return after the first token; raise ValueError if there is none."""
    if not any(text_of(chunk) for chunk in chunks(port, timeout, 4)):
        raise ValueError("the stream ended without a token")


def measure(port: int, timeout: float, tokens: int) -> dict[str, float]:
    """Return the number of tokens, tokens per second over the whole request, and seconds until the first token."""
    started = time.monotonic()
    first = last = 0.0
    made = 0
    for chunk in chunks(port, timeout, tokens):
        if text_of(chunk):
            last = time.monotonic()
            first = first or last
        made = int((chunk.get("usage") or {}).get("completion_tokens") or made)
    if not made or last <= first:
        raise ValueError("the stream contained no tokens to count")
    return {
        "tokens": made,
        "tokens_per_second": round(made / (last - started), 2),
        "first_token_seconds": round(first - started, 3),
    }


def fetch(port: int, path: str, timeout: float) -> str:
    """Return the body of a GET; raise OSError or ValueError."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    connection.request("GET", path)
    response = connection.getresponse()
    text = response.read().decode(errors="replace")
    if response.status != http.client.OK:
        raise ValueError(f"HTTP {response.status}")
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--timeout", type=float, default=20)
    parser.add_argument("--measure", type=int, metavar="TOKENS", help="time one stream and print the figures as JSON")
    parser.add_argument("--get", metavar="PATH", help="print the answer of this path instead")
    options = parser.parse_args()
    try:
        if options.get:
            print(fetch(options.port, options.get, options.timeout))
        elif options.measure:
            timed = measure if generates(options.port, options.timeout) else embed
            print(json.dumps(timed(options.port, options.timeout, options.measure)))
        elif generates(options.port, options.timeout):
            first_token(options.port, options.timeout)
        else:
            embed(options.port, options.timeout, 4)
    except (OSError, ValueError, http.client.HTTPException) as error:
        print(f"not ready: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
