# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test what a program in a pod starts with, its requests and what it makes of the answers, its pages and its log."""

import io
import json
import re
import ssl
import subprocess
import sys
import time
import urllib.request
from email.message import Message
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host.system import package_files
from ansible_collections.gb10.cluster.plugins.module_utils._pod.api import (
    InPodApi,
    Json,
    Pulse,
    say,
    serve_pages,
    timestamp,
)

DATE, SECONDS = "Sun, 22 Nov 2026 12:00:00 GMT", 1795348800.0


class Server:
    """Records requests, and gives one answer to all of them."""

    def __init__(self) -> None:
        self.asked: list[urllib.request.Request] = []
        self.answer = b"{}"
        self.refusals: list[HTTPError] = []

    def open(self, request: urllib.request.Request, timeout: float) -> Any:
        assert timeout == 7
        self.asked.append(request)
        for refusal in self.refusals:
            raise refusal
        body = io.BytesIO(self.answer)
        body.headers = {"Date": DATE}  # type: ignore[attr-defined]
        return body


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def client(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InPodApi:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.43.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    trusted: dict[str, str] = {}
    monkeypatch.setattr(ssl, "create_default_context", trusted.update)
    (tmp_path / "token").write_text("first\n")
    made = InPodApi("s", 7, tmp_path)
    assert trusted == {"cafile": str(tmp_path / "ca.crt")}
    monkeypatch.setattr(made, "_opener", server)
    return made


def test_a_request_has_the_newest_token_its_body_and_its_media_type(
    server: Server, client: InPodApi, tmp_path: Path
) -> None:
    server.answer = b'{"kind": "Pod"}'
    assert client.call("GET", client.core("pods/g-0-0")) == {"kind": "Pod"}
    (tmp_path / "token").write_text("second\n")
    client.call("PATCH", "/apis/x", {"a": 1}, "application/merge-patch+json")
    first, second = server.asked
    assert first.full_url == "https://10.43.0.1:443/api/v1/namespaces/s/pods/g-0-0"
    assert first.data is None
    assert (second.get_method(), second.data) == ("PATCH", b'{"a": 1}')
    assert second.get_header("Content-type") == "application/merge-patch+json"
    assert [one.get_header("Authorization") for one in server.asked] == ["Bearer first", "Bearer second"]


def test_the_clock_is_the_api_server_s(client: InPodApi) -> None:
    assert client.now == 0
    client.call("GET", "/")
    assert client.now == SECONDS
    assert timestamp(SECONDS) == "2026-11-22T12:00:00Z"


@pytest.mark.parametrize(("code", "answer"), [(404, None), (403, HTTPError), (500, HTTPError)])
def test_only_a_missing_object_is_an_absence(
    code: int, answer: type[HTTPError] | None, server: Server, client: InPodApi
) -> None:
    server.refusals = [HTTPError("https://api", code, "refused", Message(), None)]
    if answer is None:
        assert client.find("GET", "/x") is None
    else:
        with pytest.raises(answer, match=str(code)):
            client.find("GET", "/x")


@pytest.mark.parametrize("warning", [True, False])
def test_an_event_is_about_its_object_and_has_a_message_that_the_api_accepts(
    warning: bool, server: Server, client: InPodApi
) -> None:
    about: Json = {"apiVersion": "v1", "kind": "Service", "name": "g", "namespace": "s"}
    client.record_event(about, "NodeLost", "x" * 2000, warning, "gb10.cluster/fallback")
    (asked,) = server.asked
    assert (asked.get_method(), asked.full_url.partition("/namespaces/")[2]) == ("POST", "s/events")
    assert isinstance(asked.data, bytes)
    event = json.loads(asked.data)
    assert event["metadata"]["generateName"] == "g-fallback-"
    assert event["involvedObject"] == about
    assert (event["type"], event["reason"]) == ("Warning" if warning else "Normal", "NodeLost")
    assert event["message"] == "x" * 1000


def test_a_page_answers_with_its_status_and_text_and_logs_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    server = serve_pages(0, lambda path: (200, "a 1\n") if path == "/metrics" else (503, ""))
    url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
            assert (answer.read(), answer.headers["Content-Type"]) == (b"a 1\n", "text/plain; version=0.0.4")
        with pytest.raises(HTTPError, match="503"):
            urllib.request.urlopen(f"{url}/live", timeout=5)
    finally:
        server.shutdown()
        server.server_close()
    assert capfd.readouterr() == ("", "")


def test_a_page_is_for_the_pods_own_network_and_the_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GB10_POD_IPS", "127.0.0.2,fd00::2")
    server = serve_pages(0, lambda _path: (200, ""))
    asked = {}
    try:
        for client, to in (("127.0.0.4", "127.0.0.2"), ("127.0.0.4", "127.0.0.3"), ("127.0.0.3", "127.0.0.3")):
            connection = HTTPConnection(to, server.server_address[1], timeout=5, source_address=(client, 0))
            connection.request("GET", "/metrics")
            asked[client, to] = connection.getresponse().status
    finally:
        server.shutdown()
        server.server_close()
    assert list(asked.values()) == [200, 403, 200]


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
    ("program", "option"),
    [
        ("_pod.fallback", "--settings"),
        ("_pod.supervise", "--first-step-timeout"),
        ("_pod.sidecar", "--nccl-logs"),
    ],
)
def test_a_program_starts_with_what_it_ships(program: str, option: str, tmp_path: Path) -> None:
    for path, source in package_files(program, tmp_path).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    command = [sys.executable, "-m", f"gb10.{program}", "--help"]
    done = subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    assert option in done.stdout
