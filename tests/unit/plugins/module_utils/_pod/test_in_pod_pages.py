# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the pages and the log of a program in a pod."""

import re
import time
import urllib.request
from http.client import HTTPConnection
from urllib.error import HTTPError

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pod.api import Pulse, say, serve_pages


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
