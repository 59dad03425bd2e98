# Copyright: The gb10.cluster authors
# SPDX-License-Identifier: GPL-3.0-or-later
import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._kube import kubeconfig

K3S: dict[str, Any] = {
    "clusters": [
        {"name": "default", "cluster": {"server": "https://127.0.0.1:6443", "certificate-authority-data": "Q0E="}}
    ],
    "users": [{"name": "default", "user": {"client-certificate-data": "Y3J0", "client-key-data": "a2V5"}}],
    "contexts": [{"name": "default", "context": {"cluster": "default", "user": "default"}}],
    "current-context": "default",
}
OTHER: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "work", "cluster": {"server": "https://work:6443"}}],
    "users": [{"name": "me", "user": {"token": "x"}}],
    "contexts": [{"name": "work", "context": {"cluster": "work", "user": "me", "namespace": "n"}}],
    "current-context": "work",
}
ENTRIES = kubeconfig.renamed(K3S, "gb10", "https://10.99.0.10:6443")
ROOT = Path(__file__).resolve().parents[5]


def texts(code: str) -> Iterator[str]:
    """Yield the texts of a program that are no documentation."""
    tree = ast.parse(code)
    pages = {"DOCUMENTATION", "EXAMPLES", "RETURN"}
    left_out = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        or (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in pages)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in left_out:
            yield node.value


def test_every_command_of_a_message_names_its_kubeconfig() -> None:
    """The current context of a kubeconfig may be that of another cluster: messages take :func:`kubeconfig.kubectl`."""
    said = [(path, text) for path in ROOT.glob("plugins/**/*.py") for text in texts(path.read_text(encoding="utf-8"))]
    for path in (*ROOT.glob("plugins/**/rules.yml"), *ROOT.glob("roles/**/*.yml"), *ROOT.glob("playbooks/*.yml")):
        said += [(path, line) for line in path.read_text(encoding="utf-8").splitlines() if not re.match(" *#", line)]
    found = [(path, text) for path, text in said if re.search(r"\bkubectl (?!--kubeconfig )", text)]
    assert found == []
    assert sum("{kubectl} " in text for _path, text in said) > 5


def test_the_server_s_entry_gets_name_and_address() -> None:
    assert ENTRIES["clusters"][0]["name"] == "gb10"
    assert ENTRIES["clusters"][0]["cluster"]["server"] == "https://10.99.0.10:6443"
    assert ENTRIES["clusters"][0]["cluster"]["certificate-authority-data"] == "Q0E="
    assert ENTRIES["contexts"][0]["context"] == {"cluster": "gb10", "user": "gb10"}
    for other in ({"clusters": []}, {"clusters": K3S["clusters"] * 2}, {"users": []}, {"users": K3S["users"] * 2}):
        with pytest.raises(ValueError, match="exactly one"):
            kubeconfig.renamed(K3S | other, "gb10", "")


def test_other_contexts_survive_and_stay_current() -> None:
    merged = kubeconfig.merged(OTHER, ENTRIES)
    assert [entry["name"] for entry in merged["contexts"]] == ["work", "gb10"]
    assert merged["contexts"][0] == OTHER["contexts"][0]
    assert merged["current-context"] == "work"
    assert kubeconfig.merged(merged, ENTRIES) == merged


def test_a_new_file_makes_the_cluster_current() -> None:
    assert kubeconfig.merged(None, ENTRIES)["current-context"] == "gb10"


def test_a_changed_certificate_replaces_the_old_one_in_place() -> None:
    user = {"client-certificate-data": "Y3J0", "client-key-data": "bmV1"}
    changed = kubeconfig.renamed(K3S | {"users": [{"name": "default", "user": user}]}, "gb10", "s")
    merged = kubeconfig.merged(kubeconfig.merged(OTHER, ENTRIES), changed)
    assert [entry["name"] for entry in merged["users"]] == ["me", "gb10"]
    assert merged["users"][1]["user"]["client-key-data"] == "bmV1"


def test_removing_a_cluster_restores_the_file() -> None:
    assert kubeconfig.removed(kubeconfig.merged(OTHER, ENTRIES), "gb10") == OTHER
    assert kubeconfig.removed(kubeconfig.merged(None, ENTRIES), "gb10") == kubeconfig.empty() | {"current-context": ""}


def test_the_address_of_a_context() -> None:
    assert kubeconfig.server_of(kubeconfig.merged(OTHER, ENTRIES), "gb10") == "https://10.99.0.10:6443"
    assert kubeconfig.server_of(OTHER, "gb10") == ""
    assert kubeconfig.server_of(None, "gb10") == ""
