# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that answers are plain JSON and that every failure is one message with a reason and a remedy."""

import json
import ssl
import threading
from pathlib import Path
from typing import Any

import kubernetes
import kubernetes.stream.ws_client
import pytest
import urllib3
from ansible_collections.gb10.cluster.plugins.module_utils._kube import client
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import Cluster, ClusterError
from ansible_collections.gb10.cluster.plugins.module_utils._kube.pod_logs import find_containers, run_in_each
from kube_samples import Channel, FakeApi, pod


def refused(status: int, reason: str) -> kubernetes.client.ApiException:
    error = kubernetes.client.ApiException(status=status, reason=reason)
    error.headers, error.body = {"Authorization": "Bearer secret"}, "secret"
    return error


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (refused(403, "Forbidden"), 403, "(403: Forbidden). Give the kubeconfig's user this permission"),
        (refused(401, "Unauthorized"), 401, "(401: Unauthorized). Renew the credentials"),
        (refused(500, "Internal Server Error"), 500, "(500: Internal Server Error). Look at the log of the API server"),
        (refused(500, "certificate verify failed"), 500, "(500: certificate verify failed). Look at the log"),
        (refused(0, "Handshake status 404 Not Found -+-+- {} -+-+- b'secret'"), 404, "(404: Not Found). Check that it"),
        (refused(0, "certificate verify failed\nsecret"), 0, "(certificate verify failed). The kubeconfig is of"),
        (
            ssl.SSLCertVerificationError("certificate verify failed"),
            0,
            "with K3s of this collection, playbook kubernetes writes it again",
        ),
        (urllib3.exceptions.HTTPError("no route"), 0, "HTTPError: no route. Check that the API server runs"),
        (ConnectionRefusedError("refused"), 0, "ConnectionRefusedError: refused. Check that the API server runs"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_every_failure_has_a_reason_and_a_remedy(
    monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, said: str
) -> None:
    FakeApi(pods=error).install(monkeypatch)
    with pytest.raises(ClusterError) as caught:
        Cluster(None, None).pods("gb10-serving", "a=b")
    assert caught.value.status == status
    assert str(caught.value).startswith(f"can't list the pods of namespace gb10-serving{' ' if '(' in said else ': '}")
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("body", ["[]", "{}", "{", "null", b"\xff"])
def test_an_answer_that_says_nothing_is_no_message(monkeypatch: pytest.MonkeyPatch, body: Any) -> None:
    error = refused(403, "Forbidden")
    error.body = body
    FakeApi(pods=error).install(monkeypatch)
    with pytest.raises(ClusterError, match=r"\(403: Forbidden\)"):
        Cluster(None, None).pods("gb10-serving", "a=b")


def test_a_missing_right_is_named_also_for_a_command_in_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    message = 'pods is forbidden: User "eve" cannot list resource "pods" in API group "" in the namespace "models"'
    body = json.dumps({"kind": "Status", "message": message}).encode()
    plain = kubernetes.client.ApiException(status=403, reason="Forbidden")
    plain.body = body
    socket = kubernetes.client.ApiException(
        status=0, reason=f"Handshake status 403 Forbidden -+-+- {{}} -+-+- {body!r}"
    )
    for error in (plain, socket):
        FakeApi(pods=error).install(monkeypatch)
        with pytest.raises(ClusterError, match=r"403: Forbidden\): .* cannot list resource \"pods\"") as caught:
            Cluster(None, None).pods("models", "a=b")
        assert caught.value.status == 403


def test_a_context_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"can't use context gb10 of kubeconfig .*Check the path and the context"):
        Cluster(str(tmp_path / "config"), "gb10")


def test_the_missing_client_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MISSING", "Failed to import the required Python library (kubernetes)")
    with pytest.raises(ClusterError, match="required Python library"):
        Cluster(None, None)


