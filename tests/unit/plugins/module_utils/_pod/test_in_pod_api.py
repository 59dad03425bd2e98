# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the requests of a program in a pod, and what it makes of the answers."""

import io
import json
import ssl
import urllib.request
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pod.api import InPodApi, Json, timestamp

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
