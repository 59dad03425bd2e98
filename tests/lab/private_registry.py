# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""SIMULATED registry that requires a password: the images that ``ctr images export`` wrote, to one user only.

Run it on a node: ``private_registry.py ARCHIVE DIRECTORY PORT USER:PASSWORD``. It listens on 127.0.0.1, where
containerd needs no TLS. An image has the name that it has in containerd, without ``localhost``.
"""

import base64
import json
import shutil
import sys
import tarfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
FULL_NAME = "io.containerd.image.name"


class Registry(ThreadingHTTPServer):
    """Serves an OCI layout."""

    def __init__(self, layout: Path, port: int, account: str) -> None:
        self.blobs = layout / "blobs" / "sha256"
        index = json.loads((layout / "index.json").read_text())
        self.tags = {
            one["annotations"][FULL_NAME].removeprefix("localhost/"): one["digest"] for one in index["manifests"]
        }
        self.wanted = "Basic " + base64.b64encode(account.encode()).decode()
        super().__init__(("127.0.0.1", port), Handler)


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of a pull."""

    protocol_version = "HTTP/1.1"
    # containerd first tries TLS, and takes HTTP if what answers its handshake begins with HTTP, as a registry's does.
    default_request_version = "HTTP/1.0"
    server: Registry

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent."""

    def do_HEAD(self) -> None:
        """Send what do_GET sends, without the content."""
        self._answer()

    def do_GET(self) -> None:
        """Send a manifest or a blob."""
        path = self._answer()
        if path:
            with path.open("rb") as blob:
                shutil.copyfileobj(blob, self.wfile)

    def _answer(self) -> Path | None:
        if self.headers.get("Authorization") != self.server.wanted:
            return self._refuse(401)
        name, _slash, reference = self.path.removeprefix("/v2/").rpartition("/")
        repository, _slash, kind = name.rpartition("/")
        digest = self.server.tags.get(f"{repository}:{reference}", reference)
        path = self.server.blobs / digest.removeprefix("sha256:").replace("/", "")
        if not path.is_file():
            return self._refuse(200 if self.path == "/v2/" else 404)
        known = (
            json.loads(path.read_bytes()).get("mediaType", MANIFEST)
            if kind == "manifests"
            else "application/octet-stream"
        )
        self.send_response(200)
        self.send_header("Content-Type", known)
        self.send_header("Content-Length", str(path.stat().st_size))
        self.send_header("Docker-Content-Digest", digest)
        self.end_headers()
        return path

    def _refuse(self, status: int) -> None:
        self.send_response(status)
        self.send_header("WWW-Authenticate", 'Basic realm="simulated"')
        self.send_header("Content-Length", "0")
        self.end_headers()


def main() -> None:
    """Unpack the archive and serve it."""
    archive, layout, port, account = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    with tarfile.open(archive) as images:
        images.extractall(layout, filter="data")
    Registry(layout, port, account).serve_forever()


if __name__ == "__main__":
    main()