def test_lists_are_the_plain_json_of_the_api(monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeApi(pods=[pod("a")], nodes=[{"metadata": {"name": "n"}}], events=[{"type": "Warning"}])
    api.install(monkeypatch)
    cluster = Cluster(None, None)
    assert cluster.pods("ns", "x=y") == cluster.all_pods() == [{"apiVersion": "v1", "kind": "Pod"} | pod("a")]
    assert [[item["kind"] for item in found] for found in (cluster.nodes(), cluster.warnings("ns"))] == [
        ["Node"],
        ["Event"],
    ]
    assert api.asked == [{"namespace": "ns", "label_selector": "x=y"}]


def test_a_log_that_the_kubelet_no_longer_has_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeApi(logs={"a": ["one\ntwo\n", "unable to retrieve container logs for containerd://1"]})
    api.install(monkeypatch)
    cluster = Cluster(None, None)
    assert cluster.log_end("ns", "a", "sglang", 2) == ["one", "two"]
    assert cluster.log_end("ns", "a", "sglang", 2, previous=True) == []
    assert api.asked[0] == {"pod": "a", "container": "sglang", "tailLines": 2, "previous": "false"}


def test_a_container_runs_commands_and_opens_files(monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeApi(pods=[pod("b", {"rank": "1"}), pod("a", {"rank": "x"})], command=lambda _pod, _c: (3, "out", "err"))
    api.install(monkeypatch)
    first, second = find_containers(Cluster(None, None), "ns", "x=y", rank_label="rank")
    assert [(c.pod, c.container, c.place) for c in (first, second)] == [("a", "sglang", None), ("b", "sglang", 1)]
    assert first.run(["true"]) == (3, "out", "err")
    with second.open_files("/var/log/nccl.*") as read:
        assert (read(100), read(100)) == (b"out", b"")
    assert api.asked[-1]["command"][-1] == "/var/log/nccl.*"


def test_no_pod_is_an_error_with_the_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeApi().install(monkeypatch)
    with pytest.raises(ClusterError, match="no pod of namespace ns matches x=y, so there is nothing to read"):
        find_containers(Cluster(None, None), "ns", "x=y")


def test_a_pod_that_exists_or_is_gone_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    api, pods = FakeApi(), "/api/v1/namespaces/ns/pods"
    api.install(monkeypatch)
    cluster = Cluster(None, None)
    body = {"metadata": {"name": "a"}}
    for request, status, call in (
        (f"POST {pods}", 409, lambda: cluster.create_pod("ns", body)),
        (f"DELETE {pods}/a", 404, lambda: cluster.delete_pod("ns", "a")),
    ):
        api.objects = {request: refused(status, "because")}
        call()
        api.objects = {request: refused(403, "because")}
        with pytest.raises(ClusterError, match="403: because"):
            call()
    assert api.asked[0] == {"method": "POST", "path": pods, "body": body}


def test_data_of_a_config_map_that_does_not_exist_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    maps, body = "/api/v1/namespaces/ns/configmaps", {"metadata": {"name": "c"}, "data": {"image": "sha256:1"}}
    api = FakeApi(objects={f"PATCH {maps}/c": refused(404, "Not Found")})
    api.install(monkeypatch)
    cluster = Cluster(None, None)
    assert cluster.config_map("ns", "c") == {}
    cluster.add_to_config_map("ns", "c", {"image": "sha256:1"})
    assert api.asked == [
        {"method": "PATCH", "path": f"{maps}/c", "body": body},
        {"method": "POST", "path": maps, "body": body},
    ]


def test_a_command_is_sent_with_the_credentials_of_the_kubeconfig(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text(
        "{clusters: [{name: a, cluster: {server: 'https://[::1]:6443/k8s/a'}}], users: [{name: a, user: {token: t}}],"
        " contexts: [{name: a, context: {cluster: a, user: a}}]}"
    )
    asked: list[tuple[str, Any, Any]] = []

    def websocket_call(_configuration: Any, _method: str, url: str, **options: Any) -> Channel:
        asked.append((url, options["headers"], options["query_params"]))
        return Channel((0, "out", ""))

    monkeypatch.setattr(kubernetes.stream.ws_client, "websocket_call", websocket_call)
    assert Cluster(str(config), "a").run("ns", "p", "sglang", ["echo", "a b"]).stdout == "out"
    [(url, headers, query)] = asked
    assert url == "https://[::1]:6443/k8s/a/api/v1/namespaces/ns/pods/p/exec"
    assert headers == {"authorization": "Bearer t"}
    assert query[:3] == [("container", "sglang"), ("command", "echo"), ("command", "a b")]
    assert dict(query[3:]) == {"stdin": "false", "stdout": "true", "stderr": "true", "tty": "false"}


def test_the_output_of_a_command_is_read_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["one", "two"]

    class Long(Channel):
        def update(self, timeout: float | None = None) -> None:
            del timeout
            self._out = lines.pop(0)
            self._open = bool(lines)

    channel = Long((0, "", ""))
    monkeypatch.setattr(Cluster, "_channel", lambda *_words, **_options: channel)
    FakeApi().install(monkeypatch)
    pieces = Cluster(None, None).stream("ns", "p", "sglang", ["tail"])
    assert (next(pieces), channel.is_open()) == (b"one", True)
    assert list(pieces) == [b"two"]


def test_commands_run_in_all_pods_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2, timeout=5)

    def command(name: str, _command: list[str]) -> tuple[int, str, str]:
        both.wait()
        return 0, name, ""

    FakeApi(pods=[pod("b"), pod("a")], command=command).install(monkeypatch)
    ran = run_in_each(find_containers(Cluster(None, None), "ns", "x=y"), ["true"])
    assert {name: each.stdout for name, each in ran.items()} == {"a": "a", "b": "b"}
