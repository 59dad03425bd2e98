# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what a program in a pod starts with, its requests and what it makes of the answers, its pages and its log."""

import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from http.client import HTTPConnection
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host.system import package_files
from ansible_collections.gb10.cluster.plugins.module_utils._pod.api import (
    InPodApi,
    Pulse,
    say,
    serve_pages,
    timestamp,
)
from gate_rank import Server


def test_a_request_has_the_newest_token_its_body_and_its_media_type(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = InPodApi("s", 7, tmp_path)
    assert (server.trusted, client.now) == ({"cafile": str(tmp_path / "ca.crt")}, 0)
    server.answer = lambda _path: b'{"kind": "Pod"}'
    assert client.call("GET", client.core("pods/g-0-0")) == {"kind": "Pod"}
    (tmp_path / "token").write_text("second\n")
    client.call("PATCH", "/apis/x/namespaces/s/y", {"a": 1}, "application/merge-patch+json")
    assert server.asked == ["GET pods/g-0-0", 'PATCH y application/merge-patch+json {"a": 1}']
    assert server.requests[0].full_url == "https://[fd00::1]:6443/api/v1/namespaces/s/pods/g-0-0"
    assert [one.get_header("Authorization") for one in server.requests] == ["Bearer first", "Bearer second"]
    assert set(server.timeouts) == {7}
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.43.0.1")
    InPodApi("s", 7, tmp_path).call("GET", "/x")
    assert server.requests[2].full_url == "https://10.43.0.1:6443/x"
    # The clock is the API server's.
    assert timestamp(client.now) == "2026-11-22T12:00:00Z"


@pytest.mark.parametrize("code", [404, 403, 500])
def test_only_a_missing_object_is_an_absence(code: int, server: Server, tmp_path: Path) -> None:
    def refuse(_path: str) -> bytes:
        raise HTTPError("https://api", code, "refused", Message(), None)

    server.answer = refuse
    client = InPodApi("s", 7, tmp_path)
    if code == 404:
        assert client.find("GET", "/x") is None
    else:
        with pytest.raises(HTTPError, match=str(code)):
            client.find("GET", "/x")


@contextmanager
def served(page: Callable[[str], tuple[int, str]]) -> Iterator[ThreadingHTTPServer]:
    server = serve_pages(0, page)
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def test_a_page_answers_with_its_status_and_text_and_logs_nothing(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(lambda path: (200, "a 1\n") if path == "/metrics" else (503, "")) as server:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
            assert (answer.read(), answer.headers["Content-Type"]) == (b"a 1\n", "text/plain; version=0.0.4")
        with pytest.raises(HTTPError, match="503"):
            urllib.request.urlopen(f"{url}/live", timeout=5)
        # A client that asks nothing is sent away.
        handler: Any = server.RequestHandlerClass
        monkeypatch.setattr(handler, "timeout", handler.timeout / 100)
        with socket.create_connection(server.server_address, timeout=60) as idle:  # type: ignore[arg-type]
            assert idle.recv(1) == b""
    assert capfd.readouterr() == ("", "")


def test_a_page_is_for_the_pods_own_network_and_the_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GB10_POD_IPS", "127.0.0.2,fd00::2")
    asked = []
    with served(lambda _path: (200, "")) as server:
        for client, to in (("127.0.0.4", "127.0.0.2"), ("127.0.0.4", "127.0.0.3"), ("127.0.0.3", "127.0.0.3")):
            connection = HTTPConnection(to, server.server_address[1], timeout=5, source_address=(client, 0))
            connection.request("GET", "/metrics")
            asked.append(connection.getresponse().status)
    assert asked == [200, 403, 200]


def test_a_line_of_the_log_has_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    say("ready")
    assert re.fullmatch(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] ready\n", capsys.readouterr().out)


def test_the_pulse_stops_when_no_round_has_ended_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pulse = Pulse()
    now += Pulse.MOST_SECONDS - 1
    assert (pulse.read("/live")[0], pulse.read("/other")[0]) == (200, 404)
    now += 1
    assert pulse.read("/live")[0] == 503
    pulse.beat()
    assert pulse.read("/live")[0] == 200


@pytest.mark.parametrize(
    ("program", "option"), [("_pod.fallback", "--settings"), ("_pod.supervise", "--first-step-timeout")]
)
def test_a_program_starts_with_what_it_ships(program: str, option: str, tmp_path: Path) -> None:
    for path, source in package_files(program, tmp_path).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    command = [sys.executable, "-m", f"gb10.{program}", "--help"]
    done = subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    assert option in done.stdout
