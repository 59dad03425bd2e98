# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what the action reads from the server, and when it refuses to measure."""

import asyncio
import json
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from action_runs import acted
from ansible_collections.gb10.cluster.plugins.action import load_cell
from test_sweep_actions import play

ANSWER = (
    "A hash table keeps its entries in an array whose length grows with their number. When three quarters of the "
    "places are taken it makes a new array of twice the length and moves every entry there, so that a lookup stays "
    "short. Each move is dear, but it comes so seldom that its cost, spread over all insertions, is a constant."
)


class Server(BaseHTTPRequestHandler):
    """A simulated SGLang: its metrics show 2.5 accepted tokens per step with 4 draft tokens."""

    running = 0
    tokens = 0
    info: ClassVar[dict[str, Any]] = {"speculative_num_draft_tokens": 4, "device": "cpu"}

    def answer(self, body: str) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body.encode())

    def do_GET(self) -> None:
        if self.path == "/server_info":
            return self.answer(json.dumps(self.info))
        made = type(self).tokens
        return self.answer(
            f"sglang:num_running_reqs {type(self).running}\n"
            f"sglang:generation_tokens_total {made}\nsglang:spec_verify_calls_total {made / 2.5}\n"
        )

    def do_POST(self) -> None:
        limit = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["max_tokens"]
        words = ANSWER.split(" ")[:limit]
        type(self).tokens += len(words)
        events: list[dict[str, Any]] = [{"choices": [{"delta": {"content": f"{word} "}}]} for word in words]
        end = {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"completion_tokens": len(words)}}
        self.answer("")
        for event in [*events, end]:
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            time.sleep(0.002)
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_unused: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def server() -> Iterator[tuple[type[Server], str]]:
    kind = type("Server", (Server,), {})
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True).start()
    yield kind, f"http://127.0.0.1:{httpd.server_port}"
    httpd.shutdown()
    httpd.server_close()


def cell(url: str, **more: Any) -> dict[str, Any]:
    workloads = [{"concurrency": 1, "max_tokens": 60}]
    options = {"url": url, "model": "m", "strict": False, "idle_timeout": 0, "workloads": workloads}
    return {"gb10.cluster.load_cell": options | more}


def test_the_accept_rate_follows_from_the_draft_tokens_that_the_server_names(server: tuple[type[Server], str]) -> None:
    (answer,) = acted(cell(server[1]))
    (measured,) = answer["cells"]
    assert measured["status"] == "ok", measured
    assert measured["accept_length"]["mean"] == pytest.approx(2.5)
    assert measured["runs"][0]["server"]["accept_rate"] == pytest.approx(0.5)
    assert (measured["accept_length_source"], measured["tokens_counted_by"]) == ("counters", ["server"])


def test_a_server_is_not_measured_that_serves_other_requests(server: tuple[type[Server], str]) -> None:
    kind, url = server
    kind.running = 3
    (answer,) = acted(cell(url))
    assert [c["status"] for c in answer["cells"]] == ["shared"]
    assert "already runs 3 requests" in answer["msg"]


def test_a_server_that_embeds_has_no_tokens_to_measure(server: tuple[type[Server], str]) -> None:
    kind, url = server
    kind.info = {"is_embedding": True}
    (answer,) = acted(cell(url))
    assert answer["failed"]
    assert "generates no tokens to measure" in answer["msg"]


def test_the_figures_of_one_server_are_kept_as_a_sweep_of_one_cell(
    server: tuple[type[Server], str], tmp_path: Path
) -> None:
    work = [{"concurrency": 1, "max_tokens": 60}]
    role = {"name": "gb10.cluster.bench"}
    own = {"bench_url": server[1], "bench_model": "m", "bench_workloads": work, "bench_results_dir": str(tmp_path)}
    journal = tmp_path / "bench-127-0-0-1.jsonl"
    both = {"before": str(journal), "after": str(journal)}
    play(tmp_path, *[{"include_role": role, "vars": own}] * 2, {"gb10.cluster.bench_compare": both})
    planned, *ended = [json.loads(line) for line in journal.read_text().splitlines()]
    assert (planned["kind"], [r["kind"] for r in ended]) == ("plan", ["result", "result"])
    assert ended[0]["environment"] == {"server": {"speculative_num_draft_tokens": 4, "device": "cpu"}}
    report = {"journals": [str(journal)], "dest": str(tmp_path / "report")}
    made, same = acted({"gb10.cluster.bench_report": report}, {"gb10.cluster.bench_compare": both})
    assert made["changed"] and {row["verdict"] for row in same["rows"]} == {"same"}


def test_what_prevents_a_measurement_is_named() -> None:
    nowhere = "http://127.0.0.1:9"
    tasks = [
        cell(nowhere, workloads=[{"concurency": 1}]),
        cell(nowhere, workloads=[{"concurrency": 1}, {"concurrency": 0, "repetitions": -1}]),
        cell(nowhere, model=""),
        cell(nowhere),
        cell(nowhere, metrics=False, strict=True),
        cell(nowhere) | {"check_mode": True},
    ]
    wrong, idle, silent, metrics, refused, checked = acted(*tasks)
    assert "concurrency found in workloads" in wrong["msg"]
    assert "concurrency of workload 2 is 0; repetitions of workload 2 is -1, so nothing" in idle["msg"]
    assert "Correct bench_url, or name the model with bench_model" in silent["msg"]
    assert metrics["cells"][0]["status"] == "infrastructure" and "--enable-metrics" in metrics["msg"]
    assert (refused["failed"], refused["cells"][0]["status"]) == (True, "infrastructure")
    assert (checked["skipped"], checked["msg"]) == (True, "1 cells would be measured")


def test_a_silent_measurement_is_seen_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> dict[str, Any]:
        while len(lines) < 2:
            await asyncio.sleep(0)
        return {"status": "ok"}

    lines: list[str] = []
    monkeypatch.setattr(load_cell, "QUIET_SECONDS", 1)
    monkeypatch.setattr(load_cell, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(load_cell, "time", SimpleNamespace(monotonic=count(0, 0.5).__next__))
    assert asyncio.run(load_cell.while_wanted(work(), lines.append)) == {"status": "ok"}
    assert lines == ["1 s so far", "2 s so far"]


def test_a_measurement_ends_with_the_playbook(monkeypatch: pytest.MonkeyPatch) -> None:
    parents = iter([1, 1])
    monkeypatch.setattr(load_cell, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(os, "getppid", lambda: next(parents, 2))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(load_cell.while_wanted(asyncio.sleep(60, {}), lambda _line: None))
