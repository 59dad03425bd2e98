# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check the API key of requests and terminate TLS in front of the head. Runs beside it; standard library only.

SGLang's own ``--api-key`` is visible in its command line, its log and its ``/server_info``. This program reads the key
from a file for every request, so that a changed Secret is effective at once, and logs neither keys nor requests.
"""

from __future__ import annotations

import argparse
import hmac
import http.client
import ssl
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

OPEN = ("/health", "/ready")
"""Paths that need no key: they only tell that the server runs."""

HOP = frozenset({"authorization", "connection", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"})
"""Headers of one hop, and the key, which the server does not need."""

BODY_MOST = 512 * 2**20
STUCK_AFTER = 3600
_BLOCK = 65536


def admitted(header: str | None, key_file: Path | None) -> bool:
    """Return whether a request has the key; if the key is empty or can't be read, nobody is admitted."""
    if key_file is None:
        return True
    try:
        key = key_file.read_bytes().strip()
    except OSError:
        return False
    given = (header or "").removeprefix("Bearer ").encode()
    return bool(key) and (header or "").startswith("Bearer ") and hmac.compare_digest(given, key)


class Gateway(BaseHTTPRequestHandler):
    """Forward one request to the server, and its answer back as it arrives."""

    protocol_version = "HTTP/1.1"
    server_version = "gb10-gateway"
    sys_version = ""
    timeout = STUCK_AFTER
    upstream = ("127.0.0.1", 30000)
    key_file: Path | None = None

    def _refuse(self, status: HTTPStatus, text: str, **headers: str) -> None:
        body = f'{{"error": "{text}"}}\n'.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        # Otherwise the rest of the request's body would be read as the next request.
        self.send_header("Connection", "close")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def _body(self) -> bytes | None:
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not length.isdigit() or int(length) > BODY_MOST:
            return None
        return self.rfile.read(int(length))

    def _pass_on(self) -> None:
        if self.path.partition("?")[0] not in OPEN and not admitted(self.headers.get("Authorization"), self.key_file):
            self._refuse(HTTPStatus.UNAUTHORIZED, "the API key is missing or wrong", WWW_Authenticate="Bearer")
            return
        body = self._body()
        if body is None:
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "send a Content-Length of at most 512 MiB")
            return
        behind = http.client.HTTPConnection(*self.upstream, timeout=STUCK_AFTER)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
            behind.request(self.command, self.path, body, headers)
            answer = behind.getresponse()
        except (OSError, http.client.HTTPException):
            self._refuse(HTTPStatus.BAD_GATEWAY, "the server does not answer")
            return
        with behind.sock or answer:
            self._hand_back(answer)

    def _hand_back(self, answer: http.client.HTTPResponse) -> None:
        self.send_response_only(answer.status, answer.reason)
        length = answer.getheader("Content-Length")
        for name, value in answer.getheaders():
            if name.lower() not in HOP:
                self.send_header(name, value)
        chunked = length is None and self.command != "HEAD"
        if chunked:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        # read1 returns what has arrived, so that each token of a stream is forwarded at once.
        while block := answer.read1(_BLOCK):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(block), block) if chunked else block)
        if chunked:
            self.wfile.write(b"0\r\n\r\n")

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = _pass_on

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: requests are private."""


def serve(options: argparse.Namespace) -> None:
    """Serve until the process is killed."""
    Gateway.upstream = ("127.0.0.1", options.upstream_port)
    Gateway.key_file = options.key_file
    server = ThreadingHTTPServer(("0.0.0.0", options.port), Gateway)
    server.daemon_threads = True
    if options.certificates:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(options.certificates / "tls.crt", options.certificates / "tls.key")
        # Each connection does the handshake in its own thread, so that one slow client does not block all others.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    print(f"listening on port {options.port}, {'TLS' if options.certificates else 'plain HTTP'}", flush=True)
    server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream-port", type=int, required=True)
    parser.add_argument("--key-file", type=Path, help="file with the key; without it everybody is admitted")
    parser.add_argument("--certificates", type=Path, help="directory with tls.crt and tls.key")
    try:
        serve(parser.parse_args())
    except (OSError, ssl.SSLError) as error:
        sys.exit(f"gateway: {error}")


if __name__ == "__main__":
    main()
