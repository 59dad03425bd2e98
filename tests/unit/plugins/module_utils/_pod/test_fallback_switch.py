# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the switch with an API that keeps objects as Kubernetes does, and its requests."""

import io
import json
import ssl
import sys
import urllib.request
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pod import fallback
from ansible_collections.gb10.cluster.plugins.module_utils._pod.fallback import Settings, Status

SETTINGS = {
    "instance": "g",
    "namespace": "s",
    "metrics_port": 0,
    "after": 100,
    "return_after": 50,
    "choices": [
        {"name": "main", "preset": "two", "nodes": ["a", "b"], "sets": ["g-0", "g-1"]},
        {"name": "f1", "preset": "one", "nodes": ["b"], "sets": ["g-f1-0"]},
        {"name": "f2", "preset": "one", "nodes": ["a"], "sets": ["g-f2-0"]},
    ],
}
STARTED = 1795435200.0


def refused(code: int) -> HTTPError:
    return HTTPError("https://api", code, "refused", Message(), None)


class Cluster:
    """Objects by path, the requests, and the clock."""

    def __init__(self) -> None:
        self.now = STARTED
        self.since = dict.fromkeys("ab", STARTED - 1000)
        self.ready = dict.fromkeys("ab", "True")
        self.replicas = {"g-0": 1, "g-1": 1, "g-f1-0": 0, "g-f2-0": 0}
        self.pods = {"g-0-0", "g-1-0"}
        self.stuck: set[str] = set()
        self.status, self.version = "", 1
        self.asked: list[tuple[str, str, str, Any]] = []
        self.away: list[Exception] = []

    def open(self, request: urllib.request.Request, timeout: float) -> Any:
        assert timeout > 0
        assert request.get_header("Authorization") == "Bearer t0ken"
        body = json.loads(request.data) if isinstance(request.data, bytes) else None
        path = request.full_url.partition("6443")[2]
        self.asked.append((request.get_method(), path, request.get_header("Content-type") or "", body))
        for error in self.away:
            raise error
        answer = io.BytesIO(json.dumps(self.answer(request.get_method(), path, body)).encode())
        answer.headers = {"Date": self.date()}  # type: ignore[attr-defined]
        return answer

    def date(self) -> str:
        return fallback.time.strftime("%a, %d %b %Y %H:%M:%S GMT", fallback.time.gmtime(self.now))

    def answer(self, method: str, path: str, body: Any) -> Any:
        *_unused, kind, name = path.removesuffix("/scale").split("/")
        if name == "nodes":
            return {"items": [self.node(one) for one in self.ready]}
        if path.endswith("/scale"):
            if name not in self.replicas:
                raise refused(404)
            if method == "PATCH":
                self.replicas[name] = body["spec"]["replicas"]
            return {"spec": {"replicas": self.replicas[name]} if self.replicas[name] else {}}
        if kind == "pods":
            if name not in self.pods:
                raise refused(404)
            if method == "DELETE" and name not in self.stuck:
                self.pods.discard(name)
            return {}
        if kind == "configmaps":
            if method == "PATCH":
                if body["metadata"]["resourceVersion"] != str(self.version):
                    raise refused(409)
                self.status, self.version = body["data"]["status"], self.version + 1
            data = {"data": {"status": self.status}} if self.status else {}
            return {"metadata": {"resourceVersion": str(self.version)}, **data}
        assert name == "events"
        return {}

    def node(self, name: str) -> dict[str, Any]:
        stamp = fallback.time.strftime("%Y-%m-%dT%H:%M:%SZ", fallback.time.gmtime(self.since[name]))
        ready = {"type": "Ready", "status": self.ready[name], "lastTransitionTime": stamp}
        labels = {"kubernetes.io/hostname": name}
        return {"metadata": {"name": f"node-{name}", "labels": labels}, "status": {"conditions": [ready]}}

    def becomes(self, name: str, ready: str) -> None:
        self.ready[name], self.since[name] = ready, self.now

    def events(self) -> list[tuple[str, str]]:
        bodies = [body for method, path, _kind, body in self.asked if method == "POST" and path.endswith("/events")]
        return [(body["type"], body["reason"]) for body in bodies]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def client(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> fallback.SwitchApi:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    (tmp_path / "token").write_text("t0ken\n")
    monkeypatch.setattr(ssl, "create_default_context", lambda cafile: None)
    made = fallback.SwitchApi("s", "g", tmp_path)
    monkeypatch.setattr(made, "_opener", cluster)
    return made


def settings() -> Settings:
    return Settings.parse(json.dumps(SETTINGS))


def test_a_lost_node_is_replaced_step_by_step_and_told_once(cluster: Cluster, client: fallback.SwitchApi) -> None:
    assert fallback.step(settings(), client).reason == "Planned"
    cluster.becomes("a", "Unknown")
    cluster.stuck.add("g-0-0")
    cluster.now += 99
    assert fallback.step(settings(), client).serving == "main"
    cluster.now += 1
    status = fallback.step(settings(), client)
    assert (status.serving, status.since) == ("f1", STARTED + 100)
    assert cluster.replicas == {"g-0": 0, "g-1": 0, "g-f1-0": 0, "g-f2-0": 0}
    assert cluster.pods == {"g-0-0"}
    fallback.step(settings(), client)
    assert cluster.replicas["g-f1-0"] == 1
    assert fallback.step(settings(), client).settled
    cluster.becomes("a", "True")
    cluster.stuck.clear()
    cluster.pods = {"g-f1-0-0"}
    cluster.now += 50
    for _turn in range(3):
        status = fallback.step(settings(), client)
    assert (status.serving, status.settled) == ("main", True)
    assert cluster.replicas == {"g-0": 1, "g-1": 1, "g-f1-0": 0, "g-f2-0": 0}
    ends = [(path.rpartition("/")[2], body) for method, path, _kind, body in cluster.asked if method == "DELETE"]
    patience = {name: body["gracePeriodSeconds"] for name, body in ends}
    assert patience == {"g-0-0": 2, "g-1-0": 2, "g-f1-0-0": 10}
    assert cluster.events() == [("Warning", "FallbackNodeLost"), ("Normal", "FallbackNodesReturned")]


def test_it_writes_only_what_changed(cluster: Cluster, client: fallback.SwitchApi) -> None:
    for _turn in range(3):
        fallback.step(settings(), client)
    assert [(method, kind) for method, _path, kind, _body in cluster.asked if method != "GET"] == [
        ("PATCH", "application/merge-patch+json")
    ]


def test_a_second_switch_is_refused_before_it_acts(cluster: Cluster, client: fallback.SwitchApi) -> None:
    fallback.step(settings(), client)
    cluster.becomes("a", "Unknown")
    cluster.now += 100
    answer = cluster.answer

    def other_writes(method: str, path: str, body: Any) -> Any:
        if path == "/api/v1/nodes":
            cluster.version += 1
        return answer(method, path, body)

    cluster.answer = other_writes  # type: ignore[method-assign]
    with pytest.raises(HTTPError, match="409"):
        fallback.step(settings(), client)
    assert cluster.replicas["g-0"] == 1


def test_a_stopped_group_is_no_error(cluster: Cluster, client: fallback.SwitchApi) -> None:
    cluster.replicas.clear()
    cluster.pods.clear()
    cluster.becomes("a", "False")
    cluster.now += 100
    assert fallback.step(settings(), client).serving == "f1"
    assert cluster.replicas == {}


def test_a_pod_is_asked_for_only_before_something_starts(cluster: Cluster, client: fallback.SwitchApi) -> None:
    for turn, asked in enumerate((0, 0, 1, 0)):
        if turn == 1:
            cluster.becomes("a", "Unknown")
            cluster.now += 100
        cluster.asked.clear()
        fallback.step(settings(), client)
        paths = [path for method, path, *_more in cluster.asked if method == "GET" and "/pods/" in path]
        assert len(paths) == asked, paths
    assert cluster.replicas["g-f1-0"] == 1


def test_a_preset_that_stops_is_looked_at_every_second(monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []

    class Known:
        def __init__(self, *_given: object) -> None: ...

    def rest(seconds: float) -> None:
        paused.append(seconds)
        if len(paused) == 2:
            raise SystemExit(0)

    given = iter([Status("f1", "NodeLost", settled=False), Status("f1", "NodeLost")])
    monkeypatch.setattr(fallback, "SwitchApi", Known)
    monkeypatch.setattr(fallback, "step", lambda *_given: next(given))
    monkeypatch.setattr(fallback.signal, "signal", lambda *_given: None)
    monkeypatch.setattr(fallback, "serve_pages", lambda *_given: None)
    monkeypatch.setattr(fallback.time, "sleep", rest)
    monkeypatch.setattr(sys, "argv", ["switch", "--settings", json.dumps(SETTINGS)])
    with pytest.raises(SystemExit):
        fallback.main()
    assert paused == [1, 5]


def test_an_error_of_the_api_is_not_an_absence(cluster: Cluster, client: fallback.SwitchApi) -> None:
    cluster.away = [refused(500)]
    with pytest.raises(HTTPError, match="500"):
        client.replicas("g-0")
    with pytest.raises(HTTPError, match="500"):
        client.has_pod("g-0")


@pytest.mark.parametrize(
    ("status", "serving", "preset", "impossible"),
    [
        (Status(), 0, "two", 0),
        (Status("f1", "NodeLost"), 1, "one", 0),
        (Status(reason="NoFallbackFits"), 0, "two", 1),
    ],
)
def test_the_metrics_say_what_serves(status: Status, serving: int, preset: str, impossible: int) -> None:
    assert fallback.metrics(settings(), status).splitlines() == [
        "# TYPE gb10_fallback_serving gauge",
        f'gb10_fallback_serving{{group="g",preset="{preset}"}} {serving}',
        "# TYPE gb10_fallback_impossible gauge",
        f'gb10_fallback_impossible{{group="g"}} {impossible}',
    ]


def test_old_metrics_are_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    page, now = fallback.Page(), 100.0
    monkeypatch.setattr(fallback.time, "monotonic", lambda: now)
    assert page.read("/metrics")[0] == 503
    page.write("a 1\n")
    assert page.read("/metrics") == (200, "a 1\n")
    assert page.read("/other")[0] == 404
    now += 60
    # An API that does not answer is no reason to restart the program.
    assert (page.read("/metrics")[0], page.read("/live")[0]) == (503, 200)


def test_the_program_survives_every_failure_of_the_api_and_ends_when_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failures = iter([refused(409), refused(403), OSError("no route"), ValueError("no JSON"), SystemExit(0)])

    class Away:
        def __init__(self, *_given: object) -> None: ...

    def fail(*_given: object) -> Status:
        raise next(failures)

    monkeypatch.setattr(fallback, "SwitchApi", Away)
    monkeypatch.setattr(fallback, "step", fail)
    monkeypatch.setattr(fallback.signal, "signal", lambda *_given: None)
    monkeypatch.setattr(fallback, "serve_pages", lambda *_given: None)
    arguments = ["switch", "--interval", "0", "--settings", json.dumps(SETTINGS)]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit):
        fallback.main()
    said = capsys.readouterr().out
    for text in ("watching a, b", "another switch has written", "HTTP Error 403", "no route", "no JSON"):
        assert text in said
