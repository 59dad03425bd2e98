# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the modules that write a kubeconfig and that check whether its cluster answers."""

import json
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import kubernetes
import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gb10.cluster.plugins.modules import api_info, kubeconfig
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from kube_samples import FakeApi

SOURCE = {
    "clusters": [
        {"name": "default", "cluster": {"server": "https://127.0.0.1:6443", "certificate-authority-data": "Q0E="}}
    ],
    "users": [{"name": "default", "user": {"client-certificate-data": "Y3J0", "client-key-data": "c2VjcmV0"}}],
}


def run(module: Any, capsys: pytest.CaptureFixture[str], **arguments: Any) -> tuple[int, dict[str, Any]]:
    with patch_module_args(arguments), pytest.raises(SystemExit) as stop:
        module.main()
    return int(stop.value.code or 0), json.loads(capsys.readouterr().out)


def test_a_cluster_is_added_to_the_file_and_removed_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kube" / "config"
    wanted = {
        "path": str(path),
        "context": "gb10",
        "server": "https://10.0.0.1:6443",
        "content": yaml.safe_dump(SOURCE),
    }
    status, result = run(kubeconfig, capsys, **wanted, _ansible_check_mode=True)
    assert (status, result["changed"], path.exists()) == (0, True, False)
    status, result = run(kubeconfig, capsys, **wanted)
    assert (status, result["changed"], result["diff"]["after"]) == (0, True, "['gb10']\n")
    assert path.stat().st_mode & 0o777 == 0o600
    assert "c2VjcmV0" not in json.dumps(result["diff"])
    assert run(kubeconfig, capsys, **wanted)[1]["changed"] is False
    path.chmod(0o644)
    assert run(kubeconfig, capsys, **wanted)[1]["changed"] is True
    status, result = run(kubeconfig, capsys, path=str(path), context="gb10", state="absent")
    assert (status, result["diff"]["after"]) == (0, "[]\n")


def test_a_file_that_is_no_kubeconfig_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config"
    path.write_text("clusters: 5\n")
    status, result = run(kubeconfig, capsys, path=str(path), context="gb10", state="absent")
    assert (status, path.read_text()) == (1, "clusters: 5\n")
    assert "repair or move the file" in result["msg"]


def wanted(path: Path, context: str = "gb10") -> dict[str, Any]:
    server = "https://10.0.0.1:6443"
    return {"path": str(path), "context": context, "server": server, "content": yaml.safe_dump(SOURCE)}


def test_what_another_program_writes_meanwhile_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As kubectl does: a file beside the kubeconfig says that it is being changed."""
    path, lock = tmp_path / "config", tmp_path / "config.lock"
    lock.touch()

    def other_ends(_seconds: float) -> None:
        lock.unlink()
        assert run(kubeconfig, capsys, **wanted(path, "other"))[1]["diff"]["after"] == "['other']\n"

    monkeypatch.setattr(kubeconfig.time, "sleep", other_ends)
    assert run(kubeconfig, capsys, **wanted(path))[1]["diff"]["after"] == "['other', 'gb10']\n"
    assert [each.name for each in tmp_path.iterdir()] == ["config"]


@pytest.mark.parametrize(("state", "context"), [("present", "other"), ("absent", "gb10")])
def test_a_lock_that_stays_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, state: str, context: str
) -> None:
    path = tmp_path / "config"
    run(kubeconfig, capsys, **wanted(path))
    before = path.read_text()
    (tmp_path / "config.lock").touch()
    monkeypatch.setattr(kubeconfig, "PATIENCE_S", -1)
    status, result = run(kubeconfig, capsys, **wanted(path, context) | {"state": state})
    assert (status, path.read_text()) == (1, before)
    assert f"rm {path}.lock" in result["msg"]
    assert run(kubeconfig, capsys, **wanted(path), _ansible_check_mode=True)[0] == 0


@pytest.mark.parametrize("call", ["mkdir", "read_text", "replace"])
def test_a_file_that_the_user_may_not_write_has_a_remedy(
    call: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "config"
    path.write_text("{}\n")

    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(kubeconfig.Path, call, refuse)
    wanted = {"context": "gb10", "server": "https://10.0.0.1:6443", "content": yaml.safe_dump(SOURCE)}
    status, result = run(kubeconfig, capsys, path=str(path), **wanted)
    assert (status, path.stat().st_size) == (1, 3)
    assert result["msg"].startswith(f"{path}: Permission denied. ")
    assert f"sudo chown $USER {path}, or set gb10_kubeconfig" in result["msg"]


@contextmanager
def tls_server(tmp_path: Path, answer: bytes) -> Iterator[str]:
    """Serve an answer to every request, with a certificate that nobody signed; yield the address."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([])
    now = datetime.now(UTC)
    one_day = timedelta(days=1)
    built = x509.CertificateBuilder(name, name, key.public_key(), 1, now - one_day, now + one_day)
    pem = tmp_path / "server.pem"
    pem.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        + built.sign(key, SHA256()).public_bytes(Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError), context.wrap_socket(self.request, server_side=True) as channel:
                channel.recv(1024)
                channel.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"https://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_an_api_that_answers_is_reachable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config"
    with tls_server(tmp_path, b"HTTP/1.1 401 Unauthorized\r\n\r\n") as address:
        run(kubeconfig, capsys, path=str(path), context="gb10", server=address, content=yaml.safe_dump(SOURCE))
        status, result = run(api_info, capsys, kubeconfig=str(path), context="gb10")
        assert (status, result["reachable"], result["server"]) == (0, True, address)
    status, result = run(api_info, capsys, kubeconfig=str(path), context="gb10")
    assert (status, result["reachable"]) == (1, False)
    assert run(api_info, capsys, kubeconfig=str(path), context="gb10", required=False)[0] == 0
    status, result = run(api_info, capsys, kubeconfig=str(path), context="other")
    assert (status, result["server"]) == (1, "")
    assert "has no context other" in result["msg"]


