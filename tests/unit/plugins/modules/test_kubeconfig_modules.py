# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the modules that write a kubeconfig and that check whether its cluster answers."""

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
from ansible_collections.gb10.cluster.plugins.module_utils._kube import kubeconfig as kubeconfigs
from ansible_collections.gb10.cluster.plugins.modules import api_info, kubeconfig
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from kube_samples import FakeApi
from module_runs import Step, play, steps_of

SOURCE = {
    "clusters": [
        {"name": "default", "cluster": {"server": "https://127.0.0.1:6443", "certificate-authority-data": "Q0E="}}
    ],
    "users": [{"name": "default", "user": {"client-certificate-data": "Y3J0", "client-key-data": "c2VjcmV0"}}],
}


class Host:
    """A user with a kubeconfig, which another program may be about to change."""

    def __init__(self, place: Path, patch: pytest.MonkeyPatch) -> None:
        self.path, self.lock, self.patch = place / "kube/config", place / "kube/config.lock", patch
        self.options = {"path": str(self.path), "context": "gb10", "server": "https://10.0.0.1:6443"}
        self.options["content"] = yaml.safe_dump(SOURCE)
        patch.setattr(kubeconfig.time, "sleep", self.other_ends)

    def other_ends(self, _seconds: float) -> None:
        self.lock.unlink()
        self.path.write_text(yaml.safe_dump({"contexts": [{"name": "other", "context": {}}]}))

    def shows(self) -> dict[str, Any]:
        if not self.path.exists():
            return {"file": "none"}
        with self.path.open() as file:
            text = file.read()
        names = sorted(path.name for path in self.path.parent.iterdir())
        return {"file": [*names, f"{self.path.stat().st_mode & 0o777:o}", *text.splitlines()]}


def has(text: str, mode: int = 0o600) -> Step:
    def step(host: Host) -> None:
        host.path.parent.mkdir()
        host.path.write_text(text)
        host.path.chmod(mode)

    return step


def is_locked(host: Host) -> None:
    host.path.parent.mkdir(exist_ok=True)
    host.lock.touch()


def stays_locked(host: Host) -> None:
    is_locked(host)
    host.patch.setattr(kubeconfig, "PATIENCE_S", -1)


def refuse(call: str) -> Step:
    def step(host: Host) -> None:
        def refused(*_arguments: Any, **_options: Any) -> None:
            raise PermissionError(13, "Permission denied", str(host.path))

        host.patch.setattr(kubeconfig.Path, call, refused)

    return step


ABSENT, CHECK = {"state": "absent"}, {"check": True}
CASES: dict[str, list[Step]] = {
    "added, and removed": [CHECK, {}, {}, lambda host: host.path.chmod(0o644), {}, ABSENT | CHECK, ABSENT, ABSENT],
    "no kubeconfig": [has("clusters: 5\n"), ABSENT],
    # As kubectl does: a file beside the kubeconfig says that it is being changed.
    "another program writes meanwhile": [is_locked, {}],
    "a lock that stays": [{}, stays_locked, {"context": "other"}, ABSENT, CHECK],
    **{f"a refused {call}": [has("{}\n"), refuse(call), {}] for call in ("mkdir", "read_text", "replace")},
}
test_each_step_of_a_change = steps_of(kubeconfig=(kubeconfig, Host, CASES))


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


class User:
    """A user whose kubeconfig has an address, and an API with objects behind it."""

    def __init__(self, place: Path, _patch: pytest.MonkeyPatch) -> None:
        self.path, self.hides = place / "config", r"(?<=127\.0\.0\.1:)\d+"
        self.options = {"kubeconfig": str(self.path), "context": "gb10", "required": False}

    def has(self, address: str) -> None:
        wanted = kubeconfigs.renamed(SOURCE, "gb10", address)
        self.path.write_text(yaml.safe_dump(kubeconfigs.merged({}, wanted)))


READS = [
    {"resource": "apps/v1/statefulsets", "namespace": "models", "labels": ["a=b", "!c"]},
    {"resource": "apps/v1/daemonsets", "namespace": "models"},
    {"resource": "v1/namespaces", "name": "models"},
    {"resource": "v1/secrets", "namespace": "models", "name": "token"},
]
OBJECTS: dict[str, Any] = {
    "/apis/apps/v1/namespaces/models/statefulsets": {
        "kind": "StatefulSetList", "apiVersion": "apps/v1", "items": [{"metadata": {"name": "one"}}],
    },
    "/api/v1/namespaces/models": {"kind": "Namespace", "metadata": {"name": "models", "managedFields": [{}]}},
    "/api/v1/namespaces/models/secrets/token": {"metadata": {"name": "token"}, "data": {"hf": "s3cr3t"}},
}  # fmt: skip
REFUSED = {"/api/v1/namespaces/models": kubernetes.client.ApiException(status=403, reason="Forbidden")}


def test_each_answer_of_an_api(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = FakeApi().install(monkeypatch)
    silent = socket.create_server(("127.0.0.1", 0))
    with (
        tls_server(tmp_path, b"HTTP/1.1 401 Unauthorized\r\n\r\n") as answers,
        tls_server(tmp_path, b"") as ends,
        silent,
    ):
        mute = f"https://127.0.0.1:{silent.getsockname()[1]}"
        reads: list[Step] = [
            lambda user: user.has(answers),
            lambda _user: setattr(objects, "objects", OBJECTS),
            {"reads": READS},
            lambda _user: setattr(objects, "objects", REFUSED),
            {"reads": READS},
        ]
        cases: dict[str, list[Step]] = {
            "it answers": [lambda user: user.has(answers), {}],
            "it ends the connection": [lambda user: user.has(ends), {}, {"required": True}],
            "it is silent": [lambda user: user.has(mute), {"reads": READS[:1], "timeout": 0.2}],
            "no such context": [lambda user: user.has(answers), {"context": "other", "required": True}],
            "objects": reads,
        }
        play("api_info", api_info, cases, User, capsys, tmp_path)
