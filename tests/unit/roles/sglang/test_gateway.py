# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the gateway in front of a real HTTP server: access, and that answers pass unchanged."""

from __future__ import annotations

import datetime
import http.client
import json
import os
import re
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

FILE = Path(__file__).resolve().parents[4] / "roles/sglang/files/gateway.py"
KEY = "kaese-mit-loechern"
PAUSE = 0.4


class Behind(BaseHTTPRequestHandler):
    """A server that streams two events with a pause between them, and echoes what it is sent."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in (b"data: one\n\n", b"data: two\n\n"):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            self.wfile.flush()
            time.sleep(PAUSE)
        self.wfile.write(b"0\r\n\r\n")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = json.dumps({"headers": dict(self.headers), "body": body.decode()}).encode()
        self.send_response(418)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def behind() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Behind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()


def start(upstream: int, *words: str) -> tuple[subprocess.Popen[str], int]:
    """Start the gateway on a free port; return it and the port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Behind) as free:
        port = free.server_address[1]
    command = [sys.executable, str(FILE), "--port", str(port), "--upstream-port", str(upstream), *words]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert running.stdout is not None
    assert re.match(r"listening on port \d+", running.stdout.readline())
    return running, port


@pytest.fixture
def guarded(behind: int, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    (tmp_path / "api-key").write_text(f"{KEY}\n")
    running, port = start(behind, "--key-file", str(tmp_path / "api-key"))
    yield running, port
    running.kill()
    running.wait()


def ask(
    port: int, method: str = "GET", path: str = "/v1/models", key: str | None = KEY, body: str | None = None
) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
    connection.request(method, path, body, headers)
    return connection.getresponse()


@pytest.mark.parametrize("key", [None, "", "kaese", KEY + "x", "é"])
def test_requests_without_the_key_are_refused(guarded: tuple[Any, int], key: str | None) -> None:
    answer = ask(guarded[1], key=key)
    assert answer.status == 401
    assert answer.getheader("WWW-Authenticate") == "Bearer"


def test_health_needs_no_key(guarded: tuple[Any, int]) -> None:
    assert ask(guarded[1], path="/health", key=None).status == 200


def test_an_answer_passes_and_the_key_is_not_forwarded(guarded: tuple[Any, int]) -> None:
    answer = ask(guarded[1], "POST", "/v1/completions", body="hello")
    seen = json.loads(answer.read())
    assert answer.status == 418
    assert seen["body"] == "hello"
    assert "Authorization" not in seen["headers"]


def test_a_stream_is_forwarded_event_by_event(guarded: tuple[Any, int]) -> None:
    answer = ask(guarded[1])
    started = time.monotonic()
    assert answer.readline() == b"data: one\n"
    assert time.monotonic() - started < PAUSE
    assert answer.read().endswith(b"data: two\n\n")


def test_a_new_key_is_used_immediately(guarded: tuple[Any, int], tmp_path: Path) -> None:
    (tmp_path / "api-key").write_text("another")
    assert ask(guarded[1]).status == 401
    assert ask(guarded[1], key="another").status == 200


def test_an_empty_or_missing_key_refuses_all_requests(guarded: tuple[Any, int], tmp_path: Path) -> None:
    (tmp_path / "api-key").write_text("")
    assert ask(guarded[1], key="").status == 401
    (tmp_path / "api-key").unlink()
    assert ask(guarded[1]).status == 401


def test_a_missing_server_is_reported(tmp_path: Path) -> None:
    running, port = start(1)
    try:
        assert ask(port, key=None).status == 502
    finally:
        running.kill()
        running.wait()


def test_nothing_is_logged(guarded: tuple[subprocess.Popen[str], int]) -> None:
    running, port = guarded
    ask(port, "POST", "/v1/completions", body="private").read()
    ask(port, key="wrong").read()
    running.kill()
    assert running.communicate()[0] == ""


def certificate(directory: Path) -> ssl.SSLContext:
    """Write a certificate for 127.0.0.1 and return a client's context that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("gateway.test")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (directory / "tls.crt").write_bytes(made.public_bytes(pem))
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (directory / "tls.key").touch(mode=0o600)
    (directory / "tls.key").write_bytes(secret)
    return ssl.create_default_context(cadata=made.public_bytes(pem).decode())


def test_tls_works_and_a_silent_client_delays_no_other_client(behind: int, tmp_path: Path) -> None:
    context = certificate(tmp_path)
    running, port = start(behind, "--certificates", str(tmp_path))
    try:
        silent = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        silent.connect()
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)
        context.check_hostname = False
        connection.request("GET", "/v1/models")
        assert connection.getresponse().read().startswith(b"data: one")
        silent.close()
    finally:
        running.kill()
        running.wait()


def test_a_missing_certificate_ends_the_start(tmp_path: Path) -> None:
    command = [sys.executable, str(FILE), "--port", "0", "--upstream-port", "1", "--certificates", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ, timeout=30)
    assert done.returncode != 0
    assert "No such file" in done.stderr
