# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a program in a pod shows: pages for Prometheus and the kubelet, and lines in its log. Standard library only."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

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
