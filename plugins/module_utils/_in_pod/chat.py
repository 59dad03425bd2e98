# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Send one question to the server in this pod, and print its answer as it arrives. Runs in the pod; stdlib only.

Arguments: port, most tokens of the answer, question. After the text comes a record separator, and then the figures or
the error as JSON. The figures are measured here, so that the way to the controller does not count.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from collections.abc import Callable
from typing import Any

END = "\x1e"
TIMEOUT_S = 600


def ask(port: int, tokens: int, question: str, show: Callable[[str], None]) -> dict[str, Any]:
    """Show the answer to a question piece by piece, and return its figures; raise OSError or ValueError."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": question}],
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = time.monotonic()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != http.client.OK:
        raise ValueError(f"HTTP {response.status}: {response.read(300).decode(errors='replace')}")
    first = last = 0.0
    made, thinking = 0, False
    for raw in response:
        line = raw.decode(errors="replace").strip()
        if not line.startswith("data: {"):
            continue
        chunk = json.loads(line[len("data: ") :])
        if "error" in chunk:
            raise ValueError(str(chunk["error"])[:300])
        made = int((chunk.get("usage") or {}).get("completion_tokens") or made)
        delta = (chunk.get("choices") or [{}])[0].get("delta") or {}
        thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
        said = delta.get("content") or ""
        if thought or said:
            last = time.monotonic()
            first = first or last
        if thought:
            show(thought if thinking else f"(thinks) {thought}")
            thinking = True
        if said:
            show(f"\n\n{said}" if thinking else said)
            thinking = False
    if not first:
        raise ValueError("the answer contained no text")
    return {"tokens": made, "first_token_seconds": round(first - started, 3), "seconds": round(last - started, 3)}


def main(words: list[str]) -> int:
    """Ask, print the answer and its figures, and return the exit status."""

    def show(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    try:
        found = ask(int(words[0]), int(words[1]), words[2], show)
    except (OSError, ValueError, http.client.HTTPException) as error:
        show(END + json.dumps({"error": str(error) or type(error).__name__}))
        return 1
    show(END + json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
