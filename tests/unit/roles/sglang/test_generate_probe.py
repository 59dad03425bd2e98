# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the readiness probe with servers that generate, that embed, and that are broken."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[4] / "roles/sglang/files/generate_probe.py"
CHUNKS = [{"choices": [{"text": " two"}], "usage": {"completion_tokens": n}} for n in (1, 2, 3)]
STREAM = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in CHUNKS) + "data: [DONE]\n\n"
EMBEDDED = json.dumps({"data": [{"embedding": [0.1, 0.2]}], "usage": {"prompt_tokens": 4}})

GENERATES = {"/model_info": json.dumps({"is_generation": True}), "/v1/completions": STREAM}
EMBEDS = {"/model_info": json.dumps({"is_generation": False}), "/v1/embeddings": EMBEDDED}


@contextmanager
def serving(answers: dict[str, str]) -> Iterator[int]:
    """Serve the answers by path, and 404 for all other paths."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(200 if self.path in answers else 404)
            self.end_headers()
            self.wfile.write(answers.get(self.path, "").encode())

        do_GET = do_POST = answer

        def log_message(self, *_unused: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server.server_port
    server.shutdown()


def probe(answers: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    with serving(answers) as port:
        command = [sys.executable, SCRIPT, "--port", str(port), "--timeout", "5", *words]
        return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("answers", "status"),
    [
        (GENERATES, 0),
        ({"/v1/completions": STREAM}, 0),
        ({"/v1/completions": "data: [DONE]\n\n"}, 1),
        (EMBEDS, 0),
        (EMBEDS | {"/v1/embeddings": json.dumps({"data": [], "usage": {}})}, 1),
        (EMBEDS | {"/v1/embeddings": "busy"}, 1),
        ({"/model_info": EMBEDS["/model_info"]}, 1),
        ({}, 1),
    ],
)
def test_ready_is_a_server_that_does_what_its_model_is_for(answers: dict[str, str], status: int) -> None:
    done = probe(answers)
    assert done.returncode == status
    assert ("not ready" in done.stderr) == bool(status)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("answers", "tokens"), [(GENERATES, 3), (EMBEDS, 4)])
def test_traffic_is_caused_and_timed_for_both_kinds(answers: dict[str, str], tokens: int) -> None:
    figures = json.loads(probe(answers, "--measure", "3").stdout)
    assert figures["tokens"] == tokens
    assert figures["tokens_per_second"] > 0