def test_an_api_that_accepts_connections_and_says_nothing_is_named_in_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config"
    given = {"kubeconfig": str(path), "context": "gb10", "required": False, "timeout": 0.2}
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"https://127.0.0.1:{server.getsockname()[1]}"
        run(kubeconfig, capsys, path=str(path), context="gb10", server=address, content=yaml.safe_dump(SOURCE))
        status, result = run(api_info, capsys, **given, reads=[{"resource": "v1/nodes"}])
        assert (status, result["reachable"], result["found"]) == (0, False, {"nodes": []})
        assert result["msg"].startswith(f"no answer from {address}: ")
    with tls_server(tmp_path, b"") as address:
        run(kubeconfig, capsys, path=str(path), context="gb10", server=address, content=yaml.safe_dump(SOURCE))
        assert run(api_info, capsys, **given)[1]["msg"] == f"no answer from {address}: it closed the connection"


def test_objects_of_several_kinds_are_read_in_one_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [
        {"resource": "apps/v1/statefulsets", "namespace": "models", "labels": ["a=b", "!c"]},
        {"resource": "apps/v1/daemonsets", "namespace": "models"},
        {"resource": "v1/namespaces", "name": "models"},
        {"resource": "v1/secrets", "namespace": "models", "name": "token"},
    ]
    space = {"kind": "Namespace", "metadata": {"name": "models", "managedFields": [{}]}}
    FakeApi(
        objects={
            "/apis/apps/v1/namespaces/models/statefulsets": {
                "kind": "StatefulSetList",
                "apiVersion": "apps/v1",
                "items": [{"metadata": {"name": "one"}}],
            },
            "/api/v1/namespaces/models": space,
            "/api/v1/namespaces/models/secrets/token": {"metadata": {"name": "token"}, "data": {"hf": "s3cr3t"}},
        }
    ).install(monkeypatch)
    with tls_server(tmp_path, b"HTTP/1.1 401 Unauthorized\r\n\r\n") as address:
        path = tmp_path / "config"
        run(kubeconfig, capsys, path=str(path), context="gb10", server=address, content=yaml.safe_dump(SOURCE))
        status, result = run(api_info, capsys, kubeconfig=str(path), context="gb10", reads=wanted)
        assert (status, result["found"]) == (
            0,
            {
                "statefulsets": [{"metadata": {"name": "one"}, "apiVersion": "apps/v1", "kind": "StatefulSet"}],
                "daemonsets": [],
                "namespaces": [{"kind": "Namespace", "metadata": {"name": "models"}}],
                "secrets": [{"metadata": {"name": "token"}}],
            },
        )
        refused = kubernetes.client.ApiException(status=403, reason="Forbidden")
        FakeApi(objects={"/api/v1/namespaces/models": refused}).install(monkeypatch)
        status, result = run(api_info, capsys, kubeconfig=str(path), context="gb10", reads=wanted)
        assert (status, "can't read v1/namespaces models (403: Forbidden)" in result["msg"]) == (1, True)
    status, result = run(api_info, capsys, kubeconfig=str(path), context="gb10", required=False, reads=wanted)
    assert (status, result["found"]["namespaces"]) == (0, [])
