# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""SIMULATED model hub that counts: one model of random files, and which host was sent how many bytes of them.

Run it in the lab's network: ``counting_hub.py PORT``. ``/count`` returns the bytes by host.
"""

import hashlib
import json
import random
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c0ffee" * 6 + "beef"
COUNT, SIZE = 12, 32 << 20
_BLOCK = 1 << 20


def contents() -> dict[str, bytes]:
    """Return a small file and the shards of the weights."""
    generator = random.Random(1)
    shards = {f"model-{number:05}-of-{COUNT:05}.bin": generator.randbytes(SIZE) for number in range(1, COUNT + 1)}
    return {"config.json": b'{"model_type": "simulated"}\n', **shards}


class Hub(ThreadingHTTPServer):
    """Serves one model, whatever its name is."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        self.files = contents()
        self.sent: Counter[str] = Counter()
        self.lock = threading.Lock()
        siblings = [{"rfilename": name, **_digest(name, data)} for name, data in self.files.items()]
        self.listing = json.dumps({"sha": COMMIT, "siblings": siblings}).encode()
        super().__init__(("", port), Handler)


def _digest(name: str, data: bytes) -> dict[str, object]:
    if name == "config.json":
        return {"size": len(data), "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()}
    return {"lfs": {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}}


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of a download, with ranges."""

    server: Hub

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        """Send the counts, the listing or a file."""
        if self.path == "/count":
            self._send(200, json.dumps(self.server.sent).encode())
        elif self.path.startswith("/api/models/"):
            self._send(200, self.server.listing)
        else:
            asked = self.headers.get("Range")
            start = int(asked[len("bytes=") : -1]) if asked else 0
            data = self.server.files[self.path.rpartition("/")[2]]
            self._send(206 if asked else 200, data[start:], count=True)

    def _send(self, status: int, data: bytes, count: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        for start in range(0, len(data), _BLOCK):
            block = data[start : start + _BLOCK]
            self.wfile.write(block)
            if count:
                with self.server.lock:
                    self.server.sent[self.client_address[0]] += len(block)


if __name__ == "__main__":
    Hub(int(sys.argv[1])).serve_forever()
