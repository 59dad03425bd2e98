# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a server's module with a door in front of its HTTP routes: front_door.py MODULE ARGUMENTS.

SGLang has about 40 routes that load weights, write profiles or empty caches. They need no key unless one is given. Up
to 0.5.21 a key does not even protect the one of CVE-2026-15969, ``/load_lora_adapter_from_tensors``. And a key is in
the answer of ``/server_info`` for everybody (sglang 0.5.23: ``build_server_info`` returns all resolved arguments). So a
client gets only the routes of ``PUBLIC``, and only at an address of the pod's own network. A VF, to which no
NetworkPolicy applies, answers nothing. A process of the pod itself gets everything: whoever may run a command in the
pod, or forward its port, may administer its server. But not with GET, which many of these routes take: a client of a
model that reads images may name any address, also one of this pod, and the server itself fetches it (sglang#35651).

The door also notes for the sidecar (_pod/watch.py) when an answer ends in one character over and over,
which a broken engine writes while /health is green. It keeps no text: the note is an empty file's time.

The door is uvicorn's outermost application, so a header such as X-Forwarded-For cannot change what it sees. A process
that the server spawns runs this file again before its own work, because it stays the module ``__main__``. So each of
them also writes the stacks of its threads when witness.py signals it, and notes for watch_load.py when a line that it
logs begins a phase of the load.
"""

from __future__ import annotations

import contextlib
import faulthandler
import ipaddress
import json
import logging
import os
import re
import runpy
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from uvicorn import Config

# The routes that generate, count, describe or report, in releases 0.5.9 to 0.5.23. A last "/" stands for all below it.
PUBLIC = (
    *("/v1/", "/generate", "/encode", "/classify", "/tokenize", "/detokenize", "/open_session", "/close_session"),
    *("/parse_function_call", "/separate_reasoning", "/invocations", "/vertex_generate"),
    *("/api/chat", "/api/generate", "/api/tags", "/api/show"),
    *("/health", "/health_generate", "/ready", "/ping", "/metrics", "/metrics/", "/get_load"),
    *("/model_info", "/get_model_info", "/server_info", "/get_server_info"),
)
# What the server does with an address that a client names.
FETCHED = ("GET", "HEAD")
ADDRESSES = "GB10_POD_IPS"
# start_rank.py makes this directory.
STACKS = Path("/tmp/gb10-stacks")
# How SGLang's lines begin (model_runner.py and cuda_graph_setup.py of 0.5.16, 0.5.19 and 0.5.23), and what they begin.
# Weights are followed by the caches, or by those of a draft.
PHASES = {
    "weights": re.compile("Load weight begin"),
    "caches": re.compile("Load weight end"),
    "graphs": re.compile(r"Capture .*\bbegin\b"),
}
# What it says that the graphs took
GRAPHS = re.compile(r"Capture .*\bend\b.*\bmem usage=(\d+\.\d+) GB")
# The text in a chunk of an answer: content, reasoning_content or text. A pattern with the whole names took three times
# as long (11 microseconds for a chunk on a busy machine, 2026-11-29).
TEXT = re.compile(rb'te[nx]t": ?"([^"\\]*(?:\\.[^"\\]*)*)"')
# A run of one character that is noted, unless lines and tables consist of it
RUN, RULES = 64, b"-=_*#.~|+"
# The sidecar's file beside the directory of NCCL's files, and the seconds between two notes.
SUSPECT, NOTE_EVERY = "suspect", 10.0
ANSWER = json.dumps(
    {
        "error": {
            "message": "This route answers only inside the pod, to POST and the like. Use kubectl exec.",
            "type": "forbidden",
            "code": 403,
        }
    }
).encode()

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]


def plain(address: str) -> str:
    """Return an address as the kubelet writes it: an IPv4 client of an IPv6 socket is an IPv4 address."""
    try:
        read = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    return str(getattr(read, "ipv4_mapped", None) or read)


def admits(path: str, client: str, server: str, own: frozenset[str], method: str = "GET") -> bool:
    """Tell whether a client may request ``path`` at the address ``server`` of this pod, whose own ones are ``own``."""
    if not server:
        return False
    inside = client == server
    if inside and method not in FETCHED:
        return True
    public = path in PUBLIC or any(path.startswith(start) for start in PUBLIC if start.endswith("/"))
    # No route of SGLang has such a part, but what is behind the door may leave it out.
    return (inside or server in own) and public and ".." not in path.split("/")


class Door:
    """An ASGI application that passes on to ``app`` what the pod's clients may request."""

    def __init__(self, app: Any, own: frozenset[str]) -> None:
        self.app, self.own = app, own

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer a refused request with status 403, which a WebSocket gets when it is closed before it is accepted."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        client, server = (plain(str((scope.get(name) or [""])[0])) for name in ("client", "server"))
        if admits(scope["path"], client, server, self.own, scope.get("method", "GET")):
            return await self.app(scope, receive, watched(send))
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008})
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(ANSWER)).encode())]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        return await send({"type": "http.response.body", "body": ANSWER})


