# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let nodes join: a server's small HTTP service, to which the API server hands K3s's own paths, and its client."""

import base64
import hmac
import http.server
import json
import socketserver
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import tokens
from .children import log
from .pki import fingerprint
from .settings import StandInError

Handler = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class Refused(Exception):
    """The server refused; a retry does not help."""


def serve(
    socket: Path,
    ca: bytes,
    passwords: Mapping[str, str],
    handlers: Mapping[str, tuple[set[str], Handler]],
) -> None:
    """Answer ``GET /cacerts`` and ``/ping`` to everybody, and a POST of JSON to the users named for its path."""
    public = {"/cacerts": ca, "/ping": b"pong"}

    class Service(http.server.BaseHTTPRequestHandler):
        timeout = 30

        def do_GET(self) -> None:
            self._answer(200 if self.path in public else 404, public.get(self.path, b"not found"))

        def do_POST(self) -> None:
            users, handler = handlers.get(self.path, (set(), None))
            if handler is None or self._user() not in users:
                self._answer(401, b"not authorized")
                return
            try:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._answer(200, json.dumps(handler(body)).encode())
            except (StandInError, ValueError, KeyError, OSError) as error:
                log(f"{self.path} from {self.headers.get('X-Forwarded-For')} failed: {error}")
                self._answer(500, str(error).encode())

        def _user(self) -> str:
            scheme, _, encoded = self.headers.get("Authorization", "").partition(" ")
            try:
                user, _, password = base64.b64decode(encoded).decode().partition(":")
            except ValueError:
                return ""
            # as with K3s, an agent may also join with the server's token
            known = [
                name for name, wanted in passwords.items() if hmac.compare_digest(wanted.encode(), password.encode())
            ]
            return user if scheme == "Basic" and user in known else ""

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Do not log requests."""

    socket.unlink(missing_ok=True)
    server = socketserver.ThreadingUnixStreamServer(str(socket), Service)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="join", daemon=True).start()


class Client:
    """Talks to a server as ``server`` or ``node``; learns the cluster's CA and checks it against the token's hash."""

    def __init__(self, url: str, token: tokens.Token, user: str) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "https" or not parts.hostname:
            raise StandInError(f"--server {url} is no https://HOST:6443 URL")
        self._base = f"https://{parts.netloc}"
        self._password = f"{user}:{token.password}"
        blind = ssl.create_default_context()
        blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE
        with urllib.request.urlopen(f"{self._base}/cacerts", context=blind, timeout=10) as answer:
            self.ca: bytes = answer.read()
        if token.ca_hash and fingerprint(self.ca) != token.ca_hash:
            raise Refused("token CA hash does not match the Cluster CA certificate hash")
        if token.user not in {"", user, "server"}:
            raise Refused(f"this token is for {token.user!r}, but the node joins as {user!r}")
        self._context = ssl.create_default_context(cadata=self.ca.decode())

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Call one handler. Raises Refused when the token is not accepted, OSError when no server answers."""
        header = {"Authorization": "Basic " + base64.b64encode(self._password.encode()).decode()}
        request = urllib.request.Request(f"{self._base}{path}", json.dumps(body).encode(), header)
        try:
            with urllib.request.urlopen(request, context=self._context, timeout=60) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            if error.code == 401:
                raise Refused("401 Unauthorized: the token is not this cluster's") from None
            raise OSError(f"{path}: {error.code} {error.read().decode(errors='replace')}") from None
