# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test a model download by a playbook from a hub on the loopback interface."""

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_plays import ansible

ROOT = Path(__file__).resolve().parents[4]
WEIGHTS = bytes(3 << 20)


class Hub(BaseHTTPRequestHandler):
    """One model of one file, three of the module's blocks long."""

    def log_message(self, format: str, *args: Any) -> None:
        """Stay silent."""

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/"):
            lfs = {"size": len(WEIGHTS), "sha256": hashlib.sha256(WEIGHTS).hexdigest()}
            sibling = {"rfilename": "model.safetensors", "size": len(WEIGHTS), "blobId": "", "lfs": lfs}
            self.reply(200, json.dumps({"sha": "c0ffee", "siblings": [sibling]}).encode())
        else:
            start = int((self.headers.get("Range") or "bytes=0-")[6:-1])
            self.reply(206, WEIGHTS[start:])

    def reply(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        try:
            self.wfile.write(data)
        except OSError:
            self.close_connection = True


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def play(tmp_path: Path, url: str, *words: str) -> str:
    """Stage the model with a playbook; return its output."""
    stage = {"repo": "org/tiny", "dest": str(tmp_path / "org--tiny"), "url": url, "reserve_gb": 0, "slice_seconds": 0}
    task = {"name": "Stage", "gb10.cluster.model_stage": stage, "timeout": 120}
    book = tmp_path / "book.yml"
    book.write_text(yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "tasks": [task]}]))
    done = ansible("ansible-playbook", book, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_download_shows_its_progress(tmp_path: Path, url: str) -> None:
    said = play(tmp_path, url)
    lines = [line for line in said.splitlines() if line.startswith("localhost: org/tiny: ")]
    assert [line.split()[2] for line in lines] == ["33", "66", "100"]
    assert "RETRYING" not in said
    assert "changed=1" in said
    assert (tmp_path / "org--tiny" / "model.safetensors").stat().st_size == len(WEIGHTS)
    assert "changed=0" in play(tmp_path, url)


def test_check_mode_asks_once_and_ends(tmp_path: Path, url: str) -> None:
    assert "changed=1" in play(tmp_path, url, "--check")
    assert not (tmp_path / "org--tiny").exists()
