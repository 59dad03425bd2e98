# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A hub that counts its bytes, and transfers between nodes that are addresses of the loopback interface."""

from __future__ import annotations

import hashlib
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._models import fetch, share, store

COMMIT = "c0ffee"
REPO = "org/tiny"
FILES = {"config.json": b"{}", "a.safetensors": bytes(range(256)) * 9000, "sub/b.safetensors": b"two" * 700_000}
SECRET = "only-for-this-transfer"


Answer = Callable[[socket.socket], None]


def endless(head: bytes, block: bytes, pause: float = 0) -> Answer:
    """Send a head, and then blocks until the other side closes the connection."""

    def answer(client: socket.socket) -> None:
        client.sendall(head)
        while True:
            client.sendall(block)
            time.sleep(pause)

    return answer


def listing() -> dict[str, Any]:
    """Return the hub's listing: git's SHA-1 of the small file, SHA-256 of the others."""
    siblings: list[dict[str, Any]] = []
    for name, data in FILES.items():
        entry = {
            "rfilename": name,
            "size": len(data),
            "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(),
        }
        lfs = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        siblings.append(entry if name == "config.json" else {**entry, "lfs": lfs})
    return {"sha": COMMIT, "siblings": siblings}


def files() -> list[store.File]:
    return store.parse_listing(json.dumps(listing()))[1]


class Hub(ThreadingHTTPServer):
    """``sent`` counts the bytes of files; ``refuse`` is the status of each answer, ``cut`` ends each file early.

    With ``deny`` only the listing is sent. ``busy`` is the number of requests that are answered with 503 first.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Hub)
        self.sent, self.asked, self.refuse, self.cut, self.deny = 0, list[str](), 0, 0, False
        self.busy = 0
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Hub(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        if self.server.busy:
            self.server.busy -= 1
            self.send_error(503)
            return
        if self.server.refuse:
            self.send_error(self.server.refuse)
            return
        if self.path.startswith("/api/"):
            self._send(200, json.dumps(listing()).encode(), 0)
            return
        if self.server.deny:
            self.send_error(401)
            return
        name = self.path.partition(f"/{COMMIT}/")[2]
        self.server.asked.append(name)
        asked = self.headers.get("Range")
        data = FILES[name][int(asked[6:-1]) :] if asked else FILES[name]
        self.server.sent += len(data)
        self._send(206 if asked else 200, data, self.server.cut)

    def _send(self, status: int, data: bytes, cut: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[:cut] if cut else data)


def address(number: int) -> str:
    return f"127.0.7.{number}"


def free_port() -> int:
    """Return a TCP port that nothing uses on the addresses of the nodes.

    It is below 32768, where Linux begins with the ports of clients: also those of tests that run at the same time.
    """
    chance = random.Random()
    while True:
        port = chance.randrange(20000, 32768)
        with ExitStack() as stack:
            try:
                for number in range(1, 10):
                    stack.enter_context(socket.socket()).bind((address(number), port))
            except OSError:
                continue
        return port


def model(directory: Path) -> dict[str, Any]:
    """Return the model as the plan describes it."""
    return {"repo": REPO, "commit": COMMIT, "dest": str(directory), "files": [vars(file) for file in files()]}


def put(directory: Path, names: Collection[str]) -> None:
    """Write verified files, with their record."""
    recorded = {}
    for file in files():
        if file.name in names:
            (directory / file.name).parent.mkdir(parents=True, exist_ok=True)
            (directory / file.name).write_bytes(FILES[file.name])
            recorded[file.name] = file.digest
    store.write_marker(directory, REPO, COMMIT, recorded, complete=len(recorded) == len(FILES))


class Node:
    """One node of a transfer. It serves from a thread, and copies or downloads in the thread of the test."""

    def __init__(self, root: Path, number: int, peers: Sequence[int], port: int, has: Collection[str] = ()) -> None:
        self.name, self.number, self.port = f"spark{number}", number, port
        self.directory = root / self.name / "org--tiny"
        if has:
            put(self.directory, has)
        self.items = share.items_of([model(self.directory)])
        self.peers = [{"name": f"spark{n}", "paths": [{"to": address(n), "via": address(number)}]} for n in peers]
        self.serving = share.Serving(self.items, {address(n) for n in peers}, SECRET)
        self.serving.poll = 0.05
        self.thread = threading.Thread(target=self.serving.run, args=(600, 600), daemon=True)

    def start(self) -> Node:
        self.serving.bind([address(self.number)], self.port)
        self.thread.start()
        # It runs a thread per address. The test that comes next would take one that begins later for its own.
        with socket.create_connection((address(self.number), self.port), 60) as client:
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            client.recv(1)
        return self

    def end(self) -> None:
        self.serving.stop()
        self.thread.join(60)
        assert not self.thread.is_alive()

    def slice(self, hub: str = "", progress: share.Progress | None = None) -> share.Slice:
        """Return a slice of a download or, without a hub, of copies."""
        if hub:
            sources = [share.Source("the hub", fetch.Hub(hub, "", share.TIMEOUT))]
        else:
            sources = share.peers_of(self.peers, self.port, SECRET)
        return share.Slice(self.items, sources, bool(hub), progress or share.Progress())

    def get(self, hub: str = "", streams: int = 1) -> share.Slice:
        """Fetch what is missing, in one slice that has the time for it."""
        found = self.slice(hub)
        assert found.run(found.missing(), streams, 120)
        return found

    def is_whole(self) -> bool:
        return all((self.directory / name).read_bytes() == data for name, data in FILES.items())
