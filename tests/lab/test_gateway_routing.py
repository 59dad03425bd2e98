# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test how SGLang's real Model Gateway routes with the command that role gateway renders: cache-aware, with retries.

The gateway is the published package; its two workers are simulated servers in this process. No Kubernetes, no root.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path

import pytest
from adminroutes import closed_routes
from ansible_collections.gb10.cluster.plugins.plugin_utils._serving.router import METRICS_PORT, Member, Router, objects
from gatewayimage import PACKAGE

START = Path(__file__).resolve().parents[2] / "roles" / "gateway" / "files" / "start_gateway.py"
COVERS = ("roles/gateway", "plugins/action/gateway_objects.py")

CHAT = "/v1/chat/completions"
# Long enough that a common beginning counts for more than the rest of a prompt.
SUBJECTS = [f"You are assistant {number}. {number * 37} " + f"rule {number} of the house. " * 40 for number in range(4)]


class Worker(ThreadingHTTPServer):
    """A simulated SGLang server that records prompts.

    ``fault`` makes it answer 503, close the connection, or hang until ``mended`` is set and then close it.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.fault, self.prompts, self.faults, self.mended = "", list[str](), 0, threading.Event()
        self.paths = set[str]()
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Answer(BaseHTTPRequestHandler):
    """The part of SGLang's API that the gateway uses."""

    server: Worker
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.paths.add(self.path)
        if self.server.fault == "hangs":
            self.server.mended.wait(120)
        self.reply(200, {"model_path": "m", "served_model_name": "m", "data": [{"id": "m"}]})

    def do_POST(self) -> None:
        self.server.paths.add(self.path)
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.fault:
            self.server.faults += 1
        if self.server.fault == "hangs":
            self.server.mended.wait(120)
        if self.server.fault in ("closed", "hangs"):
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
        elif self.server.fault == "503":
            self.reply(503, {"error": "no capacity"})
        else:
            self.server.prompts.append(asked["messages"][0]["content"])
            time.sleep(0.1)
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}
            self.reply(200, {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})

    def reply(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_words: object) -> None:
        """Say nothing."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("gateway") / "packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--only-binary=:all:"]
    subprocess.run([*pip, "--target", target, PACKAGE], check=True, timeout=300)
    return target


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    made = [Worker(), Worker()]
    yield made
    for worker in made:
        worker.shutdown()
        worker.server_close()


@pytest.fixture
def door(packages: Path, workers: list[Worker], tmp_path: Path) -> Iterator[str]:
    """Run the container's command with only the workers' URLs and two ports of this machine; yield the URL."""
    members = [Member(str(n), f"http://127.0.0.1:{w.server_port}", "m", True) for n, w in enumerate(workers)]
    port = free_port()
    deployment = objects(Router(port=port), members, "")[-1]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    command = [sys.executable, START, *container["command"][2:], *container["args"]]
    metrics = free_port()
    command = [str(metrics) if word == str(METRICS_PORT) else word for word in command]
    log = tmp_path / "log"
    with log.open("wb") as stream:
        environment = {**os.environ, "PYTHONPATH": str(packages)}
        gateway = subprocess.Popen(command, env=environment, stdout=stream, stderr=stream)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 30
        while healthy(metrics) != len(workers):
            assert time.monotonic() < deadline and gateway.poll() is None, log.read_text()
            time.sleep(0.2)
        yield url
    finally:
        gateway.kill()
        gateway.wait(timeout=30)


def healthy(port: int) -> int:
    """Return the number of healthy workers that the gateway knows; 0 while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            return sum(line.startswith(b"smg_worker_health{") and line.endswith(b" 1\n") for line in answer)
    except OSError:
        return 0


# What the gateway's own routes do, and what a client needs none of.
CLOSED = [
    *("GET /workers", "POST /workers", "DELETE /workers/x", "POST /flush_cache", "GET /get_loads", "POST /wasm"),
    *("GET /wasm", "GET /v1/tokenizers", "POST /v1/tokenizers", "POST /parse/reasoning"),
]


