# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that answers are plain JSON and that every failure is one message with a reason and a remedy."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

import kubernetes
import pytest
import urllib3
from ansible_collections.gb10.cluster.plugins.module_utils._kube import client
from ansible_collections.gb10.cluster.plugins.module_utils._kube.client import Cluster, ClusterError
from ansible_collections.gb10.cluster.plugins.module_utils._kube.pod_logs import find_containers
from kube_samples import FakeApi, pod


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
        (refused(0, "Handshake status 404 Not Found -+-+- {} -+-+- b'secret'"), 404, "(404: Not Found). Check that it"),
        (refused(0, "certificate verify failed\nsecret"), 0, "(certificate verify failed). The kubeconfig is of"),
        (ssl.SSLCertVerificationError("certificate verify failed"), 0, "playbook kubernetes writes it again"),
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
    assert api.asked[0] == {"pod": "a", "container": "sglang", "tail_lines": 2, "previous": False}


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


def refusing(status: int) -> Any:
    def call(*_words: Any, **_options: Any) -> None:
        raise kubernetes.client.ApiException(status=status, reason="because")

    return call


def test_a_pod_that_exists_or_is_gone_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeApi()
    api.install(monkeypatch)
    cluster, pod = Cluster(None, None), {"metadata": {"name": "a"}}
    for name, call in (("create_namespaced_pod", cluster.create_pod), ("delete_namespaced_pod", cluster.delete_pod)):
        monkeypatch.setattr(api, name, refusing(409 if "create" in name else 404), raising=False)
        call("ns", pod if "create" in name else "a")  # type: ignore[operator]
        monkeypatch.setattr(api, name, refusing(403), raising=False)
        with pytest.raises(ClusterError, match="403: because"):
            call("ns", pod if "create" in name else "a")  # type: ignore[operator]


def test_data_of_a_config_map_that_does_not_exist_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    api, made = FakeApi(), []
    api.install(monkeypatch)
    monkeypatch.setattr(api, "patch_namespaced_config_map", refusing(404), raising=False)
    monkeypatch.setattr(
        api, "create_namespaced_config_map", lambda _namespace, body, **_options: made.append(body), raising=False
    )
    cluster = Cluster(None, None)
    assert cluster.config_map("ns", "c") == {}
    cluster.add_to_config_map("ns", "c", {"image": "sha256:1"})
    assert made == [{"metadata": {"name": "c"}, "data": {"image": "sha256:1"}}]
