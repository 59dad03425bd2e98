# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Serve the files of one transfer to the other nodes. Private to the collection; standard library only.

The server binds to one address of the fabric, answers only the addresses of the group's other nodes, and only requests
with the token of this transfer. A request names a file by its number, so no path can be asked for.
"""

from __future__ import annotations

import hmac
import json
import re
import socketserver
import threading
from collections.abc import Callable, Collection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .share_state import State

TOKEN = "X-GB10-Token"
CONTACTS = "X-GB10-Contacts"
_FILE = re.compile(r"/file/(\d{1,6})")
_RANGE = re.compile(r"bytes=(\d{1,15})-")
_BLOCK = 16 << 20


class Server(ThreadingHTTPServer):
    """Serves the files of ``state`` on one address."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        address: tuple[str, int],
        peers: Collection[str],
        token: str,
        state: State,
        describe: Callable[[dict[str, int]], dict[str, Any]],
    ) -> None:
        self.peers, self.token, self.state, self.describe = frozenset(peers), token.encode(), state, describe
        self.ended = threading.Event()
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without looking up the name of the address, which may take seconds without a name server."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Accept connections of the group's nodes only."""
        return client_address[0] in self.peers

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Drop a connection that failed; the other node asks again."""

    def start(self) -> None:
        """Serve in a thread."""
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()

    def end(self) -> None:
        """Stop listening, and end running answers after their current block."""
        self.ended.set()
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    """Answers ``/state`` with what this node has, and ``/file/NUMBER`` with a file."""

    server: Server
    timeout = 30

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log: it would go to the terminal of the login."""

    def do_GET(self) -> None:
        """Answer a request that has the token."""
        if not hmac.compare_digest(self.headers.get(TOKEN, "").encode(), self.server.token):
            self.send_error(403)
        elif self.path == "/state":
            self._state()
        elif match := _FILE.fullmatch(self.path):
            self._file(int(match[1]))
        else:
            self.send_error(404)

    def _state(self) -> None:
        try:
            contacts = {str(name): int(count) for name, count in json.loads(self.headers.get(CONTACTS, "{}")).items()}
        except (AttributeError, TypeError, ValueError):
            contacts = {}
        content = json.dumps(self.server.describe(contacts)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _file(self, number: int) -> None:
        state = self.server.state
        if number not in state.held:
            self.send_error(404)
            return
        item = state.items[number]
        match = _RANGE.fullmatch(self.headers.get("Range", ""))
        start, size = int(match[1]) if match else 0, item.file.size
        if start > size:
            self.send_error(416)
            return
        state.count(active=1)
        try:
            with (item.directory / item.file.name).open("rb") as stream:
                self.send_response(206 if match else 200)
                self.send_header("Content-Length", str(size - start))
                self.end_headers()
                self.wfile.flush()
                while start < size and not self.server.ended.is_set():
                    sent = self.connection.sendfile(stream, start, min(_BLOCK, size - start))
                    if not sent:
                        break
                    start += sent
                    state.count(sent=sent)
        except OSError:
            # The other node ended, or the file is gone: the other node notices and asks another one.
            self.close_connection = True
        finally:
            state.count(active=-1)
