# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve the verified files of models to the other nodes of a transfer, from a process of its own.

The files have the paths of the hub (``/REPO/resolve/COMMIT/NAME``), so what downloads from the hub copies from a node
too. A request is looked up among the paths of the plan. Private to the collection; standard library only.
"""

from __future__ import annotations

import fcntl
import hmac
import os
import re
import signal
import socketserver
import threading
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any

from .share import Item

PATIENCE = 10.0  # seconds within which a process ends after it was asked to
POLL = 0.5
THREADS = 1000  # of the process, after which no connection is accepted
_RANGE = re.compile(r"bytes=(\d{1,15})-")


class Serving:
    """The files of one node, on addresses of its own, for peers that have the token of the transfer."""

    def __init__(self, items: Iterable[Item], peers: Collection[str], secret: str) -> None:
        self.files = {item.path: item for item in items}
        self.peers, self.token = frozenset(peers), f"Bearer {secret}".encode()
        self.touched = time.monotonic()
        self._servers: list[_Server] = []
        self._end = threading.Event()

    def bind(self, addresses: Iterable[str], port: int) -> None:
        """Open the ports; raise OSError if an address can't be used, after closing the others."""
        try:
            for address in addresses:
                self._servers.append(_Server((address, port), self))
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the ports."""
        for server in self._servers:
            server.server_close()

    def run(self, orphan: float, longest: float) -> None:
        """Serve until it is stopped, for ``longest`` seconds, or until no peer asked for ``orphan`` seconds."""
        begun = self.touched = time.monotonic()
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
        while not self._end.wait(POLL):
            now = time.monotonic()
            if now - self.touched > orphan or now - begun > longest:
                break
        self.stop()
        for server in self._servers:
            server.shutdown()
        self.close()
        for item in self.files.values():
            item.drop_cache()

    def stop(self) -> None:
        """End ``run``, and what is being sent."""
        self._end.set()

    def is_alive(self) -> bool:
        """Return whether nobody stopped it."""
        return not self._end.is_set()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # with 5, which is usual, the sixth node that connects at once waits for a second or more

    def __init__(self, address: tuple[str, int], serving: Serving) -> None:
        self.serving = serving
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without looking up the name of the address, which may take seconds without a name server."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Accept connections of the group's nodes only, and not without an end."""
        return client_address[0] in self.serving.peers and threading.active_count() < THREADS

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Drop a connection that failed; the other node asks again."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 30  # seconds in which a client neither sends nor takes a byte

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log: it would go to the terminal of the login."""

    def do_GET(self) -> None:
        serving = self.server.serving
        if not hmac.compare_digest(self.headers.get("Authorization", "").encode(), serving.token):
            self.send_error(403)
            return
        serving.touched = time.monotonic()
        item = serving.files.get(self.path)
        if item and item.is_here():
            self._send(item)
        else:
            self.send_error(404)

    def _send(self, item: Item) -> None:
        asked = _RANGE.fullmatch(self.headers.get("Range", ""))
        start, size = int(asked[1]) if asked else 0, item.file.size
        if start > size:
            self.send_error(416)
            return
        # A failure ends the connection: the other node notices, and asks another one.
        with suppress(OSError), (item.directory / item.file.name).open("rb") as stream:
            self.send_response(206 if asked else 200)
            self.send_header("Content-Length", str(size - start))
            self.end_headers()
            self.wfile.flush()
            while start < size and self.server.serving.is_alive():
                sent = self.connection.sendfile(stream, start, min(16 << 20, size - start))
                if not sent:
                    break
                start += sent
                self.server.serving.touched = time.monotonic()


# -- the process -------------------------------------------------------------------------------------------------------


def _locked(path: Path) -> IO[str] | None:
    """Return the locked file of the process, or None while a process has it. Raise OSError."""
    stream = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.close()
        return None
    return stream


def stop(path: Path) -> bool:
    """End the process and remove its file; return whether there was one. Raise OSError."""
    was_there = False
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline, asked = time.monotonic() + PATIENCE, False
        while path.exists():
            if stream := _locked(path):
                path.unlink()
                stream.close()
                return was_there
            was_there = True
            # While the lock is held, no other process has this number.
            if not asked:
                with suppress(ProcessLookupError, ValueError):
                    os.kill(int(path.read_text(encoding="utf-8")), number)
                asked = True
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
    if path.exists():
        raise OSError(f"process {path.read_text(encoding='utf-8')} does not end")
    return was_there


def start(path: Path, serving: Serving, orphan: float, longest: float) -> None:
    """Serve in a process that outlives this one and the login. Raise OSError.

    ``path`` is locked while the process lives, and has its number. What it needs to know, it has in its memory: the
    token is in no file and no argument. The caller has ended an earlier process, and no other run goes on.
    """
    stream = _locked(path)
    if not stream:
        raise OSError(f"process {path.read_text(encoding='utf-8')} serves models on this node")
    if child := os.fork():
        os.waitpid(child, 0)
        serving.close()
        stream.close()
        return
    try:
        os.setsid()
        if process := os.fork():
            stream.truncate(0)
            stream.write(str(process))
            stream.flush()
        else:
            null = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(null, number)
            os.chdir("/")
            signal.signal(signal.SIGTERM, lambda *_arguments: serving.stop())
            serving.run(orphan, longest)
    finally:
        os._exit(0)
