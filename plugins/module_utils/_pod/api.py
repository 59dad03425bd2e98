# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Kubernetes API as a program in a pod reaches it. Private to the collection; standard library only."""

from __future__ import annotations

import json
import os
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Json = dict[str, Any]
# Where Kubernetes puts the token of a pod's service account.
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_JSON = "application/json"
# Asks programs of pods, and no proxy. build_opener() would also open https, for which it reads all certificates of the
# system: 30 ms on Python 3.13, which the program beside a server spent every three seconds.
HTTP = urllib.request.OpenerDirector()
for _handler in (urllib.request.HTTPHandler, urllib.request.HTTPDefaultErrorHandler, urllib.request.HTTPErrorProcessor):
    HTTP.add_handler(_handler())
# The API refuses longer messages of events.
_LONGEST_EVENT = 1000


class InPodApi:
    """Calls the API with the token in the directory ``account``; every method raises OSError or HTTPException.

    ``timeout`` is in seconds. ``now`` is the API server's clock at its last answer, in seconds since 1970.
    """

    def __init__(self, namespace: str, timeout: float, account: Path = ACCOUNT) -> None:
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        self._server = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        self._account, self._timeout, self.namespace = account, timeout, namespace
        tls = ssl.create_default_context(cafile=str(account / "ca.crt"))
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=tls))
        self.now = 0.0

    def core(self, path: str) -> str:
        """Return the path of an object of the core API in the namespace."""
        return f"/api/v1/namespaces/{self.namespace}/{path}"

    def read(self, method: str, path: str, body: Json | None = None, kind: str = _JSON) -> bytes:
        """Send a request with a body of media type ``kind``, and return the answer."""
        # The token is rotated on disk, so it is read for every request.
        token = (self._account / "token").read_text(encoding="ascii").strip()
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        request = urllib.request.Request(self._server + path, data, headers, method=method)
        with self._opener.open(request, timeout=self._timeout) as answer:
            self.now = parsedate_to_datetime(answer.headers["Date"]).timestamp()
            return bytes(answer.read())

    def call(self, method: str, path: str, body: Json | None = None, kind: str = _JSON) -> Json:
        """Send a request, and return the object in the answer."""
        return dict(json.loads(self.read(method, path, body, kind)))

    def find(self, method: str, path: str, body: Json | None = None) -> Json | None:
        """Send a request about an object, and return the answer, or None if the object does not exist."""
        try:
            return self.call(method, path, body)
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                return None
            raise

    def record_event(self, about: Json, reason: str, message: str, warning: bool, component: str) -> None:
        """Record an event about an object, given as ``{apiVersion, kind, name, namespace}``."""
        when = timestamp()
        event = {
            "metadata": {"generateName": f"{about['name']}-{component.rpartition('/')[2]}-"},
            "involvedObject": about,
            "type": "Warning" if warning else "Normal",
            "reason": reason,
            "message": message[:_LONGEST_EVENT],
            "source": {"component": component},
            "firstTimestamp": when,
            "lastTimestamp": when,
            "count": 1,
        }
        self.call("POST", self.core("events"), event)


def timestamp(seconds: float | None = None) -> str:
    """Return a time, by default now, in the form of the API."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


# What a program in a pod shows: pages for Prometheus and the kubelet, and lines in its log.

POD_ADDRESSES = "GB10_POD_IPS"
"""The variable with the addresses of the pod's own network, separated by commas; front_door.py reads it too."""


def serve_pages(port: int, page: Callable[[str], tuple[int, str]]) -> ThreadingHTTPServer:
    """Answer Prometheus and the kubelet's probes in a thread; ``page`` returns status and text of a path.

    A VF of the pod refuses, because no NetworkPolicy applies to it.
    """
    own = {*filter(None, os.environ.get(POD_ADDRESSES, "").split(","))}

    class Pages(BaseHTTPRequestHandler):
        # Every connection is a thread: many idle ones would take the container's memory.
        timeout = 10

        def do_GET(self) -> None:
            reached = self.connection.getsockname()[0]
            inside = not own or reached in own or reached == self.client_address[0]
            status, text = page(self.path) if inside else (403, "")
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: Prometheus and the kubelet ask every few seconds."""

    server = ThreadingHTTPServer(("", port), Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class Pulse:
    """Tells the kubelet's probe whether the rounds of a program go on: the page fails if none has ended for a while."""

    # The supervisor's longest round reads and deletes many pods of an API that does not answer, 15 s for each.
    MOST_SECONDS = 900

    def __init__(self) -> None:
        self._at = time.monotonic()

    def beat(self) -> None:
        """Note that a round has ended."""
        self._at = time.monotonic()

    def read(self, path: str) -> tuple[int, str]:
        """Return status and text of the page ``/live``; 404 for any other path."""
        if path != "/live":
            return 404, ""
        return (200, "") if time.monotonic() - self._at < self.MOST_SECONDS else (503, "")


def say(text: str) -> None:
    """Write a line with the time to the pod's log."""
    sys.stdout.write(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {text}\n")
    sys.stdout.flush()
