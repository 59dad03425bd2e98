# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""SIMULATED model hub: has every model, each with the same two small files. Runs on the lab's control host."""

import hashlib
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = 8080
_WEIGHTS = 1 << 20
_HEADER = json.dumps({"weight": {"dtype": "U8", "shape": [_WEIGHTS], "data_offsets": [0, _WEIGHTS]}}).encode()
FILES = {
    "config.json": b'{"model_type": "simulated"}\n',
    "model.safetensors": len(_HEADER).to_bytes(8, "little") + _HEADER + bytes(_WEIGHTS),
}
_LISTING = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)/revision/(?P<revision>[^/?]+)")
_FILE = re.compile(r"/[^/]+/[^/]+/resolve/[^/]+/(?P<name>[^/?]+)")


class Handler(BaseHTTPRequestHandler):
    """Answer the two requests that a download needs."""

    def do_GET(self) -> None:
        """Send a listing or a file."""
        if found := _LISTING.match(self.path):
            self._send(json.dumps(listing(found["repo"], found["revision"])).encode())
        elif (found := _FILE.match(self.path)) and found["name"] in FILES:
            self._send(FILES[found["name"]])
        else:
            self.send_error(404)

    def _send(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def listing(repo: str, revision: str) -> dict[str, object]:
    """Return the files of a model; a branch or tag always leads to the same commit."""
    is_commit = re.fullmatch("[0-9a-f]{40}", revision)
    commit = revision if is_commit else hashlib.sha1(f"{repo}@{revision}".encode()).hexdigest()
    files = [
        {"rfilename": name, "lfs": {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}}
        for name, content in FILES.items()
    ]
    return {"sha": commit, "siblings": files}


if __name__ == "__main__":
    ThreadingHTTPServer(("", PORT), Handler).serve_forever()
