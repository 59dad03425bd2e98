# Copyright: The gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test whom the simulated K3s's service for joining nodes answers."""

from __future__ import annotations

import base64
import importlib
import socket
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "lab" / "k3s"))
join = importlib.import_module("standin.join")
datastore = importlib.import_module("standin.datastore")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("join") / "join.sock"
    handlers = {"/v1-k3s/servers": ({"server"}, lambda body: {"seen": body["name"]})}
    join.serve(path, b"the CA", {"server": "s3cret", "node": "other"}, handlers)
    return path


def asked(service: Path, line: str, user: str = "", body: str = "") -> tuple[int, str]:
    encoded = base64.b64encode(user.encode()).decode()
    request = f"{line} HTTP/1.0\r\nAuthorization: Basic {encoded}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(service))
        client.sendall(request.encode())
        answer = b"".join(iter(lambda: client.recv(4096), b"")).decode()
    head, _blank, text = answer.partition("\r\n\r\n")
    return int(head.split()[1]), text


@pytest.mark.parametrize(("path", "text"), [("/cacerts", "the CA"), ("/ping", "pong")])
def test_everybody_gets_the_ca_before_joining(service: Path, path: str, text: str) -> None:
    assert asked(service, f"GET {path}") == (200, text)


@pytest.mark.parametrize("user", ["", "server:wrong", "node:other", "node:s3cret"])
def test_nobody_else_gets_what_only_servers_may_have(service: Path, user: str) -> None:
    assert asked(service, "POST /v1-k3s/servers", user, '{"name": "a"}')[0] == 401


def test_a_server_is_answered_and_a_bad_request_does_not_end_the_service(service: Path) -> None:
    assert asked(service, "POST /v1-k3s/servers", "server:s3cret", "nonsense")[0] == 500
    assert asked(service, "POST /v1-k3s/servers", "server:s3cret", '{"name": "a"}') == (200, '{"seen": "a"}')


def test_a_server_with_files_of_another_cluster_is_refused_as_k3s_does(tmp_path: Path) -> None:
    given = {"tls/server-ca.crt": "new", "tls/client-ca.crt": "new", "cred/encryption-config.json": "new"}
    datastore.reconcile(tmp_path, given)
    for name in given:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("new")
    datastore.reconcile(tmp_path, given)
    (tmp_path / "tls/client-ca.crt").write_text("old")
    with pytest.raises(Exception, match="newer than datastore and could cause a cluster outage") as refused:
        datastore.reconcile(tmp_path, given)
    assert f"cluster data: {tmp_path}/tls/client-ca.crt newer" in str(refused.value)