class Suspects:
    """Touches the file of the sidecar, if start_rank.py named the directory of NCCL's files."""

    after = 0.0

    @classmethod
    def note(cls) -> None:
        """Note that an answer repeats one character."""
        logs, now = os.environ.get("NCCL_DEBUG_FILE", ""), time.monotonic()
        if logs and now >= cls.after:
            cls.after = now + NOTE_EVERY
            with contextlib.suppress(OSError):
                (Path(logs).parents[1] / SUSPECT).touch()


def watched(send: Send) -> Send:
    """Return ``send`` that also notes an answer whose text ends in one character over and over."""
    tail = b""

    async def passed(message: Mapping[str, Any]) -> None:
        nonlocal tail
        for text in TEXT.findall(message.get("body") or b""):
            tail = (tail + b"".join(text[-4 * RUN :].split()))[-RUN:]
            if tail[:1] * RUN == tail and tail[:1] not in RULES:
                tail = b""
                Suspects.note()
        await send(message)

    return passed


def install(own: frozenset[str]) -> None:
    """Put the door in front of each application that uvicorn loads in this process."""
    load = Config.load

    def loaded(self: Config) -> None:
        load(self)
        self.loaded_app = Door(self.loaded_app, own)

    Config.load = loaded  # type: ignore[method-assign]


def own_addresses() -> frozenset[str]:
    """Return the addresses of this pod's own network. Without one the server would answer nobody, so it ends here."""
    found = frozenset(plain(address) for address in os.environ.get(ADDRESSES, "").split(",")) - {""}
    if not found:
        sys.exit(f"{ADDRESSES} names no address of this pod, so the server would answer nobody. It is not started.")
    return found


def show_stacks() -> None:
    """Write the stacks of all threads at SIGUSR2, which works while a thread holds the interpreter's lock."""
    with contextlib.suppress(OSError):
        # The signal handler uses the file for as long as the process runs.
        faulthandler.register(signal.SIGUSR2, (STACKS / str(os.getpid())).open("w", encoding="utf-8"))


def note_phases(file: Path) -> None:
    """Add a line to ``file`` for each line of the log that begins a phase, or tells what graphs took.

    A handler would not outlive SGLang's own.
    """
    made = logging.getLogRecordFactory()

    def noted(*args: Any, **more: Any) -> logging.LogRecord:
        record = made(*args, **more)
        text = record.msg if isinstance(record.msg, str) else ""
        phase = next((name for name, begins in PHASES.items() if begins.match(text)), "")
        took = GRAPHS.match(text)
        if phase or took:
            with contextlib.suppress(OSError), file.open("a", encoding="ascii") as stream:
                stream.write(f"{os.getpid()} {f'took {took[1]}' if took else phase}\n")
        return record

    logging.setLogRecordFactory(noted)


def main() -> None:
    """Run the module as ``python3 -m`` does; its arguments follow its name."""
    sys.path[0] = str(Path.cwd())
    found = find_spec(sys.argv[1])
    if found is None:
        sys.exit(f"this image has no module {sys.argv[1]}")
    sys.argv = [str(found.origin), *sys.argv[2:]]
    runpy.run_module(found.name, run_name="__main__")


if __name__ in {"__main__", "__mp_main__"}:
    install(own_addresses())
    show_stacks()
    note_phases(STACKS / "phases")
if __name__ == "__main__":
    main()