def test_no_client_administers_the_gateway(door: str, workers: list[Worker]) -> None:
    """A client that added a worker of its own got the requests of others."""
    statuses = {}
    for words in CLOSED:
        method, path = words.split()
        body = json.dumps({"url": f"http://127.0.0.1:{free_port()}"}).encode()
        asked = urllib.request.Request(f"{door}{path}", body, {"Content-Type": "application/json"}, method=method)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(asked, timeout=10)
        statuses[words] = refused.value.code
    assert statuses == dict.fromkeys(CLOSED, 401)
    assert ask(door, "still") == ""


def test_no_route_of_any_release_that_administers_passes_the_gateway(door: str, workers: list[Worker]) -> None:
    closed, passed = closed_routes(), []
    for route, method in product(closed, ("GET", "POST")):
        asked = urllib.request.Request(f"{door}{route}", b"{}", {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(asked, timeout=10) as answer:
                passed.append((method, route, answer.status))
        except urllib.error.HTTPError as refused:
            refused.close()
    assert passed == []
    assert [worker.paths & set(closed) for worker in workers] == [set(), set()]
    assert ask(door, "still") == ""


def ask(url: str, prompt: str) -> str:
    """Return what is wrong with the answer to a prompt; empty if it is complete."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": prompt}]}).encode()
    request = urllib.request.Request(f"{url}{CHAT}", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return "" if json.load(answer)["choices"][0]["message"]["content"] == "yes" else "another answer"
    except OSError as error:
        return str(error)


def ask_all(url: str, numbers: range) -> list[str]:
    """Ask questions of all subjects, four at a time; return what was wrong."""
    with ThreadPoolExecutor(len(SUBJECTS)) as pool:
        asked = [f"{subject} question {number}" for number in numbers for subject in SUBJECTS]
        return [one for one in pool.map(lambda prompt: ask(url, prompt), asked) if one]


def test_prompts_with_a_common_beginning_go_to_the_same_worker_and_both_workers_get_some(
    door: str, workers: list[Worker]
) -> None:
    # A new beginning goes to the worker with the fewest running requests.
    assert ask_all(door, range(10)) == []
    found = [Counter(p.partition(" question ")[0] for p in worker.prompts) for worker in workers]
    print(f"prompts by worker and subject: {[sorted(one.values()) for one in found]}")
    assert set(found[0]).isdisjoint(found[1])
    assert all(found)
    assert sum(found[0].values()) + sum(found[1].values()) == 10 * len(SUBJECTS)


@pytest.mark.parametrize("fault", ["503", "closed"])
def test_a_worker_that_fails_costs_no_request(door: str, workers: list[Worker], fault: str) -> None:
    assert ask_all(door, range(1)) == []
    broken, other = sorted(workers, key=lambda worker: -len(worker.prompts))
    answered = len(other.prompts)
    broken.fault = fault
    failed = ask_all(door, range(1, 11))
    print(f"the broken worker refused {broken.faults} times; {len(other.prompts) - answered} of 40 answered elsewhere")
    assert failed == []
    # Without a request to the broken worker, nothing was tried again. After three the circuit breaker spares it.
    assert 0 < broken.faults < 40
    assert len(other.prompts) - answered == 40


def test_a_worker_that_hangs_costs_no_request_and_the_other_one_goes_on(door: str, workers: list[Worker]) -> None:
    """The supervisor of a group ends a head that hangs; until then its connections stay open without an answer."""
    assert ask_all(door, range(1)) == []
    stuck, other = sorted(workers, key=lambda worker: -len(worker.prompts))
    answered = len(other.prompts)
    stuck.fault = "hangs"
    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(ask, door, f"{SUBJECTS[n % 4]} question {n}") for n in range(40)]
        time.sleep(15)
        held = sum(not one.done() for one in asked)
        stuck.mended.set()
        failed = [said for one in asked if (said := one.result())]
    print(f"{held} of 40 requests waited for the worker that hung")
    assert failed == []
    # The gateway sends a prompt elsewhere when one worker has over four running requests more than the other.
    assert 0 < held <= 10
    assert len(other.prompts) - answered == 40
