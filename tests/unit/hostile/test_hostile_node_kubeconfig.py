# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test that a first server cannot make the controller run, read or trust anything through its kubeconfig."""

import copy
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gb10.cluster.plugins.modules import kubeconfig

K3S: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [
        {"name": "default", "cluster": {"server": "https://127.0.0.1:6443", "certificate-authority-data": "Q0E="}}
    ],
    "users": [{"name": "default", "user": {"client-certificate-data": "Y3J0", "client-key-data": "a2V5"}}],
}
EXEC = {"apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/sh", "args": ["-c", "touch /tmp/owned"]}
# The fields of Cluster and AuthInfo in k8s.io/client-go/tools/clientcmd/api/v1/types.go that K3s does not write.
FIELDS: list[tuple[str, str, Any]] = [
    ("user", "exec", EXEC),
    ("user", "auth-provider", {"name": "gcp", "config": {"cmd-path": "/bin/sh"}}),
    ("user", "client-certificate", "/etc/passwd"),
    ("user", "client-key", "/etc/shadow"),
    ("user", "token", "t"),
    ("user", "tokenFile", "/root/.ssh/id_ed25519"),
    ("user", "username", "u"),
    ("user", "password", "p"),
    ("user", "as", "system:admin"),
    ("user", "as-uid", "0"),
    ("user", "as-groups", ["system:masters"]),
    ("user", "as-user-extra", {"a": ["b"]}),
    ("user", "extensions", [{"name": "a"}]),
    ("cluster", "insecure-skip-tls-verify", True),
    ("cluster", "certificate-authority", "/etc/passwd"),
    ("cluster", "proxy-url", "http://203.0.113.1:3128"),
    ("cluster", "tls-server-name", "other"),
    ("cluster", "disable-compression", True),
    ("cluster", "extensions", [{"name": "client.authentication.k8s.io/exec"}]),
    ("user", "{{ lookup('pipe', 'id') }}", "x"),
    ("user", "a" * 10_000, "x"),
]
VALUES: list[Any] = [None, "", "{{ 1 }}", "/etc/passwd", 5, True, [], ["Q0E="], {"a": "b"}, b"Q0E=", "Q0E=\n- x: y"]
KEYS = [
    ("cluster", "certificate-authority-data"),
    ("user", "client-certificate-data"),
    ("user", "client-key-data"),
]


def given(capsys: pytest.CaptureFixture[str], path: Path, content: str) -> tuple[int, dict[str, Any]]:
    wanted = {"path": str(path), "context": "gb10", "server": "https://192.0.2.1:6443", "content": content}
    with patch_module_args(wanted), pytest.raises(SystemExit) as stop:
        kubeconfig.main()
    return int(stop.value.code or 0), json.loads(capsys.readouterr().out)


def changed(section: str, key: str, value: Any) -> str:
    config = copy.deepcopy(K3S)
    config[f"{section}s"][0][section][key] = value
    return yaml.safe_dump(config)


@pytest.mark.parametrize(("section", "key", "value"), FIELDS, ids=[f"{one}.{two[:30]}" for one, two, _value in FIELDS])
def test_a_field_that_k3s_does_not_write_is_refused_by_its_name(
    section: str, key: str, value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config"
    status, result = given(capsys, path, changed(section, key, value))
    assert (status, result["changed"], path.exists()) == (1, False, False)
    assert f"its {section} has {ascii(key)[:60]}" in result["msg"]
    assert len(result["msg"]) < 500


@pytest.mark.parametrize(("section", "key"), KEYS)
@pytest.mark.parametrize("value", VALUES, ids=ascii)
def test_data_that_is_not_base64_is_refused(
    section: str, key: str, value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config"
    status, result = given(capsys, path, changed(section, key, value))
    assert (status, path.exists()) == (1, False)
    assert f"{key} of its {section}" in result["msg"]


@pytest.mark.parametrize("content", ["", "5", "[]", "a: [", "clusters: 5\nusers: []", "!!python/object:os.system {}"])
def test_a_file_of_another_shape_is_refused(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config"
    assert (given(capsys, path, content)[0], path.exists()) == (1, False)


def test_a_file_that_is_nested_without_an_end_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the loader of PyYAML, which the module has."""
    monkeypatch.setattr(kubeconfig.yaml, "safe_load", partial(yaml.load, Loader=yaml.SafeLoader))
    status, result = given(capsys, tmp_path / "config", "[" * 5000)
    assert (status, (tmp_path / "config").exists()) == (1, False)
    assert "is not a kubeconfig (RecursionError)" in result["msg"]


def test_of_what_k3s_writes_the_controller_takes_the_ca_the_certificate_and_the_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config"
    hostile = K3S | {"current-context": "{{ 1 }}", "preferences": {"colors": True}, "extensions": [{"name": "x"}]}
    assert given(capsys, path, yaml.safe_dump(hostile))[0] == 0
    written = yaml.safe_load(path.read_text())
    assert written.pop("current-context") == "gb10"
    assert written == {
        "apiVersion": "v1",
        "kind": "Config",
        "preferences": {},
        "clusters": [
            {"name": "gb10", "cluster": {"certificate-authority-data": "Q0E=", "server": "https://192.0.2.1:6443"}}
        ],
        "users": [{"name": "gb10", "user": {"client-certificate-data": "Y3J0", "client-key-data": "a2V5"}}],
        "contexts": [{"name": "gb10", "context": {"cluster": "gb10", "user": "gb10"}}],
    }
