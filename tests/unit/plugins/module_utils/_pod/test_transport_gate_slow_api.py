# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that an API server that is slow, mute or broken leaves a healthy group in service, with up to 64 ranks."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pod import sidecar
from ansible_collections.gb10.cluster.plugins.module_utils._pod.evidence import NcclFiles
from ansible_collections.gb10.cluster.plugins.module_utils._pod.watch import PodApi
from gate_rank import Rank

SLOW, MUTE = 0.05, 30.0


class Api(BaseHTTPRequestHandler):
    """An API server with the fault of its class."""

    fault = "none"
    source: Any = None
    ended = threading.Event()

    def do_GET(self) -> None:
        """Show a proven pod, unless there is a fault."""
        if self.fault == "reset":
            self.connection.close()
            return
        if self.fault in ("hang", "slow"):
            self.ended.wait(SLOW if self.fault == "slow" else MUTE)
        body = json.dumps(self.source.pod("g-1-0")).encode()
        self.send_response(500 if self.fault == "error" else 200)
        # Half an answer: its length announces more.
        self.send_header("Content-Length", str(len(body) * (2 if self.fault == "half" else 1)))
        self.end_headers()
        self.wfile.write(body)

    def do_PATCH(self) -> None:
        """Take a condition."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.source.written.append(json.loads(body)["status"]["conditions"][0]["reason"])
        self.do_GET()

    do_POST = do_GET

    def log_message(self, *_words: Any) -> None:
        """Write nothing."""


class Server(ThreadingHTTPServer):
    """Accepts all requests of a round at once, and does not wait for those that hang."""

    daemon_threads, block_on_close, request_queue_size = True, False, 64

    def handle_error(self, *_request: Any) -> None:
        """Write nothing: a client that gives up closes its connection."""


@contextmanager
def api_server(rank: Rank) -> Iterator[tuple[type[Api], str]]:
    handler = type("Handler", (Api,), {"source": rank.api, "ended": threading.Event()})
    rank.api.written = []  # type: ignore[attr-defined]
    with Server(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield handler, f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            handler.ended.set()
            server.shutdown()


class Judge:
    """Judges with a watch. What needs no answer of the API server does not wait for one, however slow it is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.callers: set[int] = set()
        call = PodApi.call

        def noted(api: PodApi, *words: Any) -> Any:
            self.callers.add(threading.get_ident())
            return call(api, *words)

        monkeypatch.setattr(PodApi, "call", noted)

    def step(self, watch: sidecar.Watch, now: float) -> None:
        self.callers.discard(threading.get_ident())
        watch.step(now)
        assert threading.get_ident() not in self.callers


@pytest.mark.parametrize("ranks", [2, 5, 8, 64])
@pytest.mark.parametrize(
    ("fault", "tells"),
    [("slow", True), ("hang", False), ("reset", False), ("error", False), ("half", False), ("refuse", False)],
)
def test_a_group_that_serves_leaves_the_service_only_on_evidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, tells: bool, ranks: int
) -> None:
    """``tells`` is whether the API server shows during its fault that the other ranks have lost their proof."""
    rank, judge = Rank(tmp_path, monkeypatch), Judge(monkeypatch)
    rank.nccl("1")
    pods = tuple(f"g-{number}-0" for number in range(ranks))
    monkeypatch.setattr("ssl.create_default_context", lambda **_options: None)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    (tmp_path / "token").write_text("t")
    with api_server(rank) as (handler, address):
        api = PodApi(tmp_path, "s", "g-0-0", "u")
        api._server, api._timeout = address, 30.0
        watch = sidecar.Watch(replace(rank.watch.gate, pods=pods), NcclFiles(rank.logs), api)
        watch.ask(0)
        watch.step(0)
        assert not watch.unsaid
        watch.publish(0)
        assert (rank.api.written[-1], watch.unsaid) == ("Proven", False)  # type: ignore[attr-defined]
        handler.fault = fault
        if fault == "refuse":
            api._server = "http://127.0.0.1:9"
        if fault == "hang":
            api._timeout = 0.1
        rank.api.proven = "True" if tells else "False"
        asking = threading.Thread(target=_tried, args=(watch.ask,))
        asking.start()
        for look in range(1, 4):
            judge.step(watch, 20.0 * look)
            assert (watch.unsaid, _proven(watch)) == (False, True)
        asking.join(30)
        assert not asking.is_alive()
        assert set(watch._others.values()) == {""}
        # Once the API server says it, the proof that the others have lost counts, and so does what this rank sees.
        handler.fault, api._server, rank.api.proven = "slow" if tells else "none", address, "False"
        api._timeout = 30.0
        watch.ask(0)
        judge.step(watch, 80.0)
        assert (watch.unsaid, _proven(watch), set(watch._others.values())) == (True, False, {"TCP"})
        rank.nccl("1", net="Socket")
        judge.step(watch, 100.0)
        assert (watch.unsaid, watch._wanted and watch._wanted[1].reason) == (True, "WrongTransport")


def _proven(watch: sidecar.Watch) -> bool:
    return 'gb10_transport_proven{instance="g",rank="0"} 1' in watch.text


def _tried(ask: Callable[[float], None]) -> None:
    try:
        ask(0)
    except (OSError, HTTPException, ValueError):
        return
