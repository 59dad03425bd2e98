# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ask the server in this pod, and print its answer as it arrives, or several answers at once. Stdlib only.

Arguments of a chat: port, most tokens of the answer, question. After the text comes a record separator, and then the
figures or the error as JSON. They are measured here, so that the way to the controller does not count.
Arguments of a round: port, seconds that an answer may take, and the questions as JSON. The answers come as JSON.
"""

from __future__ import annotations

import http.client
import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

END = "\x1e"
# Seconds without a byte after which the server counts as stuck
SILENCE_S = 600
# Characters of a text that are kept, bytes of a line and of an answer that are read
KEPT, LINE, MOST = 20000, 1 << 16, 1 << 26
ROWS = (
    "the ferry left the quiet harbor at nine and came back with the mail",
    "two carpenters mended the roof of the old school before the rain",
    "a baker sold the last loaf to a traveller who had missed his train",
    "the gardener counted the apples and wrote the number on the gate",
    "children drew a long line of chalk from the market to the bridge",
    "the clock above the town hall was late again, and nobody minded",
    "an engineer walked along the river and read the level of the water",
)


def ask(port: int, body: Mapping[str, Any], limit: float, show: Callable[[str], None]) -> dict[str, Any]:
    """Show the answer piece by piece, and return it: its ``error`` is empty if it came to its end within the limit."""
    said: dict[str, Any] = {"text": "", "thought": "", "calls": [], "end": "", "error": "", "prompt_tokens": 0}
    said |= {"tokens": 0, "first_token_seconds": 0.0, "seconds": 0.0}
    started = time.monotonic()
    try:
        _read(port, body, (started, limit), show, said)
    except TimeoutError:
        said["error"] = f"not complete after {time.monotonic() - started:.0f} s"
    except (OSError, ValueError, http.client.HTTPException) as error:
        said["error"] = str(error)[:300] or type(error).__name__
    return said


def _read(
    port: int, body: Mapping[str, Any], time_of: tuple[float, float], show: Callable[[str], None], said: dict[str, Any]
) -> None:
    started, limit = time_of
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=min(limit, SILENCE_S))
    sent = {"model": "default", "stream": True, "stream_options": {"include_usage": True}, **body}
    connection.request("POST", "/v1/chat/completions", json.dumps(sent), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != http.client.OK:
        raise ValueError(f"HTTP {response.status}: {response.read(300).decode(errors='replace')}")
    done, thinking, size = False, False, 0
    while raw := response.readline(LINE):
        if time.monotonic() - started > limit:
            raise TimeoutError
        size += len(raw)
        if size > MOST:
            raise ValueError(f"more than {MOST >> 20} MiB")
        line = raw.decode(errors="replace").strip()
        done = done or line == "data: [DONE]"
        if not line.startswith("data: {"):
            continue
        chunk = json.loads(line[len("data: ") :])
        if "error" in chunk:
            raise ValueError(str(chunk["error"]))
        for name, key in (("tokens", "completion_tokens"), ("prompt_tokens", "prompt_tokens")):
            said[name] = int((chunk.get("usage") or {}).get(key) or said[name])
        choice = (chunk.get("choices") or [{}])[0]
        delta = choice.get("delta") or {}
        said["end"] = str(choice.get("finish_reason") or said["end"])[:30]
        thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
        text, calls = delta.get("content") or "", delta.get("tool_calls") or []
        if thought or text or calls:
            said["seconds"] = round(time.monotonic() - started, 3)
            said["first_token_seconds"] = said["first_token_seconds"] or said["seconds"]
        said["text"], said["thought"] = (said["text"] + text)[:KEPT], (said["thought"] + thought)[:KEPT]
        _add(said["calls"], calls)
        if thought:
            show(thought if thinking else f"(thinks) {thought}")
            thinking = True
        if text:
            show(f"\n\n{text}" if thinking else text)
            thinking = False
    if not said["first_token_seconds"]:
        raise ValueError("the answer contained no text")
    if not (done or said["end"]):
        raise ValueError("the connection ended before the answer")


def _add(calls: list[dict[str, str]], parts: list[dict[str, Any]]) -> None:
    """Add pieces of calls of tools: the name comes first, and its arguments in pieces."""
    for part in parts:
        function = part.get("function") or {}
        if function.get("name") and len(calls) < 8:
            calls.append({"name": str(function["name"])[:100], "arguments": ""})
        if calls:
            calls[-1]["arguments"] = (calls[-1]["arguments"] + str(function.get("arguments") or ""))[:KEPT]


def hide(rows: int, notes: Mapping[str, str]) -> str:
    """Return a text of so many rows with notes between them; a note's key is the row before which it stands."""
    lines = []
    for number in range(rows):
        lines += [notes[str(number)]] if str(number) in notes else []
        lines.append(f"Row {number}: {ROWS[number % len(ROWS)]}.")
    return "\n".join(lines)


def ask_round(port: int, limit: float, questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ask all questions at once, and return their answers; ``rows`` and ``notes`` of a question precede its text."""

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        text = f"{hide(question['rows'], question['notes'])}\n\n{question['text']}".strip()
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0, **question["body"]}
        return ask(port, body, limit, lambda _text: None)

    with ThreadPoolExecutor(len(questions)) as pool:
        return list(pool.map(answer, questions))


def main(words: list[str]) -> int:
    """Ask, print the answer and its figures, and return the exit status."""

    def show(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    if words[0] == "round":
        show(json.dumps(ask_round(int(words[1]), float(words[2]), json.loads(words[3]))))
        return 0
    body = {"messages": [{"role": "user", "content": words[2]}], "max_tokens": int(words[1])}
    said = ask(int(words[0]), body, math.inf, show)
    figures = ("error",) if said["error"] else ("tokens", "first_token_seconds", "seconds")
    show(END + json.dumps({key: said[key] for key in figures}))
    return 1 if said["error"] else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
